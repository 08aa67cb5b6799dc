package envoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3" // named in the example
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3" // named in the example
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/anypb"
)

// bootstrapOf reads a configuration as Envoy does before it starts: by its own definitions, with no field that they do
// not have, no value that their rules refuse, within typed_config as well, and nothing that is deprecated; and nothing
// that names a cluster which is not there.
func bootstrapOf(text string) (*bootstrapv3.Bootstrap, error) {
	var tree map[string]any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return nil, err
	}
	asJSON, err := json.Marshal(tree)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(asJSON, b); err != nil {
		return nil, err
	}
	s := &survey{}
	s.message(b)
	for _, c := range b.GetStaticResources().GetClusters() {
		s.there = append(s.there, c.GetName())
		if c.GetLoadAssignment() != nil && c.GetLoadAssignment().GetClusterName() != c.GetName() {
			s.fault("cluster %q has the endpoints of %q", c.GetName(), c.GetLoadAssignment().GetClusterName())
		}
		for key, o := range c.GetTypedExtensionProtocolOptions() {
			if !strings.HasSuffix(o.GetTypeUrl(), "/"+key) {
				s.fault("cluster %q has options %q of type %s", c.GetName(), key, o.GetTypeUrl())
			}
		}
	}
	for _, name := range s.named {
		if !slices.Contains(s.there, name) {
			s.fault("no cluster is named %q", name)
		}
	}
	return b, errors.Join(s.faults...)
}

// survey goes through a configuration, and whatever is packed in it.
type survey struct {
	faults       []error
	types        []string // that were packed
	there, named []string // clusters
}

func (s *survey) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Errorf(format, args...))
}

// message checks a message that is not part of another one.
func (s *survey) message(m proto.Message) {
	name := m.ProtoReflect().Descriptor().FullName()
	if v, ok := m.(interface{ ValidateAll() error }); !ok {
		s.fault("%s has no rules to check", name)
	} else if err := v.ValidateAll(); err != nil {
		s.fault("%s: %w", name, err)
	}
	err := protorange.Range(m.ProtoReflect(), func(p protopath.Values) error {
		last := p.Index(-1)
		if last.Step.Kind() == protopath.FieldAccessStep {
			s.field(last.Step.FieldDescriptor(), last.Value)
		}
		if last.Step.Kind() == protopath.AnyExpandStep { // checked as what it is
			s.types = append(s.types, string(last.Value.Message().Descriptor().FullName()))
			s.message(last.Value.Message().Interface())
			return protorange.Break
		}
		if in, ok := last.Value.Interface().(protoreflect.Message); ok {
			s.part(in.Interface())
		}
		return nil
	})
	if err != nil {
		s.fault("%s: %w", name, err)
	}
}

// field refuses what Envoy warns of, and will refuse.
func (s *survey) field(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	if o, ok := f.Options().(*descriptorpb.FieldOptions); ok && o.GetDeprecated() {
		s.fault("%s is deprecated", f.FullName())
	}
	if f.Kind() == protoreflect.EnumKind && !f.IsList() && !f.IsMap() {
		if e := f.Enum().Values().ByNumber(v.Enum()); e == nil {
			s.fault("%s has no value %d", f.FullName(), v.Enum())
		} else if o, ok := e.Options().(*descriptorpb.EnumValueOptions); ok && o.GetDeprecated() {
			s.fault("%s is deprecated", e.FullName())
		}
	}
}

// part notes which clusters are named, and what of a part its rules do not say.
func (s *survey) part(m proto.Message) {
	switch m := m.(type) {
	case *corev3.GrpcService_EnvoyGrpc:
		s.named = append(s.named, m.GetClusterName())
	case *routev3.RouteAction:
		if m.GetCluster() != "" {
			s.named = append(s.named, m.GetCluster())
		}
	case *hcmv3.HttpConnectionManager:
		filters := m.GetHttpFilters()
		for i, f := range filters {
			if router := f.GetTypedConfig().MessageIs(&routerv3.Router{}); router != (i == len(filters)-1) {
				s.fault("the router is filter %d of %d: it ends the chain", i, len(filters))
			}
		}
	case *anypb.Any:
		if m.GetTypeUrl() == "" {
			s.fault("a typed_config has no type")
		}
	}
}

