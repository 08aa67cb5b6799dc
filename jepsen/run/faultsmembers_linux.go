package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/process"
)

const (
	// spares are nodes that may be added, one after another: an id that was removed is not used again.
	spares = 4
	// lag is for how long a follower is cut off until the others have compacted what it lacks.
	lag = 75 * time.Second
	// caughtUpWithin is how long it may take until it was sent a snapshot.
	caughtUpWithin = 30 * time.Second
)

// How far the spare node of the present is.
const (
	spareAway = iota
	spareAdded
	spareDrained
)

// members are the nodes that the cluster was made of, at which clients ask and faults are aimed.
func (d *drawn) members() []*cluster.Node { return d.run.cluster.Nodes[:d.run.Nodes] }

// spare is the node that is added next, or was added last; nil when all have been.
func (d *drawn) spare() *cluster.Node {
	if d.spared == spares {
		return nil
	}
	return d.run.cluster.Nodes[d.run.Nodes+d.spared]
}

// advance takes the spare node so far: added, drained, removed. It reports whether it is there, and was not before.
func (d *drawn) advance(ctx context.Context, to int) (bool, error) {
	d.membership.Lock()
	defer d.membership.Unlock()
	ctx, cancel := context.WithTimeout(ctx, replacedWithin)
	defer cancel()
	if to == d.spareIs {
		return false, nil
	}
	steps := []func(context.Context, *cluster.Node) (bool, error){d.add, d.drain, d.remove}
	for {
		n := d.spare()
		if n == nil {
			return false, nil
		}
		done, err := steps[d.spareIs](ctx, n)
		if err != nil || !done {
			return false, err
		}
		if d.spareIs = (d.spareIs + 1) % len(steps); d.spareIs == spareAway {
			d.spared++
		}
		if d.spareIs == to {
			return true, nil
		}
	}
}

func (d *drawn) addNode(ctx context.Context, _ *cluster.Node, _ *rand.Rand) (bool, error) {
	return d.advance(ctx, spareAdded)
}

func (d *drawn) drainNode(ctx context.Context, _ *cluster.Node, _ *rand.Rand) (bool, error) {
	return d.advance(ctx, spareDrained)
}

func (d *drawn) removeNode(ctx context.Context, _ *cluster.Node, _ *rand.Rand) (bool, error) {
	return d.advance(ctx, spareAway)
}

// An operator's step may be refused beside other faults, or nobody may be there to do it: then it is tried again later.

func (d *drawn) add(ctx context.Context, n *cluster.Node) (bool, error) {
	if !n.Up() {
		if err := n.Start(); err != nil {
			return false, err
		}
	}
	err := d.run.cluster.AwaitNode(ctx, n.ID, "waits to be added", func(i cluster.NodeInfo) bool {
		return i.State == "waiting" || i.State == "active"
	})
	if err == nil {
		_, err = d.run.cluster.Command(ctx, "node", "add", n.ID)
	}
	if err == nil {
		err = d.run.cluster.AwaitNode(ctx, n.ID, "is one of the cluster", func(i cluster.NodeInfo) bool {
			return i.State == "active" && i.Control != ""
		})
	}
	return err == nil, nil
}

func (d *drawn) drain(ctx context.Context, n *cluster.Node) (bool, error) {
	_, err := d.run.cluster.Command(ctx, "node", "drain", n.ID, "--wait")
	return err == nil, nil
}

func (d *drawn) remove(ctx context.Context, n *cluster.Node) (bool, error) {
	if _, err := d.run.cluster.Command(ctx, "node", "remove", n.ID); err != nil {
		return false, nil //nolint:nilerr // see above
	}
	return true, errors.Join(n.Kill(), d.ended(n, "removed", ""))
}

// mixVersions has a node run another build of the program for a while, and then the first one again.
func (d *drawn) mixVersions(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	own := n.Binary
	for _, binary := range []string{d.run.Release, own} {
		if err := errors.Join(n.Kill(), d.ended(n, "another build", binary)); err != nil {
			return false, err
		}
		n.Binary = binary
		if err := n.Start(); err != nil {
			return false, err
		}
		held(r)
	}
	return true, nil
}

// lagBehind cuts a node off until it has to be sent a snapshot. It was in effect when one was.
func (d *drawn) lagBehind(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	before, err := d.installed(n)
	if err != nil {
		return false, err
	}
	ids := d.ids(n, r)
	stopped, err := d.carryWhile(both(ids[:1], ids[1:]), process.Condition{Drop: true}, func() { <-time.After(lag) })
	if err != nil || !stopped {
		return false, err
	}
	within, cancel := context.WithTimeout(ctx, caughtUpWithin)
	defer cancel()
	return process.Await(within, "a snapshot", func() bool {
		now, err := d.installed(n)
		return err == nil && now > before
	}) == nil, nil
}

// installed is how often a snapshot took the place of a state of a node.
func (d *drawn) installed(n *cluster.Node) (times int, err error) {
	files, err := filepath.Glob(filepath.Join(d.run.Dir, fmt.Sprintf("applied-%s-*.jsonl", n.ID)))
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		times += bytes.Count(text, []byte(`"restored":true`))
	}
	return times, nil
}
