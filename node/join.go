package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/partition/agreement"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
)

// A node whose data directory is new does not know whether its cluster is made yet, or whether this directory
// takes the place of one that was lost. So it makes nothing by itself: only `cluster init` makes a cluster. It
// announces itself, and the node that leads the control group tells whether this directory is one of the cluster's.
// A replica that was lost has acknowledged entries that it must not forget, so a blank directory never stands in for
// it: it is another replica, which counts only after an operator has given up the lost one. And a node that is not
// known at all waits until an operator adds it.

const (
	// announceInterval is between two announcements of a node that waits.
	announceInterval = 300 * time.Millisecond
	// settledInterval is between two looks whether the cluster's state has this node as it is.
	settledInterval = time.Second
	// announcedExpiry is for how long an announcement counts.
	announcedExpiry = 10 * time.Second
	// maxAnnounced bounds the announcements that are remembered.
	maxAnnounced = 256
	// waitLogInterval is how often it is logged what a start waits for.
	waitLogInterval = 3 * time.Second
)

// join opens this node's replica of the control group: at once when it has one, else when the cluster has taken
// this node in, or an operator has it make the cluster.
func (n *Node) join(ctx context.Context) error {
	opened, err := n.rejoin(ctx)
	if opened || err != nil {
		return err
	}
	logged := time.Now()
	for {
		standing, waits, err := n.announce(ctx)
		switch {
		case err != nil:
			return err
		case n.controlOpen():
			return nil // an operator has made the cluster here
		case standing != nil && standing.Admitted:
			return n.openBlankControl(ctx, nil) // a leader reaches it
		}
		n.wait(waits)
		if time.Since(logged) >= waitLogInterval {
			logged = time.Now()
			n.held.letGo()
			n.logger.Info("this node has a new data directory and takes no part yet", "because", waits)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.joined:
		case <-time.After(announceInterval):
		}
	}
}

// rejoin opens what this node has stored of a cluster; opened is false when that is nothing. An operator may have it
// make the cluster at this very moment.
func (n *Node) rejoin(ctx context.Context) (opened bool, err error) {
	n.openingControl.Lock()
	defer n.openingControl.Unlock()
	if n.controlOpen() {
		return true, nil
	}
	if !n.claim.Has(controlID) {
		return false, nil
	}
	if err := n.openStored(ctx); !errors.Is(err, errBlank) {
		return true, err
	}
	n.blank.Store(true) // a start was cut short before anything was stored: that is no more than a new directory
	return false, nil
}

// announce makes this node known wherever it can, and returns what the cluster says of it: nil, and what is waited
// for, when nobody knows. An error is that the cluster counts on another directory of this node.
func (n *Node) announce(ctx context.Context) (*standingAnswer, string, error) {
	targets := map[string]string{} // by address
	for _, addr := range n.cfg.seeds() {
		targets[addr] = group.Anyone
	}
	for _, id := range n.known() {
		targets[n.locate(id)] = id
	}
	answers, silent := n.announceTo(ctx, targets)
	best, hearsay := leaderOf(answers)
	if best == nil && hearsay != nil && targets[hearsay.LeaderRaft] == "" {
		more, _ := n.announceTo(ctx, map[string]string{hearsay.LeaderRaft: hearsay.Leader})
		best, _ = leaderOf(more)
	}
	switch {
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case best != nil && best.Refused != "":
		return nil, "", fmt.Errorf("%w: %s", errLost, best.Refused)
	case hearsay != nil && hearsay.Gone:
		return nil, "", fmt.Errorf("%w: %s", errLost, hearsay.Refused)
	case best != nil && best.Waits:
		return best, fmt.Sprintf("waiting for an operator to add this node: run `quorate node add %s`", n.cfg.ID), nil
	case best != nil:
		return best, "waiting for the control group to take this node in", nil
	case hearsay != nil && hearsay.Refused != "":
		return nil, "looking for a leader of the control group that confirms this: " + hearsay.Refused, nil
	case hearsay != nil:
		return nil, "looking for the node that leads the control group", nil
	case slices.ContainsFunc(answers, func(a *answer) bool { return a.Has }):
		return nil, "the nodes that answer are part of a cluster, which has no leader of the control group yet", nil
	case len(silent) > 0:
		return nil, "no cluster is found yet; no answer from " + strings.Join(silent, ", "), nil
	}
	return nil, "waiting for a cluster: run `quorate cluster init` on one of its nodes, or " +
		"`quorate snapshot restore` for a backup", nil
}

