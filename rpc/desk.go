package rpc

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	measures "github.com/quorate/quorate/internal/guard"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// DefaultTimeout bounds a check or peek whose caller set no deadline.
	DefaultTimeout = 5 * time.Second
	// DefaultMaxInFlight bounds the checks and peeks that one node has not answered yet.
	DefaultMaxInFlight = 16384
)

// desk takes checks and peeks from callers of any protocol and gets each answered by the node that
// leads the principal's partition.
type desk struct {
	node        string
	cluster     string
	backend     Backend
	queuer      Queuer // the backend, where it is one
	peers       *peers
	metrics     *metrics
	maxInFlight int64
	inFlight    atomic.Int64
	wall        func() time.Time

	bulletin *bulletin
	attempts *attempts
	ending   chan struct{} // closed when the node stops
	// What operators, other nodes and gateways have under way.
	operators, forwarded, uploads, downloads, snapshots, transfers, watchers, checkStreams *shares
	// What their streams have unanswered, of maxInFlight.
	streamed *shares
}

func newDesk(config *Config, m *metrics) *desk {
	queuer, _ := config.Backend.(Queuer)
	return &desk{
		queuer: queuer,
		node:   config.Node, cluster: config.ClusterID, backend: config.Backend, peers: newPeers(config.TLS),
		metrics: m, maxInFlight: int64(config.MaxInFlight), wall: time.Now,
		bulletin:     &bulletin{cluster: config.ClusterID, backend: config.Backend},
		attempts:     newAttempts(config.Backend.Admin, m),
		ending:       make(chan struct{}),
		operators:    newShares("operators' calls", maxOperations, maxOperationsEach),
		forwarded:    newShares("operators' calls from other nodes", maxOperations, maxOperationsEach),
		uploads:      newShares("uploads", maxUploads, maxUploadsEach),
		downloads:    newShares("downloads", maxDownloads, maxDownloadsEach),
		snapshots:    newShares("backups under way", maxSnapshots, maxSnapshotsEach),
		transfers:    newShares("transfers", maxTransfers, maxTransfersEach),
		watchers:     newShares("watches", maxWatchers, maxWatchersEach),
		checkStreams: newShares("streams of checks", maxCheckStreams, maxCheckStreamsEach),
		streamed:     newShares("unanswered checks", config.MaxInFlight, streamedShare(config.MaxInFlight)),
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

// enterSeveral is enter for n, of which the first ones come in; it returns how many. leaveSeveral is for those.
func (d *desk) enterSeveral(n int) (entered int) {
	over := max(0, d.inFlight.Add(int64(n))-d.maxInFlight)
	entered = n - int(min(int64(n), over))
	d.inFlight.Add(int64(entered - n))
	d.metrics.inFlight.Add(float64(entered))
	return entered
}

func (d *desk) leaveSeveral(n int) {
	d.inFlight.Add(-int64(n))
	d.metrics.inFlight.Sub(float64(n))
}

func (d *desk) leave() {
	d.inFlight.Add(-1)
	d.metrics.inFlight.Dec()
}

// check answers a caller's check, from wherever its partition is led.
func (d *desk) check(
	ctx context.Context, id Identity, req *quoratev1.CheckRequest, protocol string,
) (*quoratev1.Decision, error) {
	out, _, err := d.routed(ctx, id, req, protocol, time.Now())
	return out, err
}

// routed is check, and tells which other node leads the partition, if that is known to be another.
func (d *desk) routed(
	ctx context.Context, id Identity, req *quoratev1.CheckRequest, protocol string, arrived time.Time,
) (out *quoratev1.Decision, leader string, err error) {
	defer func() { d.metrics.observe(protocol, arrived, out, err) }()
	c, err := askedBy(id, req)
	if err != nil {
		return nil, "", err
	}
	j := d.journeyOf(req, &c, d.horizonOf(&c), arrived)
	return j.ended(j.run(ctx, j.attempt))
}

// askedBy is a caller's check, if it is well-formed and the caller may ask it.
func askedBy(id Identity, req *quoratev1.CheckRequest) (fsm.Check, error) {
	c, err := checkOf(req, id.Name)
	if err == nil {
		err = id.mayAskAll(&c)
	}
	return c, err
}

// horizonOf is the shortest replay horizon in force of what a check charges.
func (d *desk) horizonOf(c *fsm.Check) time.Duration {
	horizon := d.backend.ReplayHorizon(c.Class)
	for _, a := range c.Also {
		horizon = min(horizon, d.backend.ReplayHorizon(a.Class))
	}
	return horizon
}

// checkJourney is a check on its way to a decision.
type checkJourney struct {
	journey
	req      *quoratev1.CheckRequest
	check    *fsm.Check
	number   uint32 // of the next attempt
	decision *quoratev1.Decision
	leader   string // the other node that was asked last
}

// journeyOf begins the journey of a check that was made of req.
func (d *desk) journeyOf(
	req *quoratev1.CheckRequest, c *fsm.Check, horizon time.Duration, arrived time.Time,
) *checkJourney {
	return &checkJourney{
		journey: journey{desk: d, principal: c.Principal, fillEpoch: req.GetRouteEpoch() == 0,
			epoch: fsm.Epoch(req.GetRouteEpoch()), retryWithin: horizon / 2, started: arrived},
		req: req, check: c, number: max(1, req.GetAttempt()),
	}
}

// attempt has the check decided where to says.
func (j *checkJourney) attempt(ctx context.Context, to target) (err error) {
	if j.fillEpoch {
		j.check.RouteEpoch = to.epoch
	}
	j.leader = to.node
	if to.local {
		j.decision, err = j.desk.decide(ctx, *j.check)
	} else {
		j.decision, err = to.client.ForwardCheck(ctx, j.desk.forwarding(j.req, j.check, j.number))
		if err == nil {
			err = soundDecision(j.decision)
		}
	}
	j.number++
	return err
}

// ended is what the journey has come to, and which other node leads the partition, if that is known to be another.
func (j *checkJourney) ended(err error) (out *quoratev1.Decision, leader string, _ error) {
	if err != nil && !measures.On(measures.UnknownIsTold) && quotaerr.As(err).Reason == quotaerr.OutcomeUnknown {
		return deniedUnknown(j.check), j.leader, nil
	}
	if err != nil {
		return nil, j.desk.leadElsewhere(j.principal, err), err
	}
	return j.decision, j.leader, nil
}

// forwarding is a caller's check as one attempt passes it on: c is what was made of req.
func (d *desk) forwarding(req *quoratev1.CheckRequest, c *fsm.Check, attempt uint32) *quoratev1.ForwardCheckRequest {
	own := proto.CloneOf(req)
	own.RouteEpoch, own.Attempt = uint64(c.RouteEpoch), attempt
	return &quoratev1.ForwardCheckRequest{
		ClusterId: d.cluster, FromNode: d.node, Gateway: c.Gateway, Check: own,
	}
}

// leadElsewhere is the other node that leads the partition of a principal, once a check of it has failed: the one that
// the failure names, else the one that this node knows of.
func (d *desk) leadElsewhere(principal string, failed error) string {
	if e := quotaerr.As(failed); e.Leader != "" && e.Leader != d.node {
		return e.Leader
	}
	if lead := d.backend.Leader(principal); !lead.Local && lead.Node != d.node {
		return lead.Node
	}
	return ""
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
	if !measures.On(measures.LoggedPeek) {
		return d.peekHere(ctx, p)
	}
	fwd := &quoratev1.ForwardPeekRequest{
		ClusterId: d.cluster, FromNode: d.node, Peek: proto.Clone(req).(*quoratev1.PeekRequest),
	}
	var out *quoratev1.PeekResponse
	j := &journey{desk: d, principal: p.Principal, fillEpoch: p.RouteEpoch == 0, epoch: p.RouteEpoch,
		harmless: true}
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
