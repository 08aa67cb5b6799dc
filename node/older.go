package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/partition/group"
)

const (
	// newestTimeout bounds how long a start asks whether its directory is the newest. After a loss of power
	// machines come back seconds apart, and the one that knows may be the last.
	newestTimeout = 10 * time.Second
	// askAgainInterval is between two rounds of questions.
	askAgainInterval = 200 * time.Millisecond
)

// errLost: the cluster counts on data of this node that is not in this data directory.
var errLost = errors.New("data was lost")

// mustBeNewest refuses stores whose log ends before what they were seen to have: an older copy, put back.
// Positions are compared by term first, so a suffix that was acknowledged, never committed and rightly replaced
// in a later term does not count as lost. members are the replicas as the log has them.
//
// What it cannot find: when a node does not answer in time, the start goes on, since it commits nothing
// alone; that node may then have been the only one to know better. Nor does it find a copy that is older
// by no more than what the others had not yet noted when they were killed (memoryInterval), or when those
// who answer are not those who know. And there is one false alarm: a replica that was killed after it had
// cut such a suffix off and before the new entries were on its disk is taken for an older copy, and is to be
// replaced.
func (r *replica) mustBeNewest(ctx context.Context, last group.Position, members []group.Member) error {
	n := r.node
	addrs := map[string]string{}
	for _, m := range members {
		if m.ID != n.cfg.ID {
			addrs[m.ID] = m.Addr
		}
	}
	if len(addrs) == 0 {
		return ctx.Err()
	}
	deadline := n.started.Add(newestTimeout)
	for {
		for id, a := range n.askForStart(ctx, addrs) {
			if err := r.compare(last, a); err != nil {
				return err
			}
			delete(addrs, id)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case len(addrs) == 0:
			return nil
		case time.Now().After(deadline):
			n.logger.Warn("not all nodes tell whether this data directory is the newest; going on: if it is an older copy, "+
				"what was allowed since may be forgotten", "group", r.id, "silent",
				strings.Join(slices.Sorted(maps.Keys(addrs)), ", "))
			return nil
		}
		n.wait("asking the other nodes whether the data directory is the newest")
		select {
		case <-ctx.Done():
		case <-time.After(askAgainInterval):
		}
	}
}

// askForStart asks nodes, addrs being where they were last known to be, unless they have answered since this process
// began: an answer is about all groups. One round of questions is on its way at a time.
func (n *Node) askForStart(ctx context.Context, addrs map[string]string) map[string]*answer {
	n.starting.mu.Lock()
	defer n.starting.mu.Unlock()
	out, unknown := map[string]*answer{}, map[string]string{}
	for id, addr := range addrs {
		a := n.neighbours.since(id, n.started)
		switch {
		case a != nil:
			out[id] = a
		case time.Since(n.starting.asked[id]) >= askAgainInterval: // else it has just been silent
			unknown[id] = addr
		}
	}
	defer func() {
		for id := range unknown {
			n.starting.note(id)
		}
	}()
	for _, a := range n.askAll(ctx, unknown) {
		out[a.Self.ID] = a
	}
	return out
}

// starting is what the replicas that are opened share.
type starting struct {
	mu    sync.Mutex           // held while questions are on their way; guards asked
	asked map[string]time.Time // when a node was last found silent, or asked
}

func (s *starting) note(id string) {
	if s.asked == nil {
		s.asked = map[string]time.Time{}
	}
	s.asked[id] = time.Now()
}

// askAll announces this node to several at once, and asks how they stand; addrs are where they were last known to be.
// Who does not answer is left out.
func (n *Node) askAll(ctx context.Context, addrs map[string]string) (answers []*answer) {
	var mu sync.Mutex // guards answers
	var wg sync.WaitGroup
	for id, addr := range addrs {
		if now := n.locate(id); now != "" {
			addr = now
		}
		if addr == "" {
			continue
		}
		wg.Go(func() {
			if a, err := n.ask(ctx, id, addr, question{Kind: askAnnounce}); err == nil {
				mu.Lock()
				defer mu.Unlock()
				answers = append(answers, a)
			}
		})
	}
	wg.Wait()
	return answers
}

// compare holds the end of the log against what another node knows of it.
func (r *replica) compare(last group.Position, a *answer) error {
	n, g := r.node, a.Groups[r.id]
	if s := a.Standing; s != nil && last.Index > 0 && (s.Gone || s.Leads && s.Refused != "") {
		return fmt.Errorf("%w, says node %s: %s", errLost, a.Self.ID, s.Refused)
	}
	if g == nil {
		return nil
	}
	if acked := group.Position(g.Acknowledged); last.Before(acked) {
		return fmt.Errorf("%w: the data directory %s is an older copy: its log of group %s ends at entry %d of term %d, "+
			"but node %s saw it with entry %d of term %d: put the newest one back, or %s", errLost, n.cfg.DataDir,
			r.id, last.Index, last.Term, a.Self.ID, acked.Index, acked.Term,
			n.remedy("start this node with an empty data directory"))
	}
	if last.Index == 0 || !g.Leads {
		return nil // with an empty log it may well be waiting to be added
	}
	m, listed := g.lists(n.cfg.ID)
	switch {
	case listed && m.Instance == n.claim.Instance():
		return nil
	case listed:
		return fmt.Errorf("%w: group %s counts on another data directory of node %s (instance %s), not on %s, "+
			"says its leader %s: put the right one back, or %s", errLost, r.id, n.cfg.ID, short(m.Instance), n.cfg.DataDir,
			a.Self.ID, n.remedy("start this node with an empty data directory"))
	case r.id == controlID:
		return fmt.Errorf("the replica in %s was taken out of the cluster, says node %s, which leads the control group: "+
			"start this node with an empty data directory; %s", n.cfg.DataDir, a.Self.ID, addRemedy(n.cfg.ID))
	}
	return nil // it was moved away, and may come back
}

// addRemedy is what an operator does about a node that is not one of the cluster's.
func addRemedy(id string) string {
	return fmt.Sprintf("if it was removed, run `quorate node add %s` as well", id)
}

// remedy is what an operator does about a node whose data is lost.
func (n *Node) remedy(then string) string {
	return fmt.Sprintf("run `quorate node replace %s` and %s", n.cfg.ID, then)
}

// short is enough of an instance to tell it from others.
func short(instance string) string {
	first, _, _ := strings.Cut(instance, "-")
	return first
}