// announceTo makes this node known at several addresses at once; targets are the nodes expected there.
func (n *Node) announceTo(ctx context.Context, targets map[string]string) (answers []*answer, silent []string) {
	var mu sync.Mutex // guards both results
	var wg sync.WaitGroup
	for addr, id := range targets {
		if addr == "" {
			continue
		}
		wg.Go(func() {
			a, err := n.ask(ctx, id, addr, question{Kind: askAnnounce})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil && isDown(err):
				silent = append(silent, addr)
			case err != nil:
				silent = append(silent, fmt.Sprintf("%s (%v)", addr, err))
			case a.Self.Instance != n.claim.Instance(): // else it is its own address under another name
				answers = append(answers, a)
			}
		})
	}
	wg.Wait()
	slices.Sort(silent)
	return answers, silent
}

// isDown reports whether a question failed because nobody was there.
func isDown(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, context.DeadlineExceeded)
}

// leaderOf is what the node that leads the control group says, and what another one does.
func leaderOf(answers []*answer) (leader, hearsay *standingAnswer) {
	for _, a := range answers {
		switch {
		case a.Standing == nil:
		case a.Standing.Leads:
			leader = a.Standing
		case hearsay == nil || a.Standing.Leader != "":
			hearsay = a.Standing
		}
	}
	return leader, hearsay
}

// stay keeps the cluster's knowledge of this node right: it announces itself while its addresses are not those of
// the state. An error is that this data directory does not count any more.
func (n *Node) stay(ctx context.Context) error {
	for {
		s, changed := n.control().Changed()
		if err := n.mustCount(s); err != nil {
			return err
		}
		// Without a leader it may be that there is one, and that this replica was taken out.
		known, ok := s.Node(n.cfg.ID)
		if (s.Born || n.hasCluster()) && (!ok || !n.isAs(known) || n.hosted.of(controlID).leader() == "") {
			if _, _, err := n.announce(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(settledInterval):
		}
	}
}

// isAs reports that a node of the state is this one as it is.
func (n *Node) isAs(known *state.Node) bool {
	a := n.cfg.Advertise
	return known.Instance == n.claim.Instance() && known.GRPC == a.GRPC && known.HTTP == a.HTTP &&
		known.Raft == a.Raft && known.Zone == n.cfg.Zone
}

// mustCount refuses to go on with a data directory that the cluster has given up.
func (n *Node) mustCount(s *state.State) error {
	known, ok := s.Node(n.cfg.ID)
	if !ok || !slices.Contains(known.Former, n.claim.Instance()) {
		return nil
	}
	if known.State == state.NodeRemoved {
		return fmt.Errorf("node %s was removed from the cluster, and its data directory %s does not count any more; to "+
			"have it back start it with an empty data directory and run `quorate node add %s`",
			n.cfg.ID, n.cfg.DataDir, n.cfg.ID)
	}
	return fmt.Errorf("%w: node %s was given up with its data directory %s: start it with an empty one",
		errLost, n.cfg.ID, n.cfg.DataDir)
}

// openBlankControl opens this node's replica of the control group, now that it is known what empty stores mean.
func (n *Node) openBlankControl(ctx context.Context, founders []group.Member) error {
	n.openingControl.Lock()
	defer n.openingControl.Unlock()
	if n.controlOpen() {
		return nil
	}
	r, err := n.have(controlID)
	if err != nil {
		return err
	}
	r.mayBeBlank = true
	return n.openControl(ctx, founders)
}

// openControl opens this node's replica of the control group.
func (n *Node) openControl(ctx context.Context, founders []group.Member) error {
	r := n.hosted.of(controlID)
	c, err := control.Open(control.Config{
		Dir: n.controlDir(),
		Open: func(a group.Applier) (group.Group, error) {
			return r.openGroup(ctx, a, storage.BoltDB, founders)
		},
		Differs: func(index uint64) {
			if a := r.inquiry.Load(); a != nil {
				a.Doubt(index)
			}
		},
		Fatal: n.fatal, Logger: n.logger, Clock: n.source, MaxDriftPPM: n.cfg.Clock.MaxDriftPPM,
	})
	if err != nil {
		return err
	}
	r.inquiry.Store(agreement.New(agreement.Config{
		Group: controlID, NodeID: n.cfg.ID, Members: c.Group().Members, DigestAt: c.DigestAt,
		Applied: c.AppliedIndex, Consult: n.consult(controlID), Condemn: c.Group().Condemn, Logger: n.logger,
	}))
	r.control.Store(c)
	n.waiting.Store(nil)
	n.held.letGo()
	close(n.joined)
	return nil
}

// controlOpen reports whether the control group's replica is open.
func (n *Node) controlOpen() bool { return n.control() != nil }

// control is the control group's replica; nil while it is not open.
func (n *Node) control() *control.Control {
	if r := n.hosted.of(controlID); r != nil {
		return r.control.Load()
	}
	return nil
}

// announced are the nodes that have announced themselves to this one lately.
type announced struct {
	mu    sync.Mutex              // guards nodes
	nodes map[string]announcement // by node and data directory
}

type announcement struct {
	nodeAnswer
	at time.Time
}

func (a *announced) note(who nodeAnswer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for key, old := range a.nodes {
		if now.Sub(old.at) > announcedExpiry {
			delete(a.nodes, key)
		}
	}
	key := replicaKey(group.Member{ID: who.ID, Instance: who.Instance})
	if _, there := a.nodes[key]; there || len(a.nodes) < maxAnnounced {
		a.nodes[key] = announcement{who, now}
	}
}

// recent are those whose announcement still counts, by id.
func (a *announced) recent() (out []nodeAnswer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, who := range a.nodes {
		if time.Since(who.at) <= announcedExpiry {
			out = append(out, who.nodeAnswer)
		}
	}
	slices.SortFunc(out, func(a, b nodeAnswer) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Instance, b.Instance))
	})
	return out
}

