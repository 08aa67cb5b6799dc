package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/google/uuid"
	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/rawbytes"
	"github.com/knadh/koanf/providers/structs"
	"github.com/knadh/koanf/v2"

	"github.com/quorate/quorate/clock"
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
	// ID is this node's id, which must be among Nodes. Required.
	ID string `koanf:"node_id"`
	// DataDir holds everything that lasts. A directory belongs to one node for ever. Required.
	DataDir string `koanf:"data_dir"`
	// Nodes are all nodes of the cluster, this one included. Required; the same on every node.
	Nodes []Peer `koanf:"nodes"`
	// PolicyFile is the policy of the cluster's birth, revision 1. It is read only until then.
	PolicyFile string `koanf:"policy_file"`
	// Partition is the quota partition.
	Partition PartitionConfig `koanf:"partition"`
	Clock     ClockConfig     `koanf:"clock"`
	Raft      RaftConfig      `koanf:"raft"`
	Storage   StorageConfig   `koanf:"storage"`
	HTTP      HTTPConfig      `koanf:"http"`
	TLS       TLSConfig       `koanf:"tls"`
	Log       LogConfig       `koanf:"log"`
}

// Peer is one node's id and where it listens, each host:port.
type Peer struct {
	ID     string `koanf:"id"`
	GRPC   string `koanf:"grpc"`
	HTTP   string `koanf:"http"`
	Raft   string `koanf:"raft"`
	Gossip string `koanf:"gossip"`
}

// PartitionConfig bounds the partition. The bounds decide answers, so they are part of the replicated
// state from the birth on, and later changes here do nothing.
type PartitionConfig struct {
	ID string `koanf:"id"`
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

// RaftConfig is the replication of the partition.
type RaftConfig struct {
	// Log is where entries are kept: wal (default) or boltdb.
	Log string `koanf:"log"`
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

// SetDefaults fills in what is not set.
func (c *Config) SetDefaults() {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	bounds := fsm.DefaultBounds()
	def(&c.Partition.ID, "p0")
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
	def(&c.Raft.Log, "wal")
	if c.Raft.SnapshotLogMiB == 0 {
		c.Raft.SnapshotLogMiB = 64
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
	if _, ok := c.self(); !ok {
		bad("node_id: %q is not among nodes: add it there", c.ID)
	}
	c.validateNodes(bad)
	if !idPattern.MatchString(c.Partition.ID) {
		bad("partition.id: %q: use letters, digits, '.', '_' and '-', at most 63", c.Partition.ID)
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
	oneOf("raft.log", c.Raft.Log, "wal", "boltdb")
	if c.Raft.SnapshotLogMiB < 1 || c.Raft.SnapshotLogMiB > 1<<20 {
		bad("raft.snapshot_log_mib: %d: set it between 1 and 2^20", c.Raft.SnapshotLogMiB)
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
	for i, n := range c.Nodes {
		for _, a := range []struct{ name, addr string }{{"grpc", n.GRPC}, {"http", n.HTTP}, {"raft", n.Raft}} {
			host, _, err := net.SplitHostPort(a.addr)
			if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
				bad("nodes[%d].%s: %s names no host that the other nodes reach", i, a.name, a.addr)
			}
		}
	}
}

func (c *Config) validateNodes(bad func(format string, args ...any)) {
	ids, addrs := map[string]bool{}, map[string]string{}
	for i, n := range c.Nodes {
		if !idPattern.MatchString(n.ID) {
			bad("nodes[%d].id: %q: use letters, digits, '.', '_' and '-', at most 63", i, n.ID)
		}
		if ids[n.ID] {
			bad("nodes[%d].id: %q is listed twice", i, n.ID)
		}
		ids[n.ID] = true
		for _, a := range []struct{ name, addr string }{{"grpc", n.GRPC}, {"http", n.HTTP}, {"raft", n.Raft}} {
			field := fmt.Sprintf("nodes[%d].%s", i, a.name)
			if _, _, err := net.SplitHostPort(a.addr); err != nil {
				bad("%s: %q is not host:port", field, a.addr)
			} else if other := addrs[a.addr]; other != "" {
				bad("%s: %s is also %s", field, a.addr, other)
			}
			addrs[a.addr] = field
		}
	}
}

// self is this node among Nodes.
func (c *Config) self() (Peer, bool) {
	for _, n := range c.Nodes {
		if n.ID == c.ID && n.ID != "" {
			return n, true
		}
	}
	return Peer{}, false
}

// peer is the node with an id.
func (c *Config) peer(id string) (Peer, bool) {
	for _, p := range c.Nodes {
		if p.ID == id {
			return p, true
		}
	}
	return Peer{}, false
}

// ids are those of all nodes, in the order in which they are written.
func (c *Config) ids() (out []string) {
	for _, p := range c.Nodes {
		out = append(out, p.ID)
	}
	return out
}

// others are all nodes but this one.
func (c *Config) others() (out []Peer) {
	for _, p := range c.Nodes {
		if p.ID != c.ID {
			out = append(out, p)
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
// data_dir, policy_file or file of tls is taken from the file's folder.
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
			// Others set such names too: Kubernetes makes QUORATE_SERVICE_HOST of a service's name.
			if !known.Exists(name) {
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
	}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	c.SetDefaults()
	for _, p := range []*string{&c.DataDir, &c.PolicyFile, &c.TLS.CA, &c.TLS.Cert, &c.TLS.Key} {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(filepath.Dir(path), *p)
		}
	}
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}
