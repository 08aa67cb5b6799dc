package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/google/uuid"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/providers/structs"
	"github.com/knadh/koanf/v2"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// Config is the configuration of one node: what `quorate server --config` reads. Each field may be set
// by the environment too: QUORATE_ and the path in capitals, with two underscores between the parts,
// as in QUORATE_CLOCK__MAX_DRIFT_PPM. The environment wins over the file; names in it that are no field
// are not read.
type Config struct {
	// ClusterID names the cluster, a UUID made once when the cluster is made. A node talks to no node
	// and opens no directory of another cluster. Required.
	ClusterID string `koanf:"cluster_id"`
	// ID is this node's id, which no other node of the cluster has or had. Required.
	ID string `koanf:"node_id"`
	// DataDir holds everything that lasts. A directory belongs to one node for ever. Required.
	DataDir string `koanf:"data_dir"`
	// Zone is what fails together with this node: a rack, a data centre. Replicas are spread over zones.
	Zone string `koanf:"zone"`
	// GRPC, HTTP, Raft and Gossip are where this node listens, each host:port. Required.
	GRPC   string `koanf:"grpc"`
	HTTP   string `koanf:"http"`
	Raft   string `koanf:"raft"`
	Gossip string `koanf:"gossip"`
	// Advertise is where the others reach it; what is left out is where it listens. With a port of 0 to listen
	// on, it must be given.
	Advertise Addresses `koanf:"advertise"`
	// Join are Raft addresses of other nodes, host:port, of which a node with nothing asks its way in. Its own may
	// be among them, so that all nodes can have the same list.
	Join []string `koanf:"join"`
	// GossipKeyFile holds the key of gossip, 32 bytes in base64, the same on all nodes. Required with TLS.
	GossipKeyFile string          `koanf:"gossip_key_file"`
	Placement     PlacementConfig `koanf:"placement"`
	Partition     PartitionConfig `koanf:"partition"`
	Clock         ClockConfig     `koanf:"clock"`
	LogStore      LogStoreConfig  `koanf:"log_store"`
	Storage       StorageConfig   `koanf:"storage"`
	HTTPAnswers   HTTPConfig      `koanf:"http_answers"`
	TLS           TLSConfig       `koanf:"tls"`
	Log           LogConfig       `koanf:"log"`
}

// Addresses are where a node is reached, each host:port.
type Addresses struct {
	GRPC   string `koanf:"grpc"`
	HTTP   string `koanf:"http"`
	Raft   string `koanf:"raft"`
	Gossip string `koanf:"gossip"`
}

// PlacementConfig says how replicas are placed. It counts on the node that leads the control group: write the
// same on all.
type PlacementConfig struct {
	// Replicas is how many voters a partition has, as long as there are as many nodes. Default 3.
	Replicas int `koanf:"replicas"`
	// ReplaceAfter is how long a node must not have answered before its replicas are made anew elsewhere.
	// Default 10m.
	ReplaceAfter time.Duration `koanf:"replace_after"`
	// SplitKeys is how many keys a partition has when it is split in two, and SplitRate how many decisions a second
	// it makes, over some seconds, when it is. Default 0 for both: no partition is split but by an operator. Choose
	// marks that half of one stays well below: nothing is merged again by itself.
	SplitKeys int64 `koanf:"split_keys"`
	SplitRate int64 `koanf:"split_rate"`
}

// PartitionConfig bounds the partitions. The bounds decide answers, so they are part of a partition's
// replicated state from its birth on, and later changes here count for partitions that are made later.
type PartitionConfig struct {
	// MaxKeys and MaxReplayRecords are fsm.Bounds. Default 5,000,000 and 8,000,000.
	MaxKeys          int64 `koanf:"max_keys"`
	MaxReplayRecords int64 `koanf:"max_replay_records"`
}

