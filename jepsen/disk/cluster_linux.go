package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

const (
	// probeTimeout bounds one look at a node.
	probeTimeout = time.Second
	// cleanTimeout bounds the end of a cluster.
	cleanTimeout = 30 * time.Second
	// clusterID is that of every cluster here: each has its own directory and ports.
	clusterID = "3b0c1c52-7a8e-4f0e-9a53-0d4d8f2f8f11"
)

// The class of the load, which has room for every decision of a run, and remembers it for the longest time
// that a policy can ask for.
const (
	class         = "strict"
	replayHorizon = 15 * time.Minute
	firstVersion  = "disk"
	policyText    = `
version: ` + firstVersion + `
default: {limits: [{name: default, limit: 1, window: 60s}]}
classes:
  strict:
    limits: [{name: hourly, limit: 1000000, window: 1h}]
    replay_horizon: 15m
    timeout: 5s
`
)

// Options are what differs between clusters.
type Options struct {
	Binary         string   // an absolute path
	Environment    []string // of the nodes, as NAME=value, beside the test's own
	ImageMiB       int64    // the size of each disk; 0 means 128
	SnapshotLogMiB int64    // a snapshot after so much log; 0 means 1, so that there are many
	MinFreeMiB     int64    // with less room a node takes no checks; 0 means that it does not look
}

// Cluster is three nodes, each on an image of its own.
type Cluster struct {
	Nodes []*Node

	options Options
	dir     string
}

// NewCluster lays a cluster out in dir, which must exist, and starts it.
func NewCluster(ctx context.Context, dir string, o Options) (_ *Cluster, err error) {
	if o.ImageMiB == 0 {
		o.ImageMiB = 128
	}
	if o.SnapshotLogMiB == 0 {
		o.SnapshotLogMiB = 1
	}
	base, err := process.FreePorts(3)
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: o, dir: dir}
	defer func() { //nolint:contextcheck // ctx may be what ended
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(policyText), 0o600); err != nil {
		return nil, err
	}
	for k := range 3 {
		if err := c.add(k, base); err != nil {
			return nil, err
		}
	}
	for _, n := range c.Nodes {
		if err := os.WriteFile(n.Config, c.configuration(n), 0o600); err != nil {
			return nil, err
		}
	}
	if err := c.Start(c.Nodes...); err != nil {
		return nil, err
	}
	return c, c.form(ctx)
}

// form makes the cluster, and waits until both its groups have all replicas and the nodes are ready.
func (c *Cluster) form(ctx context.Context) error {
	var last error
	if err := process.Await(ctx, "the cluster can be made", func() bool {
		_, last = c.Command(ctx, "cluster", "init", "--partitions", "1", "--timeout", "10s",
			"--policy", filepath.Join(c.dir, "policy.yaml"))
		return last == nil
	}); err != nil {
		return errors.Join(err, last)
	}
	if err := c.AwaitReady(ctx, c.Nodes...); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := c.AwaitVote(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) add(k, base int) error {
	n := &Node{Node: process.NewNode(c.options.Binary, c.dir, k, base)}
	var err error
	if n.Image, err = NewImage(
		filepath.Join(c.dir, n.ID+".img"), filepath.Join(c.dir, n.ID), c.options.ImageMiB); err != nil {
		return err
	}
	n.DataDir, n.Environment = filepath.Join(n.Image.Dir(), "data"), c.options.Environment
	c.Nodes = append(c.Nodes, n)
	return nil
}

func (c *Cluster) configuration(self *Node) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "cluster_id: %s\nnode_id: %s\ndata_dir: %s\n", clusterID, self.ID, self.DataDir)
	fmt.Fprintf(&b, "grpc: %q\nhttp: %q\nraft: %q\ngossip: %q\n", self.GRPC, self.HTTP, self.Raft, self.Gossip)
	fmt.Fprintf(&b, "log_store: {snapshot_log_mib: %d}\nstorage: {min_free_mib: %d}\njoin:\n",
		c.options.SnapshotLogMiB, c.options.MinFreeMiB)
	for _, n := range c.Nodes {
		fmt.Fprintf(&b, "  - %q\n", n.Raft)
	}
	return []byte(b.String())
}

// Start starts nodes that are down.
func (c *Cluster) Start(nodes ...*Node) error {
	for _, n := range nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	return nil
}

// StartAll starts all nodes and waits until they are ready.
func (c *Cluster) StartAll(ctx context.Context) error {
	if err := c.Start(c.Nodes...); err != nil {
		return err
	}
	return c.AwaitReady(ctx, c.Nodes...)
}

// AwaitReady waits until the nodes are ready. It fails at once, with Ended, when one has ended.
func (c *Cluster) AwaitReady(ctx context.Context, nodes ...*Node) error {
	var down *Node
	var waiting string
	err := process.Await(ctx, "all are ready", func() bool {
		waiting = ""
		for _, n := range nodes {
			switch {
			case !n.Up():
				down = n
				return true
			case waiting == "" && !n.Ready(ctx):
				waiting = n.ID
			}
		}
		return waiting == ""
	})
	if down != nil {
		_, lines, err := down.AwaitEnd(ctx)
		return errors.Join(&Ended{Node: down.ID, Lines: lines}, err)
	}
	if err != nil {
		return fmt.Errorf("%w; %s is not", err, waiting)
	}
	return nil
}

// Ended is the error of a node that ended instead of becoming ready.
type Ended struct {
	Node  string
	Lines []string // what it said
}

func (e *Ended) Error() string {
	return fmt.Sprintf("node %s ended: %s", e.Node, strings.Join(e.Lines, " / "))
}

// CutPower cuts the power of nodes at the same instant: first of all their disks, then of all their processes.
// Then the disks are there again, as the cut left them, and the nodes are down.
func (c *Cluster) CutPower(ctx context.Context, nodes ...*Node) error {
	for _, n := range nodes {
		if err := n.Image.Shutdown(); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.SignalKill(); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.Kill(); err != nil {
			return err
		}
		if err := errors.Join(n.Image.Unmount(ctx), n.Image.Mount()); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the processes and removes the images.
func (c *Cluster) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.Kill())
	}
	for _, n := range c.Nodes {
		errs = append(errs, n.Image.Remove(ctx))
	}
	return errors.Join(errs...)
}

// Others are the nodes beside one.
func (c *Cluster) Others(than *Node) []*Node {
	var others []*Node
	for _, n := range c.Nodes {
		if n != than {
			others = append(others, n)
		}
	}
	return others
}
