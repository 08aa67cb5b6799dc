package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/node"
)

const (
	// maxDevNodes bounds a local cluster. Five are the most that vote in one group.
	maxDevNodes = 5
	// maxDevPartitions is more than anybody tries on one machine.
	maxDevPartitions = 32
	// devReadyTimeout is how long a local cluster may take to be ready.
	devReadyTimeout = 30 * time.Second
)

// devFlags are the flags of dev.
type devFlags struct {
	nodes      int
	partitions int
	processes  bool
	basePort   int
	dataDir    string
	policy     string
}

func newDev(o *options) *cobra.Command {
	f := &devFlags{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a cluster on this machine, to try things",
		Long: `dev runs a cluster on loopback: real Raft, real files, an example policy. Node k, from 0, listens on
base+10k for gRPC, then +1 HTTP, +2 Raft and +3 gossip. It ends with its nodes on SIGINT or SIGTERM. Started
again on the same --data-dir it goes on where it was; without one the files are temporary. --partitions and --policy
count when the cluster is made.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.nodes < 1 || f.nodes > maxDevNodes:
				return usagef(cmd, "--nodes is %d: use 1 to %d", f.nodes, maxDevNodes)
			case f.basePort < 1 || f.basePort+10*(f.nodes-1)+3 > 65535:
				return usagef(cmd, "--base-port %d leaves no room for the nodes' ports", f.basePort)
			case f.partitions < 0 || f.partitions > maxDevPartitions:
				return usagef(cmd, "--partitions is %d: use 1 to %d", f.partitions, maxDevPartitions)
			}
			return runDev(cmd.Context(), f, o.output, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&f.nodes, "nodes", 3, "number of nodes")
	flags.IntVar(&f.partitions, "partitions", 0, "number of partitions that it begins with (default: as many as nodes)")
	flags.BoolVar(&f.processes, "processes", false, "run each node as a process of its own")
	flags.IntVar(&f.basePort, "base-port", 7070, "first port")
	flags.StringVar(&f.dataDir, "data-dir", "", "where the nodes keep their files (default: temporary)")
	flags.StringVar(&f.policy, "policy", "", "the cluster's first policy (default: an example)")
	return cmd
}

func runDev(ctx context.Context, f *devFlags, format outputFormat, stdout, stderr io.Writer) (err error) {
	dir := f.dataDir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "quorate-dev-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	c, err := layDevCluster(dir, f)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	start := c.startNodes
	if f.processes {
		start = c.startProcesses
	}
	running, err := start(ctx, stderr)
	if err != nil {
		return err
	}
	if err := c.bringUp(ctx, f, running, stderr); err != nil {
		return errors.Join(err, running.stop())
	}
	running.report()
	if err := c.announce(format, stdout, running); err != nil {
		return errors.Join(err, running.stop())
	}
	<-ctx.Done()
	return running.stop()
}

// devRunning is the nodes of a local cluster while they run.
type devRunning struct {
	pids []int
	// failed is closed when a node has ended before the cluster was ready; why says which.
	failed <-chan struct{}
	why    func() error
	// report begins to report nodes that end. Before the cluster is ready, why does.
	report func()
	stop   func() error
}

// startProcesses starts each node as a process of its own.
func (c *devCluster) startProcesses(_ context.Context, stderr io.Writer) (*devRunning, error) {
	cs := newChildren()
	stopping := make(chan struct{})
	stop := func() error {
		close(stopping)
		return cs.stop()
	}
	for i, cfg := range c.nodes {
		if err := cs.add(cfg.ID, c.files[i], c.logs[i]); err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	r := &devRunning{stop: stop, report: func() { cs.report(stderr, stopping) }}
	failed := make(chan struct{})
	r.failed = failed
	var first *child
	go func() {
		first = cs.firstEnded(stopping)
		if first != nil {
			close(failed)
		}
	}()
	r.why = func() error {
		return fmt.Errorf("node %s ended: %s; the last line of its log: %s",
			first.id, first.how(), lastLine(c.logOf(first.id)))
	}
	for _, ch := range cs.list {
		r.pids = append(r.pids, ch.cmd.Process.Pid)
	}
	return r, nil
}

// startNodes starts the nodes in this process.
func (c *devCluster) startNodes(ctx context.Context, stderr io.Writer) (*devRunning, error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, len(c.nodes))
	failed := make(chan struct{})
	var once sync.Once
	var first error // set before failed is closed
	var logs []*os.File
	started := 0
	stop := func() error {
		cancel()
		var errs []error
		for range started {
			errs = append(errs, <-ended)
		}
		for _, f := range logs {
			errs = append(errs, f.Close())
		}
		return errors.Join(errs...)
	}
	// A node reports its end itself once report was called; until then why does.
	var reporting atomic.Bool
	r := &devRunning{
		stop: stop, report: func() { reporting.Store(true) }, failed: failed, why: func() error { return first },
	}
	for i, cfg := range c.nodes {
		log, err := os.OpenFile(c.logs[i], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		logs = append(logs, log)
		n, err := node.Start(ctx, cfg, readVersion().Version, newLogger(log, cfg.Log), die)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("node %s: %w", cfg.ID, portTaken(err, "give another --base-port")), stop())
		}
		started++
		go func() {
			err := n.Run(ctx)
			if err != nil {
				err = fmt.Errorf("node %s ended: %w", cfg.ID, err)
			}
			switch {
			case err == nil:
			case reporting.Load():
				report(stderr, fmt.Errorf("%w; it stays down", err))
			default:
				once.Do(func() {
					first = err
					close(failed)
				})
				err = nil // why has it
			}
			ended <- err
		}()
		r.pids = append(r.pids, os.Getpid())
	}
	return r, nil
}

// lastLine is the last line of a file, to show why a process ended.
func lastLine(path string) string {
	const most = 4096
	f, err := os.Open(path)
	if err != nil {
		return "(no log: " + err.Error() + ")"
	}
	defer f.Close() //nolint:errcheck // only read from
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return "(unreadable: " + err.Error() + ")"
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return "(unreadable: " + err.Error() + ")"
	}
	return filepath.Base(path) + ": " + trailing(string(b))
}