// judgeAnnounced tells a node that announces itself how it stands, as far as this one knows; nil when it knows
// nothing of the cluster.
func (n *Node) judgeAnnounced(who nodeAnswer) *standingAnswer {
	c := n.control()
	if c == nil || !c.State().Born {
		return nil
	}
	n.announced.note(who)
	out := n.judgeStanding(who)
	if out == nil {
		return nil // this node is stopping
	}
	if out.Leads = n.hosted.of(controlID).leads(); out.Leads {
		return out
	}
	if leader, ok := c.Group().Leader(); ok {
		out.Leader, out.LeaderRaft = leader.ID, leader.Addr
		if now := n.locate(leader.ID); now != "" {
			out.LeaderRaft = now
		}
	}
	return out
}

// judgeStanding is how a node stands by the cluster's state; nil before there is one.
func (n *Node) judgeStanding(who nodeAnswer) *standingAnswer {
	c := n.control()
	if c == nil {
		return nil
	}
	out := &standingAnswer{}
	known, ok := c.State().Node(who.ID)
	switch {
	case !ok:
		out.Waits = true
	case slices.Contains(known.Former, who.Instance):
		out.Gone = true
		out.Refused = fmt.Sprintf("node %s was given another data directory, or was removed: this one must not come back; "+
			"start it with an empty data directory", who.ID)
	case known.State == state.NodeRemoved:
		out.Waits = true
	case known.Instance == who.Instance:
		out.Admitted = true
	case known.Instance != "":
		out.Refused = fmt.Sprintf("the data directory of node %s is empty, but the cluster counts on another one "+
			"(instance %s), so it was lost or the wrong directory is mounted: put the right one back, or run "+
			"`quorate node replace %s` and "+
			"start this node again", who.ID, short(known.Instance), who.ID)
	}
	return out
}

// takeIn has the control group know what nodes have announced, while this node leads it: where a known node is
// reached now, and which data directory takes the place of a lost one. Strangers wait for an operator.
func (n *Node) takeIn(ctx context.Context) {
	c := n.control()
	for _, who := range n.announced.recent() {
		known, ok := c.State().Node(who.ID)
		if !ok || known.State == state.NodeRemoved || slices.Contains(known.Former, who.Instance) {
			continue
		}
		same := known.Instance == who.Instance
		if !same && known.Instance != "" || same && known.GRPC == who.GRPC && known.HTTP == who.HTTP &&
			known.Raft == who.Raft && known.Zone == who.Zone {
			continue
		}
		if !n.isThere(ctx, who) {
			continue
		}
		_, err := c.Propose(ctx, &state.Command{
			Kind: state.KindPutNode, Actor: "node/" + who.ID, Node: who.put(),
		})
		if err != nil {
			n.logger.Warn("what a node announced was not taken in", "announced", who.ID, "error", err)
		}
	}
}

// isThere reports that a node that has announced itself still runs, with the same data directory: what it said was
// some seconds ago, and a directory that was refused meanwhile may be gone.
func (n *Node) isThere(ctx context.Context, who nodeAnswer) bool {
	a, err := n.ask(ctx, who.ID, who.Raft, question{Kind: askWho})
	return err == nil && a.Self.Instance == who.Instance
}

// put is the command that makes the node known.
func (a nodeAnswer) put() *state.PutNode {
	return &state.PutNode{ID: a.ID, Instance: a.Instance, GRPC: a.GRPC, HTTP: a.HTTP, Raft: a.Raft, Zone: a.Zone}
}
