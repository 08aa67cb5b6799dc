package node

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// maxFirstPartitions bounds the partitions that a cluster begins with when nobody says how many.
	maxFirstPartitions = 32
	// maxPartitions bounds them when somebody does: few, big groups batch better.
	maxPartitions = 128
	// birthTimeout bounds how long the control group of one node may take to have its leader.
	birthTimeout = 15 * time.Second
	birthPoll    = 20 * time.Millisecond
	// handOverInterval is between two requests for the leadership.
	handOverInterval = time.Second
)

// makeCluster makes the cluster, on this node and no other. It goes on where an earlier call was cut short.
//
// That two nodes make one each is out of the question as long as they name each other in join: each marks
// itself before it asks, so of two that ask at the same time at least one sees the other's mark.
func (n *Node) makeCluster(ctx context.Context, partitions int, actor string) (nodes, parts []string, err error) {
	if partitions < 0 || partitions > maxPartitions {
		return nil, nil, quotaerr.New(quotaerr.InvalidArgument,
			"%d partitions: begin with 1 to %d; as many as nodes is a good number", partitions, maxPartitions)
	}
	if c := n.control(); c != nil && allOwned(c.State()) {
		return nil, nil, quotaerr.New(quotaerr.InvalidArgument,
			"cluster %s is made already: see `quorate cluster status`", n.cfg.ClusterID)
	}
	if !n.forming.CompareAndSwap(false, true) {
		return nil, nil, errForming()
	}
	defer n.forming.Store(false)
	c, err := n.found(ctx, actor, func(s *state.State) (*state.Command, error) {
		if s.RestoredFrom != (state.Digest{}) {
			return nil, quotaerr.New(quotaerr.InvalidArgument, "cluster %s is being made of a backup: repeat "+
				"`quorate snapshot restore` with the same file, or begin anew with empty data directories", s.Cluster)
		}
		return n.newInit(actor), nil
	})
	if err != nil {
		return nil, nil, err
	}
	return n.firstPartitions(ctx, c, partitions, actor)
}

func errForming() error {
	return quotaerr.New(quotaerr.NoQuorum, "this node is making the cluster at this moment: ask again")
}

// newInit is the command that makes a cluster of nothing.
func (n *Node) newInit(actor string) *state.Command {
	seed := [16]byte{}
	_, _ = rand.Read(seed[:]) // never fails
	return &state.Command{Kind: state.KindInit, Actor: actor, Init: &state.Init{
		Cluster: n.cfg.ClusterID, Incarnation: 1, Seed: seed,
	}}
}

