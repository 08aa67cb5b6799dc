package node

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

const (
	// neighbourInterval is how often the other nodes are asked how they stand, and hurriedInterval how often the
	// node that leads the control group asks: its plans rest on it.
	neighbourInterval = 2 * time.Second
	hurriedInterval   = 300 * time.Millisecond
	// neighbourExpiry is for how long an answer counts: a node that has not answered for longer is unknown.
	neighbourExpiry = 10 * time.Second
	// downAfter is how long a node must not have answered before it counts as down.
	downAfter = 5 * time.Second
	// maxNeighbours bounds the nodes that are remembered.
	maxNeighbours = 2 * state.MaxNodes
)

// neighbours keeps the newest answer of each other node.
type neighbours struct {
	mu     sync.Mutex // guards newest
	newest map[string]heard
}

// heard is the newest answer of a node, and who it said that it is, in an answer or a question.
type heard struct {
	answer *answer // nil: it has only asked
	at     time.Time
	self   nodeAnswer
	selfAt time.Time
}

// note takes an answer.
func (s *neighbours) note(a *answer) {
	now := time.Now()
	s.keep(a.Self.ID, func(h *heard) { *h = heard{a, now, a.Self, now} })
}

// met takes who asks a question.
func (s *neighbours) met(who nodeAnswer) {
	s.keep(who.ID, func(h *heard) { h.self, h.selfAt = who, time.Now() })
}

func (s *neighbours) keep(id string, change func(*heard)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		s.newest = map[string]heard{}
	}
	h, there := s.newest[id]
	if !there && len(s.newest) >= maxNeighbours {
		oldest := ""
		for other, o := range s.newest {
			if oldest == "" || o.selfAt.Before(s.newest[oldest].selfAt) {
				oldest = other
			}
		}
		delete(s.newest, oldest)
	}
	change(&h)
	s.newest[id] = h
}

// of is the newest answer of a node; nil when there is none that still counts.
func (s *neighbours) of(node string, now time.Time) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.newest[node]
	if now.Sub(h.at) > neighbourExpiry {
		return nil
	}
	return h.answer
}

// since is the newest answer of a node that came after an instant; nil when there is none.
func (s *neighbours) since(node string, begin time.Time) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.newest[node]; h.at.After(begin) {
		return h.answer
	}
	return nil
}

// last is when a node spoke last, and where it said that it is; zero when it never has.
func (s *neighbours) last(node string) (at time.Time, raft string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.newest[node]
	return h.selfAt, h.self.Raft
}

// leading is what the node that last said that it leads a group says of it; nil when none does.
func (s *neighbours) leading(groupID string, now time.Time) (out *led) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, h := range s.newest {
		if h.answer == nil {
			continue
		}
		g := h.answer.Groups[groupID]
		if g != nil && g.Leads && (out == nil || g.Term > out.Term) && now.Sub(h.at) <= neighbourExpiry {
			out = &led{g, id}
		}
	}
	return out
}

// known are the other nodes of which this one knows: by the cluster's state, by gossip, or since they answered.
func (n *Node) known() (out []string) {
	add := func(id string) {
		if id != n.cfg.ID && !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	if c := n.control(); c != nil {
		for _, known := range c.State().Nodes {
			if known.State != state.NodeRemoved {
				add(known.ID)
			}
		}
		for _, m := range c.Group().Members() {
			add(m.ID)
		}
	}
	for _, seen := range n.gossip.Nodes() {
		if seen.Alive {
			add(seen.ID)
		}
	}
	return out
}

// locate is where a node's Raft port is reached now; empty when nobody knows. What it said itself a moment ago
// counts most, then gossip, then the cluster's state.
func (n *Node) locate(id string) string {
	at, raft := n.neighbours.last(id)
	if raft != "" && time.Since(at) < neighbourExpiry {
		return raft
	}
	for _, seen := range n.gossip.Nodes() {
		if seen.ID == id && seen.Alive && seen.Raft != "" {
			return seen.Raft
		}
	}
	if c := n.control(); c != nil {
		if known, ok := c.State().Node(id); ok {
			return known.Raft
		}
	}
	return raft
}

// down is for how long a node has not answered; 0 while it does.
func (n *Node) down(id string) time.Duration {
	if id == n.cfg.ID {
		return 0
	}
	at, _ := n.neighbours.last(id)
	if at.Before(n.started) {
		at = n.started
	}
	if silent := time.Since(at); silent >= downAfter {
		return silent
	}
	return 0
}

// watchNeighbours asks the other nodes again and again until ctx ends.
func (n *Node) watchNeighbours(ctx context.Context) {
	for {
		targets := map[string]string{}
		for _, id := range n.known() {
			targets[id] = ""
		}
		n.askAll(ctx, targets) // the answers are noted
		least := time.After(hurriedInterval)
		if r := n.hosted.of(controlID); r != nil && !r.leads() {
			select {
			case <-ctx.Done():
			case <-n.gossip.Changed():
			case <-time.After(neighbourInterval):
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-least:
		}
	}
}

// withRoom is the partition's WithRoom: a voter's node that says that its disk has room.
func (r *replica) withRoom() (node string, ok bool) {
	g, now := r.group.Load(), time.Now()
	if g == nil {
		return "", false
	}
	for _, m := range g.Members() {
		a := r.node.neighbours.of(m.ID, now)
		if !m.Learner && a != nil && a.Self.Instance == m.Instance && !a.DiskLow {
			return m.ID, true
		}
	}
	return "", false
}

// peerLevels is the partition's PeerLevels: the lowest feature level that the programs of all other
// replicas know.
func (r *replica) peerLevels() (lowest fsm.Level, all bool) {
	g := r.group.Load()
	if g == nil {
		return 0, false
	}
	lowest = fsm.MaxLevel
	now := time.Now()
	for _, m := range g.Members() {
		if m.ID == r.node.cfg.ID {
			continue
		}
		a := r.node.neighbours.of(m.ID, now)
		if a == nil || a.Self.Instance != m.Instance {
			return 0, false
		}
		lowest = min(lowest, fsm.Level(a.Level))
	}
	return lowest, true
}
