package quotatest

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// maxStreams bounds the calls that one connection has open.
const maxStreams = 1 << 16

// heartbeat is how often a watch says that it lives.
const heartbeat = 2 * time.Second

// pingsAtLeast is how long the pings of an idle client must be apart, as with the real one.
const pingsAtLeast = 5 * time.Second

// service is what a node serves.
type service struct {
	quoratev1.UnimplementedQuotaServer
	node *Node
}

var _ quoratev1.QuotaServer = (*service)(nil)

// verdict is what becomes of a check.
type verdict struct {
	decision *quoratev1.Decision
	refusal  *quotaerr.Error
	leader   string        // that decided, when it is not the node that was asked
	delay    time.Duration // after which it is answered
	lost     bool          // it is never answered
}

// check decides a check that came to the node.
func (n *Node) check(req *quoratev1.CheckRequest) (v verdict) {
	s := n.server
	s.mu.Lock()
	defer s.mu.Unlock()
	n.count(func(c *Counts) {
		c.Checks++
		if req.GetAttempt() > 1 {
			c.Retries++
		}
	})
	s.asked.keep(Request{At: s.clock(), Node: n.ID, Check: req})
	v = n.verdict(req)
	n.count(func(c *Counts) {
		switch {
		case v.refusal != nil:
			c.Refused++
		case v.decision == nil:
		case v.decision.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED:
			c.Allowed++
		case v.decision.GetOutcome() == quoratev1.Outcome_OUTCOME_DENIED:
			c.Denied++
		}
		if v.decision.GetReplayed() {
			c.Replayed++
		}
	})
	return v
}

// verdict is check without the counts, with what goes wrong with the node.
func (n *Node) verdict(req *quoratev1.CheckRequest) (v verdict) {
	v.delay = n.faults.slow
	if n.faults.silent {
		return verdict{lost: true}
	}
	if n.faults.answer != nil {
		if v.decision, v.refusal = n.faults.answer(req); v.decision != nil || v.refusal != nil {
			return v
		}
	}
	if v.refusal = n.faults.refusal; v.refusal != nil {
		return v
	}
	if v.refusal = malformed(req); v.refusal != nil {
		return v
	}
	leader, err := n.route(req.GetPrincipal(), req.GetRouteEpoch())
	switch {
	case err != nil:
		v.refusal = err
		return v
	case leader != n:
		v = leader.verdict(req)
		v.leader, v.delay = leader.ID, v.delay+n.faults.slow
		return v
	}
	v.decision, v.refusal = n.server.ledger.decide(n.server.clock(), req)
	if n.faults.lose > 0 {
		n.faults.lose--
		v.lost = true
	}
	return v
}

// route is the node that decides for a principal: this one, or one that it forwards to.
func (n *Node) route(principal string, epoch uint64) (*Node, *quotaerr.Error) {
	s := n.server
	owner := s.routes.owner(principal)
	leader := s.leaderOf(owner.partition)
	switch {
	case epoch != 0 && epoch != owner.epoch:
		e := quotaerr.New(quotaerr.WrongEpoch, "the slot is owned under epoch %d", owner.epoch)
		e.Epoch = owner.epoch
		return nil, e
	case leader == nil || leader.grpc == nil:
		return nil, quotaerr.New(quotaerr.NotLeader, "nobody leads the partition at present")
	case leader != n && !s.forward:
		e := quotaerr.New(quotaerr.NotLeader, "ask node %s", leader.ID)
		e.Leader, e.LeaderAddr = leader.ID, leader.Addr
		return nil, e
	case s.routes.partitions[owner.partition].frozen:
		return nil, quotaerr.New(quotaerr.Frozen, "the slot is about to move")
	}
	return leader, nil
}

// CheckAndConsume decides one check.
func (s *service) CheckAndConsume(ctx context.Context, req *quoratev1.CheckRequest) (*quoratev1.Decision, error) {
	s.node.locked(func() { s.node.count(func(c *Counts) { c.Unary++ }) })
	v := s.node.check(req)
	if v.lost {
		<-ctx.Done()
		return nil, errtable.ToStatus(ctx, quotaerr.New(quotaerr.OutcomeUnknown, "no answer, as the test asks")).Err()
	}
	if !passed(ctx, v.delay) {
		return nil, errtable.ToStatus(ctx, quotaerr.New(quotaerr.OutcomeUnknown, "the answer is late")).Err()
	}
	if v.refusal != nil {
		return nil, errtable.ToStatus(ctx, v.refusal).Err()
	}
	return v.decision, nil
}

func (n *Node) locked(f func()) {
	n.server.mu.Lock()
	defer n.server.mu.Unlock()
	f()
}

// passed waits, and reports whether ctx has not ended before.
func passed(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	wait := time.NewTimer(d)
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Peek tells usage and room.
func (s *service) Peek(ctx context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error) {
	n := s.node
	var out *quoratev1.PeekResponse
	var err *quotaerr.Error
	var delay time.Duration
	n.locked(func() {
		n.count(func(c *Counts) { c.Peeks++ })
		delay = n.faults.slow
		if err = n.faults.refusal; err != nil {
			return
		}
		if err = malformedPeek(req); err != nil {
			return
		}
		if _, err = n.route(req.GetPrincipal(), req.GetRouteEpoch()); err == nil {
			out = n.server.ledger.peek(n.server.clock(), req)
		}
	})
	if !passed(ctx, delay) {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, errtable.ToStatus(ctx, err).Err()
	}
	return out, nil
}

// WatchConfig tells the map and the policy's settings, at once and after each change.
func (s *service) WatchConfig(
	_ *quoratev1.WatchConfigRequest, stream grpc.ServerStreamingServer[quoratev1.WatchConfigResponse],
) error {
	n := s.node
	n.locked(func() { n.count(func(c *Counts) { c.Watches++ }) })
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	w := n.server.attend(n)
	defer n.server.leave(w)
	for {
		var now view
		var changed chan struct{}
		var fault watchFault
		n.locked(func() { now, changed, fault = n.server.told, n.server.changed, n.faults.watch })
		if fault == watchRefused {
			return errtable.ToStatus(stream.Context(),
				quotaerr.New(quotaerr.NotLeader, "no watch, as the test asks")).Err()
		}
		if fault == watchWorks {
			if err := tellWatch(stream, w.told, now); err != nil {
				return err
			}
			n.server.toldWatch(w, now)
		}
		select {
		case <-changed:
		case <-beat.C:
			if fault == watchWorks {
				if err := stream.Send(&quoratev1.WatchConfigResponse{ClusterId: clusterID}); err != nil {
					return err
				}
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// tellWatch sends what differs from what was told before.
func tellWatch(stream grpc.ServerStreamingServer[quoratev1.WatchConfigResponse], told, now view) error {
	if told.routes != now.routes {
		m := &quoratev1.WatchConfigResponse{ClusterId: clusterID, Map: now.routes}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	if len(told.settings) > 0 && told.settings[0] == now.settings[0] {
		return nil
	}
	for _, part := range now.settings {
		if err := stream.Send(&quoratev1.WatchConfigResponse{ClusterId: clusterID, Policy: part}); err != nil {
			return err
		}
	}
	return nil
}
