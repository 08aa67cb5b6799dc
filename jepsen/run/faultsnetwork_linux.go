package run

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/process"
)

// flap is how long a link that flaps is up, and down.
const flap = 200 * time.Millisecond

// way is one direction between two nodes, by their ids.
type way struct{ from, to string }

// both are the two directions between each of some nodes and each of others.
func both(some, others []string) (ways []way) {
	for _, a := range some {
		for _, b := range others {
			if a != b {
				ways = append(ways, way{a, b}, way{b, a})
			}
		}
	}
	return ways
}

// ids are all nodes' in a drawn order, n first.
func (d *drawn) ids(n *cluster.Node, r *rand.Rand) []string {
	out := []string{n.ID}
	for _, k := range r.Perm(len(d.run.cluster.Nodes)) {
		if id := d.run.cluster.Nodes[k].ID; id != n.ID {
			out = append(out, id)
		}
	}
	return out
}

// carry has some ways carry as it is told for as long as a fault lasts. It reports whether that stopped anything.
func (d *drawn) carry(r *rand.Rand, ways []way, c process.Condition) (bool, error) {
	return d.carryWhile(ways, c, func() { held(r) })
}

func (d *drawn) carryWhile(ways []way, c process.Condition, wait func()) (bool, error) {
	w, before := d.run.cluster.Network, d.stopped(ways)
	for _, l := range ways {
		w.Set(l.from, l.to, c)
	}
	wait()
	for _, l := range ways {
		w.Set(l.from, l.to, process.Condition{})
	}
	return d.stopped(ways) > before, nil
}

// stopped is how often something was stopped, or late, on some ways since the beginning.
func (d *drawn) stopped(ways []way) (n int) {
	for _, l := range ways {
		n += d.run.cluster.Network.Stopped(l.from, l.to)
	}
	return n
}

// cut has the aim and all others not hear each other.
func (d *drawn) cut(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	w, ids := d.run.cluster.Network, d.ids(n, r)
	ways := both(ids[:1], ids[1:])
	before := d.stopped(ways)
	w.Cut(&n.Node)
	held(r)
	w.Heal(&n.Node)
	return d.stopped(ways) > before, nil
}

// halves has the nodes on two sides that do not hear each other, the aim on the smaller one.
func (d *drawn) halves(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	ids := d.ids(n, r)
	return d.carry(r, both(ids[:len(ids)/2], ids[len(ids)/2:]), process.Condition{Drop: true})
}

// bridge has two sides that do not hear each other, and the aim hears both.
func (d *drawn) bridge(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	ids := d.ids(n, r)[1:]
	return d.carry(r, both(ids[:len(ids)/2], ids[len(ids)/2:]), process.Condition{Drop: true})
}

// ring has each node hear only the one before it and the one behind: of five each hears a majority, and no two the
// same.
func (d *drawn) ring(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	ids := d.ids(n, r)
	var ways []way
	for i, from := range ids {
		for k, to := range ids {
			if apart := (k - i + len(ids)) % len(ids); apart > 1 && apart < len(ids)-1 {
				ways = append(ways, way{from, to})
			}
		}
	}
	return d.carry(r, ways, process.Condition{Drop: true})
}

// oneWay has nobody hear the aim, which hears all.
func (d *drawn) oneWay(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	var ways []way
	for _, id := range d.ids(n, r)[1:] {
		ways = append(ways, way{n.ID, id})
	}
	return d.carry(r, ways, process.Condition{Drop: true})
}

// heldReplies has what others answer the aim arrive when the fault ends.
func (d *drawn) heldReplies(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	var ways []way
	for _, id := range d.ids(n, r)[1:] {
		ways = append(ways, way{id, n.ID})
	}
	return d.carry(r, ways, process.Condition{Hold: true})
}

// flapping cuts the aim off again and again.
func (d *drawn) flapping(_ context.Context, n *cluster.Node, r *rand.Rand) (injected bool, err error) {
	ids := d.ids(n, r)
	for range 4 + r.IntN(12) {
		stopped, _ := d.carryWhile(both(ids[:1], ids[1:]), process.Condition{Drop: true}, func() { <-time.After(flap) })
		injected = injected || stopped
		<-time.After(flap)
	}
	return injected, nil
}

// slowLink has what passes between the aim and two others come late, and where packets are carried, out of order,
// some of them twice, and some not.
func (d *drawn) slowLink(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	ids := d.ids(n, r)
	late := time.Duration(20+r.IntN(130)) * time.Millisecond
	return d.carry(r, both(ids[:1], ids[1:min(3, len(ids))]), process.Condition{
		Delay: late, Jitter: late / 4, Loss: 0.02, Duplicate: 0.02,
	})
}

// cutControl has the aim and the leader of the control group not hear each other.
func (d *drawn) cutControl(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	within, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	s, err := d.run.cluster.Status(within)
	if err != nil || s.Control.Leader == "" {
		return false, nil
	}
	aim := n.ID
	if aim == s.Control.Leader {
		aim = d.ids(n, r)[1]
	}
	return d.carry(r, both([]string{aim}, []string{s.Control.Leader}), process.Condition{Drop: true})
}

// cutClients has clients that dial the aim where other nodes do not reach it.
func (d *drawn) cutClients(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	return d.carry(r, both([]string{n.ID}, []string{process.Outside}), process.Condition{Drop: true})
}