// ClockConfig says how far the machine's clocks can be trusted.
type ClockConfig struct {
	// MaxDriftPPM is the most by which a clock of the machine may be fast or slow, in parts per million.
	// Default 500. Too small a bound lets admissions expire early; a larger one only keeps them longer.
	MaxDriftPPM int64 `koanf:"max_drift_ppm"`
	// TrustWall says whether wall clocks may tell how long all replicas were down: never (default) or
	// bounded. With bounded, a virtual machine that was paused can void the exact cap.
	TrustWall string `koanf:"trust_wall"`
}

// LogStoreConfig is how the partitions' logs are kept.
type LogStoreConfig struct {
	// Backend is where entries are kept: wal (default) or boltdb. The control group has boltdb always.
	Backend string `koanf:"backend"`
	// SnapshotLogMiB is how many MiB of log are written between two snapshots. Default 64.
	SnapshotLogMiB int64 `koanf:"snapshot_log_mib"`
}

// StorageConfig is about the data directory.
type StorageConfig struct {
	// MinFreeMiB is the least room in the data directory's file system, in MiB. With less, checks are refused
	// with capacity and leadership is handed over, before a write fails and ends the process. Default 256;
	// 0 switches that off.
	MinFreeMiB *int64 `koanf:"min_free_mib"`
}

// HTTPConfig is about the HTTP answers.
type HTTPConfig struct {
	// LegacyHeaders adds X-RateLimit-* to the answers of /v1/check. Default false.
	LegacyHeaders bool `koanf:"legacy_headers"`
}

// TLSConfig is where this node's certificate is, in PEM. All three, or none: then every address must be loopback.
// A relative name is taken from the configuration's folder. The files are read again when they change.
type TLSConfig struct {
	// CA holds the CAs that the certificates of nodes and callers come from; several while they are replaced.
	CA string `koanf:"ca"`
	// Cert is this node's certificate, as `quorate cert node` makes it, and Key its key.
	Cert string `koanf:"cert"`
	Key  string `koanf:"key"`
}

// on reports whether TLS is configured.
func (t TLSConfig) on() bool { return t != TLSConfig{} }

// LogConfig is the process's log, on standard error.
type LogConfig struct {
	// Level is debug, info (default), warn or error. Format is text (default) or json.
	Level  string `koanf:"level"`
	Format string `koanf:"format"`
}

// defaultMinFreeMiB is room for a snapshot and the log between two of a partition of ordinary size.
const defaultMinFreeMiB = 256

const (
	defaultReplicas     = 3
	defaultReplaceAfter = 10 * time.Minute
	// maxJoin bounds the addresses that are asked.
	maxJoin = 64
)

// address is one of a node's addresses: where it listens, and where it is reached.
type address struct {
	name              string
	listen, advertise *string
}

// addresses are all of a node's.
func (c *Config) addresses() []address {
	return []address{
		{"grpc", &c.GRPC, &c.Advertise.GRPC}, {"http", &c.HTTP, &c.Advertise.HTTP},
		{"raft", &c.Raft, &c.Advertise.Raft}, {"gossip", &c.Gossip, &c.Advertise.Gossip},
	}
}

// SetDefaults fills in what is not set.
func (c *Config) SetDefaults() {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	bounds := fsm.DefaultBounds()
	if c.Partition.MaxKeys == 0 {
		c.Partition.MaxKeys = bounds.MaxKeys
	}
	if c.Partition.MaxReplayRecords == 0 {
		c.Partition.MaxReplayRecords = bounds.MaxReplayRecords
	}
	if c.Clock.MaxDriftPPM == 0 {
		c.Clock.MaxDriftPPM = clock.DefaultMaxDriftPPM
	}
	def(&c.Clock.TrustWall, string(clock.TrustNever))
	def(&c.LogStore.Backend, "wal")
	if c.LogStore.SnapshotLogMiB == 0 {
		c.LogStore.SnapshotLogMiB = 64
	}
	for _, a := range c.addresses() {
		def(a.advertise, *a.listen)
	}
	if c.Placement.Replicas == 0 {
		c.Placement.Replicas = defaultReplicas
	}
	if c.Placement.ReplaceAfter == 0 {
		c.Placement.ReplaceAfter = defaultReplaceAfter
	}
	if c.Storage.MinFreeMiB == nil {
		least := int64(defaultMinFreeMiB)
		c.Storage.MinFreeMiB = &least
	}
	def(&c.Log.Level, "info")
	def(&c.Log.Format, "text")
}