// found opens the control group on this node, if the cluster has none, and makes the cluster and its nodes known to
// it; it goes on where an earlier call was cut short. begin refuses a state that is not to become that cluster, and
// gives the command that makes it, which is used while the state is unborn. n.forming must be set.
func (n *Node) found(
	ctx context.Context, actor string, begin func(*state.State) (*state.Command, error),
) (_ *control.Control, err error) {
	var others []*answer
	if !n.hasCluster() {
		if others, err = n.mustBeFirst(ctx, n.joinsIt()); err != nil {
			return nil, err
		}
		if err := n.openBlankControl(n.life, []group.Member{n.member()}); err != nil {
			return nil, quotaerr.Wrap(quotaerr.Internal, err, "the control group cannot be opened")
		}
	}
	c := n.control()
	if c == nil {
		return nil, quotaerr.New(quotaerr.NoQuorum, "this node is starting: try again")
	}
	if err := n.awaitLeading(ctx); err != nil {
		return nil, err
	}
	init, err := begin(c.State())
	if err != nil {
		return nil, err
	}
	if others == nil {
		if others, err = n.newcomers(ctx); err != nil {
			return nil, err
		}
	}
	for _, cmd := range n.birthCommands(c.State(), init, others, actor) {
		if _, err := c.Propose(ctx, cmd); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// hasCluster reports whether this node has something of a cluster. Stores that were made and never held anything,
// since a start was cut short, are nothing.
func (n *Node) hasCluster() bool {
	if !n.claim.Has(controlID) {
		return false
	}
	if g := n.hosted.of(controlID).group.Load(); g != nil {
		return g.Status().LastIndex > 0
	}
	return !n.blank.Load()
}

// allOwned reports that each slot has its partition: nothing is left to be made.
func allOwned(s *state.State) bool {
	owned := 0
	for _, p := range s.Partitions {
		for _, r := range p.Ranges {
			owned += int(r.Last-r.First) + 1
		}
	}
	return owned == fsm.NumSlots
}

// mustBeFirst asks all nodes that are configured whether there is a cluster already. All of them must answer,
// since the one that does not may be the one that knows. advice is what to do where there is one.
func (n *Node) mustBeFirst(ctx context.Context, advice string) ([]*answer, error) {
	answers, err := n.askSeeds(ctx)
	if err != nil {
		return nil, err
	}
	for _, a := range answers {
		switch {
		case a.Self.ID == n.cfg.ID:
			return nil, quotaerr.New(quotaerr.InvalidArgument, "the node at %s has the id %s too: give each its own",
				a.Self.Raft, n.cfg.ID)
		case a.Has:
			return nil, quotaerr.New(quotaerr.InvalidArgument, "node %s at %s is part of the cluster already: %s", a.Self.ID,
				a.Self.Raft, advice)
		case a.Forming:
			return nil, quotaerr.New(quotaerr.InvalidArgument, "node %s at %s is making the cluster at this moment: "+
				"ask one node only", a.Self.ID, a.Self.Raft)
		}
	}
	slices.SortFunc(answers, func(a, b *answer) int { return cmp.Compare(a.Self.ID, b.Self.ID) })
	return answers, nil
}

// isInTheWay is what to do about a node that has data, where a cluster is to be made of a backup.
const isInTheWay = "a restore that has begun goes on there; else, as a backup is restored on blank nodes and if that " +
	"cluster is gone for good, stop that node and blank its data directory first"

// joinsIt is what to do about a node that has data, where a cluster is to be made of nothing.
func (n *Node) joinsIt() string {
	return fmt.Sprintf("this node joins it by itself, or with `quorate node add %s`; only if that cluster is gone for "+
		"good, stop that node and blank its data directory first", n.cfg.ID)
}

// newcomers are the nodes in join that have nothing, for a birth that was cut short. All must answer: who does not may
// be one of those that the cluster was to begin with.
func (n *Node) newcomers(ctx context.Context) ([]*answer, error) {
	answers, err := n.askSeeds(ctx)
	return slices.DeleteFunc(answers, func(a *answer) bool { return a.Has || a.Self.ID == n.cfg.ID }), err
}

// askSeeds asks all nodes in join.
func (n *Node) askSeeds(ctx context.Context) ([]*answer, error) {
	targets := map[string]string{}
	for _, addr := range n.cfg.seeds() {
		targets[addr] = group.Anyone
	}
	answers, silent := n.announceTo(ctx, targets)
	if len(silent) > 0 {
		return nil, quotaerr.New(quotaerr.NoQuorum, "a cluster is made only when all nodes in join say that they have "+
			"none, and there is no answer from %s: start what is missing, or take it out of join, then try again",
			strings.Join(silent, ", "))
	}
	return answers, nil
}

// birthCommands are what makes the cluster known to itself, as far as it is not yet.
func (n *Node) birthCommands(
	s *state.State, init *state.Command, others []*answer, actor string,
) (out []*state.Command) {
	if !s.Born {
		out = append(out, init)
	}
	all := append([]*answer{{Self: n.self()}}, others...)
	for _, a := range all {
		if _, known := s.Node(a.Self.ID); !known {
			out = append(out, &state.Command{Kind: state.KindPutNode, Actor: actor, Node: a.Self.put()})
		}
	}
	return out
}

// firstPartitions makes the partitions, their replicas spread over the nodes.
func (n *Node) firstPartitions(
	ctx context.Context, c *control.Control, count int, actor string,
) (nodes, parts []string, err error) {
	s, err := c.Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, known := range s.Nodes {
		nodes = append(nodes, known.ID)
	}
	switch {
	case len(s.Partitions) > 0: // an earlier call was cut short: its first range tells how many there are to be
		begun := fsm.NumSlots / (int(s.Partitions[0].Ranges[0].Last) + 1)
		if count != 0 && count != begun {
			return nil, nil, quotaerr.New(quotaerr.InvalidArgument,
				"the cluster was begun with %d partitions: leave their number out", begun)
		}
		count = begun
	case count == 0:
		count = min(len(nodes), maxFirstPartitions)
	}
	spread := min(len(nodes), n.cfg.Placement.Replicas)
	for k := len(s.Partitions); k < count; k++ {
		var replicas []string
		for i := range spread {
			replicas = append(replicas, nodes[(k+i)%len(nodes)])
		}
		first, last := k*fsm.NumSlots/count, (k+1)*fsm.NumSlots/count-1
		r, err := c.Propose(ctx, &state.Command{Kind: state.KindCreate, Actor: actor, Create: &state.Create{
			Map: c.State().MapVersion, Replicas: replicas,
			Ranges: []fsm.SlotRange{{First: fsm.Slot(first), Last: fsm.Slot(last)}},
		}})
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, r.Partition.String())
	}
	return nodes, parts, nil
}

// awaitLeading waits until this node leads the control group, and has another one that does hand it over: what was cut
// short may have had a second voter already.
func (n *Node) awaitLeading(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, birthTimeout)
	defer cancel()
	var asked time.Time
	for !n.hosted.of(controlID).leads() {
		leader := n.hosted.of(controlID).leader()
		if leader != "" && leader != n.cfg.ID && time.Since(asked) >= handOverInterval {
			asked = time.Now()
			if err := n.transferAt(ctx, controlID, n.cfg.ID); err != nil {
				n.logger.Info("the control group's leadership is not handed over yet", "leader", leader, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return quotaerr.New(quotaerr.NoQuorum, "node %s does not lead the control group: ask again, of the node that does",
				n.cfg.ID)
		case <-time.After(birthPoll):
		}
	}
	return nil
}

// beginning is the command that a cluster was begun with.
func beginning(s *state.State) string {
	if s.RestoredFrom != (state.Digest{}) {
		return "snapshot restore with the same backup"
	}
	return "cluster init"
}

// errNotMade is what a node without a cluster answers operators.
func (n *Node) errNotMade() error {
	waits := "run `quorate cluster init` on one of its nodes, or `quorate snapshot restore` for a backup"
	if why := n.waiting.Load(); why != nil {
		waits = *why
	}
	return quotaerr.New(quotaerr.NoQuorum, "%s", fmt.Sprintf("this node has no part in a cluster yet: %s", waits))
}
