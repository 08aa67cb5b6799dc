package gateway

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/structs"
	"github.com/knadh/koanf/v2"
)

// envPrefix begins the environment's names of fields.
const envPrefix = "QUORATE_GATEWAY_"

// Load reads a configuration file, the environment, and all files that it names. The error has everything that is
// wrong, a line for each, with file, line and column where there are some, the field, and what to do.
func Load(path string, environ []string) (*Config, error) {
	c, err := load(path, environ, newFiles())
	if err != nil {
		return nil, err
	}
	if _, err := compile(c, nil, nil); err != nil {
		return nil, err
	}
	return c, nil
}

// load is Load without judging what was read. Only what leaves nothing to judge is an error.
func load(path string, environ []string, fs *files) (*Config, error) {
	src, err := fs.read(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c := &Config{path: path, environ: environ, files: fs}
	c.source = readSource(path, src, reflect.TypeFor[Config](), &c.early)
	if c.source.value == nil && len(c.early) > 0 {
		return nil, c.source.tell(c.early)
	}
	for again := true; again; { // each time without the values that did not fit
		before := len(c.early)
		if err := c.decode(); err != nil {
			return nil, err
		}
		again = false
		for _, err := range c.early[before:] {
			var f *finding
			again = errors.As(err, &f) && c.source.without(f.place) || again
		}
	}
	c.SetDefaults()
	c.resolve(filepath.Dir(path))
	if c.Cluster.PolicyFile != "" { // one that cannot be read is told of by the SDK, or as a change
		policy, _ := fs.read(c.Cluster.PolicyFile)
		c.policy = string(policy)
	}
	return c, nil
}

// decode fills c with what the file and the environment say, and notes what does not fit.
func (c *Config) decode() error {
	k := koanf.New(".")
	if err := k.Load(loaded(c.source.value), nil); err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	if err := loadEnviron(k, c.environ, c.source); err != nil {
		return err
	}
	*c = Config{path: c.path, environ: c.environ, files: c.files, source: c.source, early: c.early}
	c.undecoded(k.UnmarshalWithConf("", c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result: c, TagName: "koanf", ErrorUnused: true, WeaklyTypedInput: true,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.StringToSliceHookFunc(",")),
	}}))
	return nil
}

// loaded is what a file says.
type loaded map[string]any

// ReadBytes is not called.
func (loaded) ReadBytes() ([]byte, error) {
	return nil, errors.New("gateway: it has been parsed already")
}

// Read is what the file says.
func (l loaded) Read() (map[string]any, error) { return l, nil }

// mapKey is how the decoder writes a key of a map.
var mapKey = regexp.MustCompile(`\[([^\]]*[^\]0-9][^\]]*)\]`)

// undecoded notes the values that are of another kind than their fields.
func (c *Config) undecoded(err error) {
	switch e := err.(type) { //nolint:errorlint // each layer by itself
	case nil:
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			c.undecoded(one)
		}
	case *mapstructure.DecodeError:
		var deeper *mapstructure.DecodeError
		if errors.As(e.Unwrap(), &deeper) {
			c.undecoded(e.Unwrap())
			return
		}
		place := mapKey.ReplaceAllString(e.Name(), ".$1")
		text := strings.ReplaceAll(strings.TrimSpace(e.Unwrap().Error()), "\n", " ")
		if strings.HasPrefix(text, "time: ") {
			text += ": write it as 30s or 5m"
		}
		c.early = append(c.early, &finding{place: place, err: errors.New(text), decisive: true})
	default:
		if inner := errors.Unwrap(err); inner != nil {
			c.undecoded(inner)
			return
		}
		c.early = append(c.early, &finding{err: err})
	}
}

// lost reports whether something at a place, or in it, could not be decoded: then what is around it may be missing too.
func (c *Config) lost(place string) bool {
	for _, err := range c.early {
		var f *finding
		if errors.As(err, &f) && f.decisive && strings.HasPrefix(f.place, place) {
			return true
		}
	}
	return false
}

// loadEnviron loads what of the environment is a field with one value, and notes its names.
func loadEnviron(k *koanf.Koanf, environ []string, s *source) error {
	known := koanf.New(".")
	if err := known.Load(structs.Provider(Config{}, "koanf"), nil); err != nil {
		return err
	}
	closed := []string{"callers", "upstreams", "routes", "fallback"}
	s.environ = map[string]string{}
	provider := env.Provider(".", env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(given, value string) (string, any) {
			name := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(given, envPrefix)), "__", ".")
			for _, c := range closed {
				if name == c {
					return "", nil
				}
			}
			// Others set such names too: Kubernetes makes QUORATE_GATEWAY_SERVICE_HOST of a service's name.
			if !known.Exists(name) {
				return "", nil
			}
			s.environ[name] = given
			return name, value
		},
	})
	if err := k.Load(provider, nil); err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	return nil
}

// resolve takes relative names of files from a folder.
func (c *Config) resolve(folder string) {
	for _, p := range c.fileNames() {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(folder, *p)
		}
	}
	for name, u := range c.Upstreams {
		if u.CA != "" && !filepath.IsAbs(u.CA) {
			u.CA = filepath.Join(folder, u.CA)
			c.Upstreams[name] = u
		}
	}
}

func (c *Config) fileNames() []*string {
	out := []*string{
		&c.TLS.Cert, &c.TLS.Key, &c.TLS.ClientCA, &c.Cluster.TLS.CA, &c.Cluster.TLS.Cert, &c.Cluster.TLS.Key,
		&c.Cluster.PolicyFile,
	}
	for _, list := range c.Callers {
		for i := range list {
			if list[i].APIKey != nil {
				out = append(out, &list[i].APIKey.File)
			}
			if list[i].JWT != nil {
				out = append(out, &list[i].JWT.JWKSFile)
			}
		}
	}
	return out
}