// idPattern is what ids of nodes and partitions look like.
var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Validate reports all that is wrong with c, or nil.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, err := uuid.Parse(c.ClusterID); err != nil {
		bad("cluster_id: %q is not a UUID: make one, once for the whole cluster, with `uuidgen`", c.ClusterID)
	}
	if c.DataDir == "" {
		bad("data_dir: name a directory that only this node uses")
	}
	if !idPattern.MatchString(c.ID) {
		bad("node_id: %q: use letters, digits, '.', '_' and '-', at most 63", c.ID)
	}
	c.validateAddresses(bad)
	if c.Placement.Replicas < 1 || c.Placement.Replicas > state.MaxReplicas {
		bad("placement.replicas: %d: set it between 1 and %d; an even number helps nobody", c.Placement.Replicas,
			state.MaxReplicas)
	}
	if c.Placement.ReplaceAfter < time.Second || c.Placement.ReplaceAfter > 366*24*time.Hour {
		bad("placement.replace_after: %s: set it between 1s and 8784h", c.Placement.ReplaceAfter)
	}
	if c.Placement.SplitKeys < 0 {
		bad("placement.split_keys: %d: set it to a number of keys, or 0 for never", c.Placement.SplitKeys)
	}
	if c.Placement.SplitRate < 0 {
		bad("placement.split_rate: %d: set it to a number of decisions a second, or 0 for never", c.Placement.SplitRate)
	}
	if len(c.Zone) > state.MaxZoneBytes {
		bad("zone: it has %d bytes: use at most %d", len(c.Zone), state.MaxZoneBytes)
	}
	bounds := fsm.Bounds{MaxKeys: c.Partition.MaxKeys, MaxReplayRecords: c.Partition.MaxReplayRecords}
	if err := bounds.Validate(); err != nil {
		bad("partition: %w", err)
	}
	if c.Clock.MaxDriftPPM < 1 || c.Clock.MaxDriftPPM > clock.MaxMaxDriftPPM {
		bad("clock.max_drift_ppm: %d: set it between 1 and %d", c.Clock.MaxDriftPPM, clock.MaxMaxDriftPPM)
	}
	oneOf := func(field, v string, of ...string) {
		for _, o := range of {
			if v == o {
				return
			}
		}
		bad("%s: %q: write one of %s", field, v, strings.Join(of, ", "))
	}
	oneOf("clock.trust_wall", c.Clock.TrustWall, string(clock.TrustNever), string(clock.TrustBounded))
	oneOf("log_store.backend", c.LogStore.Backend, "wal", "boltdb")
	if c.LogStore.SnapshotLogMiB < 1 || c.LogStore.SnapshotLogMiB > 1<<20 {
		bad("log_store.snapshot_log_mib: %d: set it between 1 and 2^20", c.LogStore.SnapshotLogMiB)
	}
	if m := c.Storage.MinFreeMiB; m == nil || *m < 0 || *m > 1<<30 {
		bad("storage.min_free_mib: set it between 0 and 2^30; 0 switches the check off")
	}
	c.validateTLS(bad)
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	oneOf("log.format", c.Log.Format, "text", "json")
	return errors.Join(errs...)
}

func (c *Config) validateTLS(bad func(format string, args ...any)) {
	if !c.TLS.on() {
		return
	}
	for _, f := range []struct{ field, value, what string }{
		{"tls.ca", c.TLS.CA, "the file with the cluster's CA"},
		{"tls.cert", c.TLS.Cert, "the file with this node's certificate"},
		{"tls.key", c.TLS.Key, "the file with its key"},
	} {
		if f.value == "" {
			bad("%s: name %s, or leave out all of tls", f.field, f.what)
		}
	}
	if c.GossipKeyFile == "" {
		bad("gossip_key_file: name the file with the key of gossip, which `quorate cert gossip` makes, the same on all nodes")
	}
}

