package run

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
)

const (
	// calm is between two periods of faults, hold how long a fault lasts; each half of it to the whole.
	calm, hold = 4 * time.Second, 6 * time.Second
	// maxTogether is how many kinds are drawn for one period.
	maxTogether = 3
	// operateWithin bounds an operator's act beside other faults.
	operateWithin = 60 * time.Second
)

// drawn makes faults of some kinds, drawn from a seed.
type drawn struct {
	run    *run
	rand   *rand.Rand
	mu     sync.Mutex          // guards offset
	offset map[string]skew     // of clocks, by node
	base   history.Policy      // that the cluster was made with
	acts   map[string]makeable // by kind
	deck   []string            // kinds that are still to come before any comes again

	membership sync.Mutex // guards the fields below
	spared     int        // spare nodes that were added and removed again
	spareIs    int        // how far the present one is
}

// makeable makes one fault on a node, and returns when it was ended. It reports whether it was in effect.
type makeable func(ctx context.Context, n *cluster.Node, r *rand.Rand) (injected bool, err error)

func newDrawn(r *run) *drawn {
	d := &drawn{run: r, rand: rand.New(rand.NewPCG(r.Seed, 1<<40)), offset: map[string]skew{}}
	d.acts = map[string]makeable{
		"kill": d.kill, "pause": d.pause, "cut-leader": d.cut, "rolling-restart": d.restartAll, "slow-sync": d.slowSync,
		"wall-step": d.wallStep, "wall-jump": d.wallJump, "wall-strobe": d.wallStrobe, "drift": d.drift, "freeze": d.freeze,
		"skew-next-leader": d.skewNextLeader, "transfer": d.transfer, "split": d.split, "merge": d.merge, "move": d.move,
		"tighten": d.tighten, "loosen": d.loosen,
		"power-cut": d.powerCut, "disk-error": d.diskError, "disk-full": d.diskFull, "bit-flip": d.bitFlip,
		"truncate": d.truncate, "rollback": d.rollback, "delete-data": d.deleteData, "replace-node": d.replaceNode,
		"add-node": d.addNode, "drain-node": d.drainNode, "remove-node": d.removeNode,
		"lagging-follower": d.lagBehind, "mixed-versions": d.mixVersions,
		"halves": d.halves, "bridge": d.bridge, "ring": d.ring, "one-way": d.oneWay, "held-replies": d.heldReplies,
		"flapping": d.flapping, "slow-link": d.slowLink, "cut-control": d.cutControl, "cut-clients": d.cutClients,
	}
	return d
}

// takesAway are the kinds that take a node away, of which one is made at a time.
var takesAway = map[string]bool{
	"kill": true, "pause": true, "cut-leader": true, "rolling-restart": true, "halves": true,
	"bridge": true, "ring": true, "one-way": true, "held-replies": true, "flapping": true, "power-cut": true,
	"disk-error": true, "disk-full": true, "bit-flip": true, "truncate": true, "rollback": true, "delete-data": true,
	"replace-node": true, "lagging-follower": true, "mixed-versions": true,
}

// Run makes faults until ctx ends, and then waits for those that are on.
func (d *drawn) Run(ctx context.Context) error {
	d.base = d.run.policies.Present()
	for d.run.sleep(ctx, calm/2+rand.N(calm/2)) {
		if d.rand.IntN(4) == 0 {
			continue
		}
		if err := d.period(ctx, d.draw()); err != nil {
			return err
		}
	}
	return nil
}

// draw draws the kinds of a period, as cards from a deck: each comes once before any comes again. One that cannot come
// beside the others stays on top.
func (d *drawn) draw() (kinds []string) {
	away := false
	for range 1 + d.rand.IntN(maxTogether) {
		if len(d.deck) == 0 {
			d.deck = slices.Clone(d.run.Options.Faults)
			d.rand.Shuffle(len(d.deck), func(i, k int) { d.deck[i], d.deck[k] = d.deck[k], d.deck[i] })
		}
		kind := d.deck[len(d.deck)-1]
		if slices.Contains(kinds, kind) || away && takesAway[kind] {
			break
		}
		d.deck = d.deck[:len(d.deck)-1]
		away = away || takesAway[kind]
		kinds = append(kinds, kind)
	}
	return kinds
}

// period makes faults beside each other.
func (d *drawn) period(ctx context.Context, kinds []string) error {
	errs := make([]error, len(kinds))
	var making sync.WaitGroup
	for i, kind := range kinds {
		n := d.target(ctx, kind)
		r := rand.New(rand.NewPCG(d.rand.Uint64(), uint64(i)))
		making.Go(func() {
			began := d.run.now()
			// What was begun is ended in order, whatever ends.
			injected, err := d.act(context.WithoutCancel(ctx), kind, n, r)
			e := history.Event{
				At: began, Until: d.run.now(), Kind: "fault", What: kind, Nodes: []string{n.ID}, Injected: injected,
			}
			if !injected && operated[kind] {
				e.Kind, e.Text = "operate", "refused, or not known to be done"
			}
			errs[i] = errors.Join(err, d.run.recorder.Event(&e))
		})
	}
	making.Wait()
	return errors.Join(errs...)
}

// operated are the kinds that are an operator's acts, which may be refused beside other faults.
var operated = map[string]bool{
	"transfer": true, "skew-next-leader": true, "split": true, "merge": true, "move": true,
	"tighten": true, "loosen": true, "add-node": true, "drain-node": true, "remove-node": true, "lagging-follower": true,
}

const (
	// tries is how often an operator's act is tried, tryPause the pause in between.
	tries    = 4
	tryPause = 2 * time.Second
)

// act makes a fault. An operator whose act is refused tries again.
func (d *drawn) act(ctx context.Context, kind string, n *cluster.Node, r *rand.Rand) (injected bool, err error) {
	for k := 1; ; k++ {
		injected, err = d.acts[kind](ctx, n, r)
		if injected || err != nil || !operated[kind] || k == tries || !d.run.sleep(ctx, tryPause) {
			return injected, err
		}
	}
}

// target draws whom a fault is aimed at: every second time, and for some kinds always, one that leads.
func (d *drawn) target(ctx context.Context, kind string) *cluster.Node {
	n := d.members()[d.rand.IntN(d.run.Nodes)]
	if kind != "cut-leader" && d.rand.IntN(2) == 0 {
		return n
	}
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	s, err := d.run.cluster.Status(ctx)
	if err != nil {
		return n
	}
	groups := s.Groups()
	if leader := d.run.cluster.Node(groups[d.rand.IntN(len(groups))].Leader); slices.Contains(d.members(), leader) {
		return leader
	}
	return n
}

// held waits as long as a fault lasts.
func held(r *rand.Rand) { <-time.After(hold/4 + time.Duration(r.Int64N(int64(hold*3/4)))) }

// sleep lets time pass, and reports whether ctx goes on.
func (r *run) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
