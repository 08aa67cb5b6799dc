package rpc

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc/errtable"
)

const (
	// DefaultTimeout bounds a check or peek whose caller set no deadline.
	DefaultTimeout = 5 * time.Second
	// DefaultMaxInFlight bounds the checks and peeks that one node has not answered yet.
	DefaultMaxInFlight = 16384

	minPause = 5 * time.Millisecond
	maxPause = 200 * time.Millisecond
)

// desk takes checks and peeks from callers of any protocol and gets each answered by the node that
// leads the principal's partition.
type desk struct {
	node        string
	cluster     string
	backend     Backend
	peers       *peers
	metrics     *metrics
	maxInFlight int64
	inFlight    atomic.Int64
	wall        func() time.Time

	bulletin *bulletin
	attempts *attempts
	ending   chan struct{} // closed when the node stops
	// What operators, other nodes and gateways have under way.
	operators, forwarded, uploads, downloads, transfers, watchers *shares
}

func newDesk(config *Config, m *metrics) *desk {
	return &desk{
		node: config.Node, cluster: config.ClusterID, backend: config.Backend, peers: newPeers(config.TLS),
		metrics: m, maxInFlight: int64(config.MaxInFlight), wall: time.Now,
		bulletin:  &bulletin{cluster: config.ClusterID, backend: config.Backend},
		attempts:  newAttempts(config.Backend.Admin, m),
		ending:    make(chan struct{}),
		operators: newShares("operators' calls", maxOperations, maxOperationsEach),
		forwarded: newShares("operators' calls from other nodes", maxOperations, maxOperationsEach),
		uploads:   newShares("uploads", maxUploads, maxUploadsEach),
		downloads: newShares("downloads", maxDownloads, maxDownloadsEach),
		transfers: newShares("transfers", maxTransfers, maxTransfersEach),
		watchers:  newShares("watches", maxWatchers, maxWatchersEach),
	}
}

func (d *desk) enter() error {
	if d.inFlight.Add(1) > d.maxInFlight {
		d.inFlight.Add(-1)
		return quotaerr.New(quotaerr.Overloaded, "this node has %d unanswered checks: back off",
			d.maxInFlight)
	}
	d.metrics.inFlight.Inc()
	return nil
}

func (d *desk) leave() {
	d.inFlight.Add(-1)
	d.metrics.inFlight.Dec()
}

// check answers a caller's check, from wherever its partition is led.
func (d *desk) check(
	ctx context.Context, id Identity, req *quoratev1.CheckRequest, protocol string,
) (_ *quoratev1.Decision, err error) {
	start := time.Now()
	var out *quoratev1.Decision
	defer func() {
		d.metrics.seconds.WithLabelValues(protocol).Observe(time.Since(start).Seconds())
		d.metrics.answered(out, err)
	}()
	c, err := checkOf(req, id.Name)
	if err != nil {
		return nil, err
	}
	if err := id.mayAskAll(&c); err != nil {
		return nil, err
	}
	horizon := d.backend.ReplayHorizon(c.Class)
	for _, a := range c.Also {
		horizon = min(horizon, d.backend.ReplayHorizon(a.Class))
	}
	fwd := &quoratev1.ForwardCheckRequest{
		ClusterId: d.cluster, FromNode: d.node, Gateway: id.Name,
		Check: proto.Clone(req).(*quoratev1.CheckRequest),
	}
	fwd.Check.Attempt = max(1, req.GetAttempt())
	j := &journey{desk: d, principal: c.Principal, fillEpoch: c.RouteEpoch == 0,
		retryWithin: horizon / 2, started: start}
	err = j.run(ctx, func(ctx context.Context, to target) error {
		if j.fillEpoch {
			c.RouteEpoch, fwd.Check.RouteEpoch = to.epoch, uint64(to.epoch)
		}
		var err error
		if to.local {
			out, err = d.decide(ctx, c)
		} else {
			out, err = to.client.ForwardCheck(ctx, fwd)
			if err == nil {
				err = soundDecision(out)
			}
		}
		fwd.Check.Attempt++
		return err
	})
	if err != nil {
		out = nil
		return nil, err
	}
	return out, nil
}

// decide has a check decided by this node and nobody else.
func (d *desk) decide(ctx context.Context, c fsm.Check) (*quoratev1.Decision, error) {
	a, err := d.backend.Check(ctx, c)
	if err != nil {
		return nil, quotaerr.As(err)
	}
	return decisionOf(&a, c.DecisionID, d.wall())
}

