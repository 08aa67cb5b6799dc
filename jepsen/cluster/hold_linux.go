package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/quorate/quorate/jepsen/process"
)

// holdFile tells nodes whose program has the build tag chaos where to be held: see the package internal/guard.
const holdFile = "hold"

// Hold has the first node that comes to a point stop itself there; with wait only what it was about to do waits.
// There is one hold at a time.
func (c *Cluster) Hold(point string, wait bool) error {
	if err := c.Unhold(); err != nil {
		return err
	}
	if wait {
		point += " wait"
	}
	made := c.file(holdFile + ".made")
	if err := os.WriteFile(made, []byte(point+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(made, c.file(holdFile))
}

// Unhold lets what waits at a point go on, and holds nobody any more. A node that has stopped itself is to be resumed.
func (c *Cluster) Unhold() error {
	for _, file := range []string{holdFile, holdFile + ".held"} {
		if err := os.Remove(c.file(file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// held is the node that is held; nil while none is.
func (c *Cluster) held() *Node {
	text, err := os.ReadFile(c.file(holdFile + ".held"))
	if err != nil || !strings.HasSuffix(string(text), "\n") {
		return nil
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil
	}
	for _, n := range c.Nodes {
		if n.PID() == pid {
			return n
		}
	}
	return nil
}

// AwaitHeld waits until a node is held for a plan, and, unless only something in it waits, stands still. It fails when
// the plan ends before.
func (c *Cluster) AwaitHeld(ctx context.Context, wait bool, plan uint64) (*Node, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The commands take their time when the node that they ask stands still, which is to be noticed at once.
	ended := make(chan Plan, 1)
	go func() {
		if p, err := c.AwaitPlan(ctx, plan); err == nil {
			ended <- p
		}
	}()
	var n *Node
	var over error
	err := process.Await(ctx, "a node is held", func() bool {
		if n = c.held(); n != nil {
			return wait || n.Stands()
		}
		select {
		case p := <-ended:
			over = fmt.Errorf("plan %d ended before a node was held: %+v", plan, p)
		default:
		}
		return over != nil
	})
	return n, errors.Join(err, over)
}
