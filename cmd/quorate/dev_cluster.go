package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/rpc/client"
)

//go:embed example-policy.yaml
var examplePolicy []byte

// devCluster is a local cluster laid out in a directory: a record of what it is, the policy of its birth,
// and for each node a configuration, a data directory and a log.
type devCluster struct {
	dir   string
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
func layDevCluster(dir string, f *devFlags, stderr io.Writer) (*devCluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	record, err := devRecordIn(dir, f, stderr)
	if err != nil {
		return nil, err
	}
	c := &devCluster{dir: dir}
	var peers []node.Peer
	for k := range f.nodes {
		at := func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", f.basePort+10*k+offset) }
		peers = append(peers, node.Peer{ID: fmt.Sprintf("n%d", k), GRPC: at(0), HTTP: at(1), Raft: at(2), Gossip: at(3)})
	}
	for _, p := range peers {
		cfg := &node.Config{
			ClusterID: record.ClusterID, ID: p.ID, Nodes: peers,
			DataDir: filepath.Join(dir, p.ID), PolicyFile: filepath.Join(dir, "policy.yaml"),
		}
		cfg.SetDefaults()
		file := filepath.Join(dir, p.ID+".yaml")
		src, err := cfg.YAML()
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, src, 0o600); err != nil {
			return nil, err
		}
		c.nodes, c.files = append(c.nodes, cfg), append(c.files, file)
		c.logs = append(c.logs, filepath.Join(dir, p.ID+".log"))
	}
	return c, nil
}

// devRecordIn reads the record of an earlier run, or makes it, and with it the policy of the birth.
func devRecordIn(dir string, f *devFlags, stderr io.Writer) (devRecord, error) {
	path := filepath.Join(dir, "dev.json")
	var r devRecord
	src, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(src, &r); err != nil {
			return r, fmt.Errorf("%s: %w; it is not a directory of dev, or is damaged: use another", path, err)
		}
		if r.Nodes != f.nodes {
			return r, fmt.Errorf("%s holds a cluster of %d nodes: start it with --nodes %d, or use another directory",
				dir, r.Nodes, r.Nodes)
		}
		if r.BasePort != f.basePort {
			return r, fmt.Errorf("%s holds a cluster on ports from %d: start it with --base-port %d, or use another directory",
				dir, r.BasePort, r.BasePort)
		}
		if f.policy != "" {
			fmt.Fprintf(stderr, "%s holds a cluster that has its policy already: --policy is not read\n", dir)
		}
		return r, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return r, err
	}
	if found, err := os.ReadDir(dir); err != nil || len(found) > 0 {
		return r, errors.Join(err, fmt.Errorf("%s is not empty and holds no cluster of dev: use another directory", dir))
	}
	text := examplePolicy
	if f.policy != "" {
		if text, err = os.ReadFile(f.policy); err != nil {
			return r, fmt.Errorf("--policy: %w", err)
		}
	}
	if _, err := policy.Parse(f.policy, text); err != nil {
		return r, err
	}
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), text, 0o600); err != nil {
		return r, err
	}
	r = devRecord{ClusterID: uuid.NewString(), Nodes: f.nodes, BasePort: f.basePort}
	src, err = json.Marshal(r)
	if err != nil {
		return r, err
	}
	return r, os.WriteFile(path, src, 0o600)
}

func (c *devCluster) self(i int) node.Peer { return c.nodes[i].Nodes[i] }

func (c *devCluster) logOf(id string) string { return filepath.Join(c.dir, id+".log") }

// awaitReady waits until every node answers and knows who leads.
func (c *devCluster) awaitReady(ctx context.Context, running *devRunning) error {
	ctx, cancel := context.WithTimeout(ctx, devReadyTimeout)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for i := 0; i < len(c.nodes); {
		if c.ready(ctx, i) {
			i++
			continue
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return errors.New("interrupted before the cluster was ready")
			}
			return fmt.Errorf("the cluster is not ready after %s: see the logs in %s", devReadyTimeout, c.dir)
		case <-running.failed:
			return running.why()
		case <-look.C:
		}
	}
	return nil
}

// ready reports whether node i says so itself, and that it is of this cluster: another one may have its
// ports.
func (c *devCluster) ready(ctx context.Context, i int) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.self(i).HTTP+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	if resp.Body.Close() != nil || resp.StatusCode != http.StatusOK {
		return false
	}
	node, err := client.New([]string{c.self(i).GRPC})
	if err != nil {
		return false
	}
	status, err := node.ClusterStatus(ctx)
	return node.Close() == nil && err == nil && status.GetClusterId() == c.nodes[i].ClusterID
}

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
		p := c.self(i)
		out.Nodes = append(out.Nodes, devNode{p.ID, running.pids[i], p.GRPC, p.HTTP, p.Raft, p.Gossip, cfg.DataDir})
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
