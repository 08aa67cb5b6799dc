package envoyimport

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxFileBytes bounds one file.
const MaxFileBytes = 16 << 20

// file is a file of the service's configuration: its documentation calls them so.
type file struct {
	Domain      string       `yaml:"domain"`
	Descriptors []descriptor `yaml:"descriptors"`
}

type descriptor struct {
	Key           string       `yaml:"key"`
	Value         string       `yaml:"value"`
	RateLimit     *rateLimit   `yaml:"rate_limit"`
	Descriptors   []descriptor `yaml:"descriptors"`
	ShadowMode    bool         `yaml:"shadow_mode"`
	QuotaMode     bool         `yaml:"quota_mode"`
	Detailed      bool         `yaml:"detailed_metric"`
	ValueToMetric bool         `yaml:"value_to_metric"`
	Share         bool         `yaml:"share_threshold"`

	line int
}

type rateLimit struct {
	Name            string    `yaml:"name"`
	Unit            string    `yaml:"unit"`
	RequestsPerUnit uint32    `yaml:"requests_per_unit"`
	Unlimited       bool      `yaml:"unlimited"`
	Replaces        []replace `yaml:"replaces"`
	Sleep           bool      `yaml:"sleep_on_throttle"`
}

type replace struct {
	Name string `yaml:"name"`
}

// UnmarshalYAML notes the line.
func (d *descriptor) UnmarshalYAML(n *yaml.Node) error {
	type plain descriptor
	d.line = n.Line
	if n.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: a descriptor must be a mapping with key, and value, rate_limit or descriptors", n.Line)
	}
	for i := 0; i < len(n.Content); i += 2 {
		if key := n.Content[i]; !descriptorKeys[key.Value] {
			return fmt.Errorf("line %d: unknown key %q: the service has none of this name, so nothing is imported", key.Line,
				key.Value)
		}
	}
	return n.Decode((*plain)(d))
}

// UnmarshalYAML refuses keys that the service does not have either: Decode of a part does not.
func (r *rateLimit) UnmarshalYAML(n *yaml.Node) error {
	type plain rateLimit
	for i := 0; n.Kind == yaml.MappingNode && i < len(n.Content); i += 2 {
		if key := n.Content[i]; !limitKeys[key.Value] {
			return fmt.Errorf("line %d: unknown key %q in rate_limit: the service has none of this name, so nothing is "+
				"imported", key.Line, key.Value)
		}
	}
	return n.Decode((*plain)(r))
}

var descriptorKeys, limitKeys = set("key value rate_limit descriptors shadow_mode quota_mode detailed_metric " +
	"value_to_metric share_threshold"), set("name unit requests_per_unit unlimited replaces sleep_on_throttle")

func set(words string) map[string]bool {
	out := map[string]bool{}
	for word := range strings.FieldsSeq(words) {
		out[word] = true
	}
	return out
}

// read reads one file.
func read(name string, src []byte) (*file, error) {
	if len(src) > MaxFileBytes {
		return nil, fmt.Errorf("%s: the file has %d bytes; at most %d are read", name, len(src), MaxFileBytes)
	}
	dec := yaml.NewDecoder(bytes.NewReader(src))
	dec.KnownFields(true)
	f := &file{}
	err := decode(dec, f)
	if err != nil && bytes.Contains(src, []byte("kind: ConfigMap")) {
		return nil, fmt.Errorf("%s: this is a ConfigMap of Kubernetes: import what it has under data, a file for each key",
			name)
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%s: the file is empty", name)
		}
		return nil, fmt.Errorf("%s: %s", name, strings.Join(strings.Fields(err.Error()), " "))
	}
	if err := decode(dec, &file{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more than one document: import each as a file", name)
	}
	if f.Domain == "" {
		return nil, fmt.Errorf(`%s: "domain" is missing: is this a configuration of Envoy's ratelimit service?`, name)
	}
	return f, nil
}

// decode reads a document. The library reports some of its own faults by panic; they are faults of the text.
func decode(dec *yaml.Decoder, f *file) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return dec.Decode(f)
}
