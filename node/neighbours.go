package node

import (
	"context"
	"sync"
	"time"

	"github.com/quorate/quorate/fsm"
)

const (
	// neighbourInterval is how often the other nodes are asked how they stand.
	neighbourInterval = 2 * time.Second
	// neighbourExpiry is for how long an answer counts: a node that has not answered for longer is unknown.
	neighbourExpiry = 10 * time.Second
)

// neighbours keeps the newest answer of each other node.
type neighbours struct {
	mu     sync.Mutex // guards newest
	newest map[string]heard
}

// heard is an answer and when it came.
type heard struct {
	answer *answer
	at     time.Time
}

func (s *neighbours) note(answers map[string]*answer, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest == nil {
		s.newest = map[string]heard{}
	}
	for id, a := range answers {
		s.newest[id] = heard{a, at}
	}
}

// of is the newest answer of a node; nil when there is none that still counts.
func (s *neighbours) of(node string, now time.Time) *answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.newest[node]
	if h.answer == nil || now.Sub(h.at) > neighbourExpiry {
		return nil
	}
	return h.answer
}

// leader is the node that last said that it leads; empty when none does.
func (s *neighbours) leader(now time.Time) (node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var term uint64
	for id, h := range s.newest {
		r := h.answer.Replica
		if r != nil && r.Leads && r.Term > term && now.Sub(h.at) <= neighbourExpiry {
			node, term = id, r.Term
		}
	}
	return node
}

// forget drops what a node has said.
func (s *neighbours) forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.newest, node)
}

// survey asks all other nodes at once who they are. Who does not answer within two seconds is in silent.
func (n *Node) survey(ctx context.Context) (answers map[string]*answer, silent map[string]error) {
	answers, silent = map[string]*answer{}, map[string]error{}
	var mu sync.Mutex // guards both
	var wg sync.WaitGroup
	for _, peer := range n.cfg.others() {
		wg.Go(func() {
			a, err := n.ask(ctx, peer, question{Kind: askWho})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				silent[peer.ID] = err
				return
			}
			answers[peer.ID] = a
		})
	}
	wg.Wait()
	return answers, silent
}

// watchNeighbours asks the other nodes again and again until ctx ends.
func (n *Node) watchNeighbours(ctx context.Context) {
	tick := time.NewTicker(neighbourInterval)
	defer tick.Stop()
	for {
		answers, _ := n.survey(ctx)
		n.neighbours.note(answers, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// withRoom is the partition's WithRoom: a voter's node that says that its disk has room.
func (n *Node) withRoom() (node string, ok bool) {
	now := time.Now()
	for _, m := range n.group.Load().Members() {
		a := n.neighbours.of(m.ID, now)
		if !m.Learner && a != nil && a.Instance == m.Instance && !a.DiskLow {
			return m.ID, true
		}
	}
	return "", false
}

// peerLevels is the partition's PeerLevels: the lowest feature level that the programs of all other
// replicas know.
func (n *Node) peerLevels() (lowest fsm.Level, all bool) {
	g := n.group.Load()
	if g == nil {
		return 0, false
	}
	lowest = fsm.MaxLevel
	now := time.Now()
	for _, m := range g.Members() {
		if m.ID == n.cfg.ID {
			continue
		}
		a := n.neighbours.of(m.ID, now)
		if a == nil || a.Instance != m.Instance {
			return 0, false
		}
		lowest = min(lowest, fsm.Level(a.Level))
	}
	return lowest, true
}