// peek answers a caller's peek, from wherever its partition is led.
func (d *desk) peek(
	ctx context.Context, id Identity, req *quoratev1.PeekRequest,
) (*quoratev1.PeekResponse, error) {
	p, err := peekOf(req)
	if err != nil {
		return nil, err
	}
	if err := id.mayAsk(p.Class); err != nil {
		return nil, err
	}
	fwd := &quoratev1.ForwardPeekRequest{
		ClusterId: d.cluster, FromNode: d.node, Peek: proto.Clone(req).(*quoratev1.PeekRequest),
	}
	var out *quoratev1.PeekResponse
	j := &journey{desk: d, principal: p.Principal, fillEpoch: p.RouteEpoch == 0, harmless: true}
	err = j.run(ctx, func(ctx context.Context, to target) error {
		if j.fillEpoch {
			p.RouteEpoch, fwd.Peek.RouteEpoch = to.epoch, uint64(to.epoch)
		}
		var err error
		if to.local {
			out, err = d.tell(ctx, p)
		} else {
			out, err = to.client.ForwardPeek(ctx, fwd)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// tell has a peek answered by this node and nobody else.
func (d *desk) tell(ctx context.Context, p fsm.Peek) (*quoratev1.PeekResponse, error) {
	a, err := d.backend.Peek(ctx, p)
	if err != nil {
		return nil, quotaerr.As(err)
	}
	return peekResponseOf(&a, d.wall())
}

// target is where one attempt goes.
type target struct {
	local  bool
	node   string // where it is not local
	client quoratev1.PeerClient
	epoch  fsm.Epoch
}

// journey is one check or peek on its way to an answer: attempts until one settles it.
type journey struct {
	desk      *desk
	principal string
	fillEpoch bool // the caller left the routing to this node
	harmless  bool // nothing can be consumed, so an unknown fate is no matter
	started   time.Time
	// retryWithin is how long after the first attempt with an unknown fate may another one start.
	retryWithin time.Duration

	unknown *quotaerr.Error // of the first attempt whose fate is unknown
	hint    string          // the node that an attempt said leads
	pause   time.Duration
}

// run makes attempts until one is settled, or waiting is no use any more.
func (j *journey) run(ctx context.Context, attempt func(context.Context, target) error) error {
	if err := j.desk.enter(); err != nil {
		return err
	}
	defer j.desk.leave()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultTimeout)
		defer cancel()
	}
	patience, stop := patienceOf(ctx)
	defer stop()
	for {
		// Asked before the attempt, so that a change during it is not missed.
		lead := j.desk.backend.Leader(j.principal)
		last := j.once(ctx, lead, attempt)
		if last == nil {
			return nil
		}
		if j.settled(last) {
			return j.final(last)
		}
		if !j.wait(ctx, patience, lead.Changed) {
			return j.final(last)
		}
	}
}

// patienceOf is ctx, which has a deadline, with a little left over at its end, so that the reason reaches the
// caller before the caller gives up.
func patienceOf(ctx context.Context) (context.Context, context.CancelFunc) {
	end, _ := ctx.Deadline()
	spare := min(max(time.Until(end)/10, time.Millisecond), 100*time.Millisecond)
	return context.WithDeadline(ctx, end.Add(-spare))
}

// once makes one attempt and returns nil when it got an answer.
func (j *journey) once(
	ctx context.Context, lead Leadership, attempt func(context.Context, target) error,
) *quotaerr.Error {
	if ctx.Err() != nil {
		return quotaerr.New(quotaerr.NoQuorum, "the deadline passed before a leader was found")
	}
	if j.unknown != nil {
		if time.Since(j.started) >= j.retryWithin {
			return j.unknown // it became too late while waiting
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, j.started.Add(j.retryWithin))
		defer cancel()
	}
	to, err := j.aim(lead)
	if err != nil {
		return quotaerr.As(err)
	}
	if to.local {
		err = attempt(ctx, to)
	} else {
		following, stop := whileLeading(ctx, lead.Node, to.node, func() string { return j.desk.backend.Leader(j.principal).Node })
		err = j.forward(following, to, attempt)
		stop()
	}
	e := quotaerr.As(err)
	if e != nil && e.Reason == quotaerr.OutcomeUnknown && j.unknown == nil && !j.harmless {
		j.unknown = e
	}
	return e
}

const (
	// followAfter is how long an attempt at another node lasts before it is looked whether that node still leads,
	// and followInterval is between two looks.
	followAfter    = 200 * time.Millisecond
	followInterval = 100 * time.Millisecond
)

// whileLeading is ctx until another node than asked is known to lead, where known did when the attempt began: a node
// that hangs answers nobody, and would cost the whole deadline.
func whileLeading(
	ctx context.Context, known, asked string, leader func() string,
) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	look := time.AfterFunc(followAfter, func() {
		tick := time.NewTicker(followInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			if now := leader(); now != "" && now != known && now != asked {
				cancel()
				return
			}
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return ctx, func() {
		look.Stop()
		cancel()
	}
}

// aim chooses where the next attempt goes: to the node that the last one named, else to the leader.
func (j *journey) aim(lead Leadership) (target, error) {
	to := target{epoch: lead.Epoch}
	node := lead.Node
	local := lead.Local
	if j.hint != "" {
		node, local = j.hint, j.hint == j.desk.node
		j.hint = ""
	}
	if node == "" && !local {
		if waits := j.desk.backend.Waiting(); waits != "" {
			return to, quotaerr.New(quotaerr.NoQuorum, "this node has no part in the cluster yet: %s", waits)
		}
	}
	if j.fillEpoch && lead.Epoch == 0 {
		return to, quotaerr.New(quotaerr.NoQuorum, "no partition is known to own this principal's slot")
	}
	if local {
		to.local = true
		return to, nil
	}
	if node == "" {
		return to, quotaerr.New(quotaerr.NoQuorum,
			"the principal's partition has no leader at present: retry with the same decision id")
	}
	to.node = node
	var err error
	to.client, err = j.desk.peer(node)
	return to, err
}

// peer is the connection to another node.
func (d *desk) peer(node string) (quoratev1.PeerClient, error) {
	members := d.backend.Members()
	for _, m := range members {
		if m.ID == node {
			return d.peers.to(m, members)
		}
	}
	return nil, quotaerr.New(quotaerr.NoQuorum, "node %.63q is not among the nodes known here", node)
}

// forward makes an attempt at another node and tells what its failure means.
func (j *journey) forward(
	ctx context.Context, to target, attempt func(context.Context, target) error,
) error {
	ctx, sent := watchSent(ctx)
	err := attempt(ctx, to)
	if err == nil {
		j.desk.metrics.forwards.WithLabelValues("answered").Inc()
		return nil
	}
	e := errtable.FromStatus(err)
	if e.Reason == quotaerr.OutcomeUnknown && !sent() {
		e = quotaerr.Wrap(quotaerr.NoQuorum, err, "the partition's leader cannot be reached")
	}
	e = asForwarded(e, to.node)
	j.desk.metrics.forwards.WithLabelValues(string(e.Reason)).Inc()
	switch e.Reason {
	case quotaerr.NotLeader:
		j.hint = e.Leader
		j.desk.backend.Learn(j.principal, to.node, e)
	case quotaerr.WrongEpoch:
		j.desk.backend.Learn(j.principal, to.node, e)
	default:
	}
	return e
}

// asForwarded is what another node's refusal means to the caller. That it does not accept this node says nothing
// about the caller, who was accepted here.
func asForwarded(e *quotaerr.Error, node string) *quotaerr.Error {
	if e.Reason == quotaerr.PermissionDenied || e.Reason == quotaerr.Unauthenticated {
		return quotaerr.Wrap(quotaerr.NoQuorum, e, "node %s does not accept this node: %s", node, e.Message)
	}
	return e
}

// settled reports whether another attempt is of no use.
func (j *journey) settled(e *quotaerr.Error) bool {
	switch e.Reason {
	case quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.OutcomeUnknown:
	case quotaerr.WrongEpoch, quotaerr.Frozen:
		if !j.fillEpoch {
			return true
		}
	default:
		return true
	}
	return j.unknown != nil && time.Since(j.started) >= j.retryWithin
}

// final is what the caller is told after the last attempt: once an attempt's fate is unknown, a later
// refusal does not say that nothing was consumed.
func (j *journey) final(last *quotaerr.Error) error {
	if j.unknown == nil || last.Reason == quotaerr.DecisionIDConflict {
		return last
	}
	return quotaerr.Wrap(quotaerr.OutcomeUnknown, errors.Join(j.unknown, last),
		"an attempt may have been counted: retry with the same decision id")
}

// wait pauses before the next attempt until the leadership changes or a growing, jittered time has
// passed. It is false when the caller cannot wait any longer.
func (j *journey) wait(ctx, patience context.Context, changed <-chan struct{}) bool {
	if patience.Err() != nil {
		return false
	}
	if j.hint != "" && j.pause == 0 {
		j.pause = minPause // the first hint is followed at once
		return true
	}
	j.pause = min(max(2*j.pause, minPause), maxPause)
	t := time.NewTimer(j.pause/2 + rand.N(j.pause/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-changed:
		// A short rest all the same: a leadership that changes over and over must not be chased.
		t.Reset(minPause)
		<-t.C
		return ctx.Err() == nil
	case <-patience.Done():
		return false
	}
}