// Shows that the documentation's configuration of Envoy passes, with every packed part of it looked into, and that each
// kind of fault that it could have is found: so it would be there, too.
func TestExampleIsEnvoys(t *testing.T) {
	text := mustRead(t, exampleDir+"envoy.yaml")
	b, err := bootstrapOf(text)
	if err != nil {
		t.Fatal(err)
	}
	s := &survey{}
	s.message(b)
	packed := strings.Count(text, `"@type":`)
	if packed < 5 || len(s.types) != packed {
		t.Errorf("%d typed parts, looked into %q", packed, s.types)
	}
	for _, field := range []string{reasonField, descriptorField} {
		if !strings.Contains(text, "%DYNAMIC_METADATA(envoy.filters.http.ratelimit:"+field+")%") {
			t.Errorf("the access log does not show the field %s", field)
		}
	}
	for _, c := range []struct{ from, to, want string }{
		{"domain: edge", "domain: edge\n                      domian: x", `unknown field "domian"`},
		{"domain: edge", `domain: ""`, "RateLimit.Domain: value length must be at least 1"},
		{"stat_prefix: front", `stat_prefix: ""`, "HttpConnectionManager.StatPrefix: value length must be at least 1"},
		{"timeout: 7s", "timeout: 5", "unexpected token 5"},
		{"failure_mode_deny: true", "failure_mode_deny: yes please", "failureModeDeny"},
		{"http.ratelimit.v3.RateLimit\n", "http.ratelimit.v3.RateLimits\n", "RateLimits"},
		{"TLSv1_3, tls_max", "TLSv1_4, tls_max", "TLSv1_4"},
		{"matcher: {prefix:", "matcher: {prefix: x, suffix:", "oneof"},
		{"match_typed_subject_alt_names:\n                - san_type: URI\n                  matcher: {prefix:",
			"match_subject_alt_names:\n                - {prefix:", "is deprecated"},
		{"v6_prefix_mask_len: 64", "v6_prefix_mask_len: 640", "V6PrefixMaskLen"},
		{"envoy_grpc: {cluster_name: quorate}", "envoy_grpc: {cluster_name: quorum}", `no cluster is named "quorum"`},
		{"route:\n                            cluster: upstream", "route:\n                            cluster: down",
			`no cluster is named "down"`},
		{"        cluster_name: upstream", "        cluster_name: other", `has the endpoints of "other"`},
		{"explicit_http_config: {http2_protocol_options: {}}", "common_http_protocol_options: {}", "UpstreamProtocolOptions"},
		{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions:", "envoy.http:", `has options "envoy.http"`},
		{"static_resources:", "static_resources: {}\nstatic_resources:", "already defined"},
	} {
		if strings.Count(text, c.from) == 0 {
			t.Errorf("%q is not in the example", c.from)
			continue
		}
		_, err := bootstrapOf(strings.Replace(text, c.from, c.to, 1))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.to, err, c.want)
		}
	}
}

// Shows that what the documentation shows of the policy's section is read as it stands.
func TestDocumentedSection(t *testing.T) {
	_, after, ok := strings.Cut(mustRead(t, "../../docs/envoy.md"), "```yaml\nenvoy:\n")
	section, _, closed := strings.Cut(after, "```")
	if !ok || !closed {
		t.Fatal("docs/envoy.md shows no section")
	}
	p := mustPolicy(t, `
version: p1
default: {limits: [{name: m, limit: 1, window: 1s}]}
classes:
  api: {limits: [{name: m, limit: 1, window: 1s}]}
envoy:
`+section)
	if d := p.Envoy["edge"]; d.RequestID == "" || d.PassUnmatched || len(d.Rules) < 2 {
		t.Errorf("%+v", d)
	}
}
