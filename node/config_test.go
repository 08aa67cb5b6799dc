package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const goodConfig = `
cluster_id: 6f1c1a52-7a8e-4f0e-9a53-0d4d8f2f8f11
node_id: n1
data_dir: data
grpc: 127.0.0.1:5
http: 127.0.0.1:6
raft: 127.0.0.1:7
gossip: 127.0.0.1:8
join: [127.0.0.1:3, 127.0.0.1:7]
`

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Shows that a file with the required fields is enough, that relative paths are taken from its folder,
// and that the environment wins over it, nested fields included.
func TestLoadConfig(t *testing.T) {
	path := writeConfig(t, goodConfig+"clock: {max_drift_ppm: 300}\n")
	c, err := LoadConfig(path, []string{
		"QUORATE_CLOCK__MAX_DRIFT_PPM=800", "QUORATE_LOG__LEVEL=debug", "QUORATE_ADDR=127.0.0.1:9", "HOME=/x",
		"QUORATE_SERVICE_HOST=10.0.0.1", "QUORATE_PORT_7070_TCP=tcp://10.0.0.1:7070",
		"QUORATE_CLOCK=/a/file",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Clock.MaxDriftPPM != 800 || c.Log.Level != "debug" {
		t.Errorf("drift %d, level %q: want those of the environment", c.Clock.MaxDriftPPM, c.Log.Level)
	}
	if want := filepath.Join(filepath.Dir(path), "data"); c.DataDir != want {
		t.Errorf("data_dir %q, want %q", c.DataDir, want)
	}
	if c.Partition.MaxKeys != 5_000_000 || c.LogStore.Backend != "wal" || c.Placement.Replicas != 3 ||
		c.Placement.ReplaceAfter != 10*time.Minute || c.Clock.TrustWall != "never" || *c.Storage.MinFreeMiB != 256 {
		t.Errorf("defaults: %+v", c)
	}
	if want := (Addresses{"127.0.0.1:5", "127.0.0.1:6", "127.0.0.1:7", "127.0.0.1:8"}); c.Advertise != want {
		t.Errorf("it is reached at %+v, want where it listens", c.Advertise)
	}
	if diff := cmp.Diff([]string{"127.0.0.1:3"}, c.seeds()); diff != "" {
		t.Errorf("it asks: %s", diff)
	}
}

// Shows that the bound of the disk's room can be switched off by a 0, in the file and by the environment.
func TestDiskBoundCanBeSwitchedOff(t *testing.T) {
	inFile, err := LoadConfig(writeConfig(t, goodConfig+"storage: {min_free_mib: 0}\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	byEnv, err := LoadConfig(writeConfig(t, goodConfig), []string{"QUORATE_STORAGE__MIN_FREE_MIB=0"})
	if err != nil {
		t.Fatal(err)
	}
	if *inFile.Storage.MinFreeMiB != 0 || *byEnv.Storage.MinFreeMiB != 0 {
		t.Errorf("%d and %d, want 0", *inFile.Storage.MinFreeMiB, *byEnv.Storage.MinFreeMiB)
	}
}

// Shows that a configuration that is written is read back as the same.
func TestConfigIsReadBack(t *testing.T) {
	c, err := LoadConfig(writeConfig(t, goodConfig), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadConfig(writeConfig(t, string(text)), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff(c, again); diff != "" {
		t.Error(diff)
	}
}

// Shows that each kind of mistake is named, several at once, and that unknown names are mistakes.
func TestConfigMistakes(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		env        []string
		want       []string
	}{
		{"unknown key", goodConfig + "polcy_file: x\n", nil, []string{"polcy_file"}},
		{"unknown nested key", goodConfig + "clock: {drift: 1}\n", nil, []string{"drift"}},
		{"not YAML", "a: [", nil, []string{"node.yaml"}},
		{"empty", "", nil, []string{"cluster_id", "data_dir", "node_id"}},
		{"no node id", strings.Replace(goodConfig, "node_id: n1", "node_id: a/b", 1), nil, []string{"node_id", "a/b"}},
		{"bad values", goodConfig + `
clock: {max_drift_ppm: -1, trust_wall: always}
log_store: {backend: etcd, snapshot_log_mib: -3}
partition: {max_keys: -5}
placement: {replicas: 12, replace_after: 1ms, split_keys: -1, split_rate: -1}
log: {level: loud, format: xml}
storage: {min_free_mib: -1}
`, nil, []string{"storage.min_free_mib", "max_drift_ppm", "trust_wall", "log_store.backend", "snapshot_log_mib", "max_keys", "placement.replicas", "replace_after", "split_keys", "split_rate", "log.level", "log.format"}},
		{"addresses", strings.ReplaceAll(goodConfig, "127.0.0.1:5", "127.0.0.1:6"), nil, []string{"127.0.0.1:6 is also grpc"}},
		{"no port", strings.Replace(goodConfig, "raft: 127.0.0.1:7", "raft: localhost", 1), nil, []string{"raft:", "host:port"}},
		{"a port of 0", strings.Replace(goodConfig, "127.0.0.1:8", "127.0.0.1:0", 1), nil, []string{"advertise.gossip"}},
		{"not to join", goodConfig + "advertise: {raft: here}\n", nil, []string{"advertise.raft"}},
		{"no address to join", strings.Replace(goodConfig, "127.0.0.1:3", "here", 1), nil, []string{"join[0]"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := LoadConfig(writeConfig(t, tc.text), tc.env)
			if err == nil {
				t.Fatal("it is taken")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not name %q", err, w)
				}
			}
		})
	}
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "none.yaml"), nil); err == nil {
		t.Error("a file that is not there is taken")
	}
}
