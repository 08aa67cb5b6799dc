//go:build chaos

package process

import (
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

// askAtOnce sends checks of new principals to a node, each once, and returns when each has its answer or none.
func (s *stage) askAtOnce(name string, n int, at *process.Node) []history.Asked {
	out := make([]history.Asked, n)
	var asking sync.WaitGroup
	for k, p := range principals(name, n) {
		asking.Go(func() { out[k] = s.ask(s.next(p), at) })
	}
	asking.Wait()
	return out
}

// cutLeader cuts the leader off from the others, and not from clients, who go on asking it.
func (s *stage) cutLeader() {
	s.start(1)
	s.decideAll(room/2, principals("before", 4), s.all()...)
	leader, others := s.leader("p0")
	s.cluster.Network.Cut(&leader.Node)
	s.event("fault", "cut-leader", leader.ID)
	var asking sync.WaitGroup
	asking.Go(func() { s.askAtOnce("alone", 24, &leader.Node) })
	s.decideAll(1, principals("meanwhile", 4), &others[0].Node, &others[1].Node)
	s.cluster.Network.Heal(&leader.Node)
	asking.Wait()
	s.decideAll(room, principals("before", 4), s.all()...)
	s.decideAll(2, principals("alone", 24), s.all()...)
}

// heldReplies has the leader hear nothing of what the others answer, while they hear it.
func (s *stage) heldReplies() {
	s.start(1)
	s.decideAll(1, principals("before", 4), s.all()...)
	leader, others := s.leader("p0")
	for _, o := range others {
		s.cluster.Network.Set(o.ID, leader.ID, process.Condition{Drop: true})
	}
	s.event("fault", "held-replies", leader.ID)
	s.askAtOnce("held", 16, &leader.Node)
	s.cluster.Network.Clear()
	s.decideAll(1, principals("after", 4), s.all()...)
}

// wallAhead has the wall clocks of the followers be hours ahead when one of them becomes the leader.
func (s *stage) wallAhead() {
	s.start(1)
	full := principals("full", 6)
	s.decideAll(room, full, s.all()...)
	leader, others := s.leader("p0")
	for _, o := range others {
		s.disturb(o.ID, `{"wall_offset_ns": 7200000000000}`)
	}
	for _, o := range others {
		s.await("the clock of "+o.ID+" is ahead", func() bool { return s.said(&o.Node, "the clocks are disturbed") })
	}
	s.event("fault", "skew-next-leader", others[0].ID, others[1].ID)
	s.kill(leader)
	s.decideAll(2, full, &others[0].Node, &others[1].Node)
}

// movesUnderLoad moves slots to and fro while principals of all slots are asked for.
func (s *stage) movesUnderLoad() {
	s.start(2)
	stop := make(chan struct{})
	var asking sync.WaitGroup
	for k, p := range principals("mover", 48) {
		asking.Go(func() {
			nodes := s.all()
			for i := k; s.ctx.Err() == nil; i++ {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				s.ask(s.next(p), nodes[i%len(nodes)])
			}
		})
	}
	for _, args := range [][]string{
		{"move", "p0", "0-4095", "p1"}, {"move", "p1", "0-4095", "p0"}, {"move", "p1", "12288-16383", "p0"},
	} {
		id, err := s.cluster.StartPlan(s.ctx, args...)
		s.must(err)
		plan, err := s.cluster.AwaitPlan(s.ctx, id)
		s.must(err)
		if !plan.Done() && s.off == "" {
			s.Fatalf("the plan was not done: %+v", plan)
		}
	}
	close(stop)
	asking.Wait()
}