func (c *Config) validateAddresses(bad func(format string, args ...any)) {
	fields := map[string]string{}
	for _, a := range c.addresses() {
		if _, _, err := net.SplitHostPort(*a.listen); err != nil {
			bad("%s: %q is not host:port", a.name, *a.listen)
			continue
		}
		if other := fields[*a.listen]; other != "" {
			bad("%s: %s is also %s", a.name, *a.listen, other)
		}
		fields[*a.listen] = a.name
		host, port, err := net.SplitHostPort(*a.advertise)
		switch ip := net.ParseIP(host); {
		case err != nil || port == "0":
			bad("advertise.%s: %q is not host:port with a port that others can dial", a.name, *a.advertise)
		case host == "" || ip != nil && ip.IsUnspecified():
			bad("advertise.%s: %s names no host that the other nodes reach: set it", a.name, *a.advertise)
		}
	}
	if len(c.Join) > maxJoin {
		bad("join: %d addresses: name at most %d nodes", len(c.Join), maxJoin)
	}
	for i, a := range c.Join {
		if _, _, err := net.SplitHostPort(a); err != nil {
			bad("join[%d]: %q is not host:port: write the raft address of a node", i, a)
		}
	}
}

// seeds are the addresses of Join but the own.
func (c *Config) seeds() (out []string) {
	for _, a := range c.Join {
		if a != c.Advertise.Raft && a != c.Raft && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// YAML is c as a configuration file.
func (c *Config) YAML() ([]byte, error) {
	k := koanf.New(".")
	if err := k.Load(structs.Provider(*c, "koanf"), nil); err != nil {
		return nil, err
	}
	return k.Marshal(yaml.Parser())
}

// envPrefix begins the environment's names of fields.
const envPrefix = "QUORATE_"

// LoadConfig reads a configuration file and the environment. Unknown keys of the file are errors. A relative
// data_dir, gossip_key_file or file of tls is taken from the file's folder.
func LoadConfig(path string, environ []string) (*Config, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	k := koanf.New(".")
	if err := k.Load(rawbytes.Provider(src), yaml.Parser()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	known := koanf.New(".")
	if err := known.Load(structs.Provider(Config{}, "koanf"), nil); err != nil {
		return nil, err
	}
	fromEnv := env.Provider(".", env.Opt{
		Prefix:      envPrefix,
		EnvironFunc: func() []string { return environ },
		TransformFunc: func(name, value string) (string, any) {
			name = strings.ToLower(strings.TrimPrefix(name, envPrefix))
			name = strings.ReplaceAll(name, "__", ".")
			// Others set such names too: Kubernetes makes QUORATE_SERVICE_HOST of a service's name. The name of a
			// section is no field either.
			if _, section := known.Get(name).(map[string]any); section || !known.Exists(name) {
				return "", nil
			}
			return name, value
		},
	})
	if err := k.Load(fromEnv, nil); err != nil {
		return nil, fmt.Errorf("environment: %w", err)
	}
	c := &Config{}
	err = k.UnmarshalWithConf("", c, koanf.UnmarshalConf{DecoderConfig: &mapstructure.DecoderConfig{
		Result: c, TagName: "koanf", ErrorUnused: true, WeaklyTypedInput: true,
		DecodeHook: mapstructure.ComposeDecodeHookFunc(
			mapstructure.StringToTimeDurationHookFunc(), mapstructure.StringToSliceHookFunc(",")),
	}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	c.SetDefaults()
	for _, p := range []*string{&c.DataDir, &c.GossipKeyFile, &c.TLS.CA, &c.TLS.Cert, &c.TLS.Key} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(filepath.Dir(path), *p)
		}
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
