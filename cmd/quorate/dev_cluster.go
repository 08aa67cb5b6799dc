package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/quorate/quorate/node"
)

//go:embed example-policy.yaml
var examplePolicy []byte

// devPolicyName is the file of the cluster's first policy, in its directory.
const devPolicyName = "policy.yaml"

// devCluster is a local cluster laid out in a directory: a record of what it is, its first policy, and for each
// node a configuration, a data directory and a log.
type devCluster struct {
	dir   string
	found bool // by an earlier run
	nodes []*node.Config
	files []string // configurations
	logs  []string
}

// devRecord is dev.json: what must stay the same when a local cluster is started again.
type devRecord struct {
	ClusterID string `json:"cluster_id"`
	Nodes     int    `json:"nodes"`
	BasePort  int    `json:"base_port"`
}

// layDevCluster makes the directory's files, or finds those of an earlier run.
func layDevCluster(dir string, f *devFlags) (*devCluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	record, found, err := devRecordIn(dir, f)
	if err != nil {
		return nil, err
	}
	c := &devCluster{dir: dir, found: found}
	at := func(k, offset int) string { return fmt.Sprintf("127.0.0.1:%d", f.basePort+10*k+offset) }
	var join []string
	for k := range f.nodes {
		join = append(join, at(k, 2))
	}
	for k := range f.nodes {
		id := fmt.Sprintf("n%d", k)
		cfg := &node.Config{
			ClusterID: record.ClusterID, ID: id, DataDir: filepath.Join(dir, id),
			GRPC: at(k, 0), HTTP: at(k, 1), Raft: at(k, 2), Gossip: at(k, 3), Join: join,
		}
		cfg.SetDefaults()
		file := filepath.Join(dir, id+".yaml")
		src, err := cfg.YAML()
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, src, 0o600); err != nil {
			return nil, err
		}
		c.nodes, c.files = append(c.nodes, cfg), append(c.files, file)
		c.logs = append(c.logs, c.logOf(id))
	}
	return c, nil
}

// devRecordIn reads the record of an earlier run, or makes it, and with it the cluster's first policy.
func devRecordIn(dir string, f *devFlags) (r devRecord, found bool, err error) {
	path := filepath.Join(dir, "dev.json")
	src, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(src, &r); err != nil {
			return r, true, fmt.Errorf("%s: %w; it is not a directory of dev, or is damaged: use another", path, err)
		}
		return r, true, r.contradicted(dir, f)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return r, false, err
	}
	if found, err := os.ReadDir(dir); err != nil || len(found) > 0 {
		return r, false,
			errors.Join(err, fmt.Errorf("%s is not empty and holds no cluster of dev: use another directory", dir))
	}
	name, text := "the example policy", examplePolicy
	if f.policy != "" {
		name = f.policy
		if text, err = os.ReadFile(f.policy); err != nil {
			return r, false, fmt.Errorf("--policy: %w", err)
		}
	}
	if _, err := parsePolicy(name, text); err != nil {
		return r, false, err
	}
	if err := os.WriteFile(filepath.Join(dir, devPolicyName), text, 0o600); err != nil {
		return r, false, err
	}
	r = devRecord{ClusterID: uuid.NewString(), Nodes: f.nodes, BasePort: f.basePort}
	src, err = json.Marshal(r)
	if err != nil {
		return r, false, err
	}
	return r, false, os.WriteFile(path, src, 0o600)
}

// contradicted reports which flag does not fit the cluster that a directory holds.
func (r devRecord) contradicted(dir string, f *devFlags) error {
	if r.Nodes != f.nodes {
		return fmt.Errorf("%s holds a cluster of %d nodes: start it with --nodes %d, or use another directory",
			dir, r.Nodes, r.Nodes)
	}
	if r.BasePort != f.basePort {
		return fmt.Errorf("%s holds a cluster on ports from %d: start it with --base-port %d, or use another directory",
			dir, r.BasePort, r.BasePort)
	}
	return nil
}

func (c *devCluster) logOf(id string) string { return filepath.Join(c.dir, id+".log") }

// devNode is a node in the line that -o json prints.
type devNode struct {
	ID      string `json:"id"`
	PID     int    `json:"pid"`
	GRPC    string `json:"grpc"`
	HTTP    string `json:"http"`
	Raft    string `json:"raft"`
	Gossip  string `json:"gossip"`
	DataDir string `json:"data_dir"`
}

// announce tells that the cluster is ready, and what to try.
func (c *devCluster) announce(format outputFormat, w io.Writer, running *devRunning) error {
	var out struct {
		Nodes []devNode `json:"nodes"`
	}
	for i, cfg := range c.nodes {
		out.Nodes = append(out.Nodes,
			devNode{cfg.ID, running.pids[i], cfg.GRPC, cfg.HTTP, cfg.Raft, cfg.Gossip, cfg.DataDir})
	}
	if format == outputJSON || format == outputYAML {
		return format.print(w, out, nil)
	}
	return c.explain(w, out.Nodes)
}

// explain prints the nodes and lines to paste. They name all addresses, so they work with a node down.
func (c *devCluster) explain(w io.Writer, nodes []devNode) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	var grpc, web []string
	fmt.Fprintf(w, "Quorate is ready: %d node(s), files in %s\n\n", len(nodes), c.dir)
	for _, n := range nodes {
		fmt.Fprintf(w, "  %s  pid %d  gRPC %s  HTTP %s\n", n.ID, n.PID, n.GRPC, n.HTTP)
		grpc, web = append(grpc, n.GRPC), append(web, n.HTTP)
	}
	addr := ""
	if strings.Join(grpc, ",") != defaultAddrs {
		addr = " --addr " + strings.Join(grpc, ",")
	}
	q := shellQuote(exe)
	_, err = fmt.Fprintf(w, `
Try, in another terminal (the example policy caps convert at 3 per rolling 60 s for each principal):

  %[1]s check u42 convert%[2]s      # three times: allowed; the fourth: denied, with the wait
  %[1]s peek u42 convert%[2]s
  %[1]s cluster status%[2]s

The same over HTTP, from the first node that is up:

  for a in %[3]s; do
    curl -s -d '{"principal":"u43","api_class":"convert","decision_id":"r1"}' http://$a/v1/check && break
  done

Ctrl-C ends it.
`, q, addr, strings.Join(web, " "))
	return err
}

// shellQuote writes a word for a POSIX shell.
func shellQuote(s string) string {
	if strings.IndexFunc(s, func(r rune) bool {
		return !strings.ContainsRune("/._-+:@", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// trailing is the last line of text.
func trailing(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return lines[len(lines)-1]
}
