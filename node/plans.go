package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/control/handoff"
	"github.com/quorate/quorate/control/placement"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/node/admin"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// driveInterval is between two looks whether this node leads the control group, and so drives the plans.
	driveInterval = 100 * time.Millisecond
	// readTimeout bounds a committed read of the control state, and readPause is the pause after one that failed.
	readTimeout = 5 * time.Second
	readPause   = 200 * time.Millisecond
	// maxPulls bounds the pulls that this node has asked for and that are under way.
	maxPulls = 4
)

// plans are those that this node drives.
type plans struct {
	pulls chan struct{} // holds one per pull that is under way

	mu      sync.Mutex // guards drivers
	drivers map[fsm.PlanID]*planDriver
}

func newPlans() *plans {
	return &plans{pulls: make(chan struct{}, maxPulls), drivers: map[fsm.PlanID]*planDriver{}}
}

// planDriver drives one plan: it has the ends make their steps, one at a time, until the plan is closed. It decides
// nothing by itself, and remembers nothing that another could not find out: whichever node leads the control group goes
// on with the plan. Each step is guarded where it is made, by the state machine of the end or of the control group, so
// a driver that was stopped at any point, and goes on long after, changes nothing.
type planDriver struct {
	node  *Node
	id    fsm.PlanID
	steps *handoff.Driver
	stop  context.CancelFunc
	whole bool // the destination, if it was made for the plan, was seen to have all its replicas
	// trouble is what was reported last of a step that was not made.
	trouble string

	mu    sync.Mutex // guards words
	words string     // how it stands
}

// PlanReplicas are the nodes that a partition made for a plan is to have its replicas on, the first its founder. All
// are asked whether they are up: that one died a moment ago is not known yet.
func (c *cluster) PlanReplicas() []string {
	n := (*Node)(c)
	open := n.control()
	if open == nil {
		return nil
	}
	s := open.State()
	return n.placeNew(s, n.silent(s))
}

// silentAfter is how long a node may take to answer that it is up.
const silentAfter = time.Second

// silent are the nodes that do not answer.
func (n *Node) silent(s *state.State) map[string]bool {
	ctx, cancel := context.WithTimeout(n.life, silentAfter)
	defer cancel()
	var mu sync.Mutex // guards out
	out := map[string]bool{}
	var asking sync.WaitGroup
	for _, known := range s.Nodes {
		if known.State == state.NodeRemoved || known.ID == n.cfg.ID {
			continue
		}
		asking.Go(func() {
			if _, err := n.askNode(ctx, known.ID, question{Kind: askWho}); err != nil {
				mu.Lock()
				defer mu.Unlock()
				out[known.ID] = true
			}
		})
	}
	asking.Wait()
	return out
}

// placeNew chooses the replicas of a new partition, on nodes that are not silent. Those that are being made count as
// they are to be.
func (n *Node) placeNew(s *state.State, silent map[string]bool) []string {
	in := n.placementInput(s)
	in.Nodes = slices.DeleteFunc(in.Nodes, func(p placement.Node) bool { return silent[p.ID] })
	for i, p := range s.Partitions {
		if len(in.Partitions[i].Members) > 0 {
			continue
		}
		in.Partitions[i].Leader, _, _ = strings.Cut(p.Founder, "@")
		for _, id := range p.Replicas {
			in.Partitions[i].Members = append(in.Partitions[i].Members, placement.Member{Node: id})
		}
	}
	return placement.Place(in)
}

// PlanProgress is what is being done for a plan at present, as far as this node drives it.
func (c *cluster) PlanProgress(plan fsm.PlanID) string { return (*Node)(c).plans.progress(plan) }

func (p *plans) progress(plan fsm.PlanID) string {
	p.mu.Lock()
	d := p.drivers[plan]
	p.mu.Unlock()
	if d == nil {
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.words
}

// drivePlans drives each plan that is not closed, while this node leads the control group, until ctx ends.
func (n *Node) drivePlans(ctx context.Context) {
	var driving sync.WaitGroup
	defer driving.Wait()
	tick := time.NewTicker(driveInterval)
	defer tick.Stop()
	for {
		s, changed := n.control().Changed()
		if n.hosted.of(controlID).leads() {
			for _, p := range s.Plans {
				if d, life := n.plans.begin(ctx, n, p.ID); d != nil {
					driving.Go(func() { d.run(life) })
				}
			}
		} else {
			n.plans.stopAll()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

// begin makes the driver of a plan; nil when there is one.
func (p *plans) begin(ctx context.Context, n *Node, plan fsm.PlanID) (*planDriver, context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drivers[plan] != nil {
		return nil, nil
	}
	d := &planDriver{node: n, id: plan, steps: handoff.NewDriver(plan, n.sinceStart())}
	ctx, d.stop = context.WithCancel(ctx)
	p.drivers[plan] = d
	return d, ctx
}

// stopAll has all drivers end: another node leads the control group.
func (p *plans) stopAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.drivers {
		d.stop()
	}
}

// sinceStart is a clock that never goes back, in nanoseconds.
func (n *Node) sinceStart() int64 { return int64(time.Since(n.started)) }

// run makes steps until the plan is closed, or ctx ends.
func (d *planDriver) run(ctx context.Context) {
	n := d.node
	defer func() {
		d.stop()
		n.plans.mu.Lock()
		defer n.plans.mu.Unlock()
		delete(n.plans.drivers, d.id)
	}()
	n.logger.Info("driving a plan", "plan", d.id)
	for {
		s, step, open := d.next(ctx)
		if ctx.Err() != nil {
			return
		}
		if !open {
			n.logger.Info("a plan is closed", "plan", d.id)
			return
		}
		begun := time.Now()
		answer := d.make(ctx, s, step)
		if ctx.Err() != nil {
			return
		}
		d.report(step, answer, time.Since(begun))
		d.steps.Note(n.sinceStart(), answer)
		d.say(d.steps.Progress())
	}
}

// next is the next step, after the pause that it wants, and the control state that it is by; open is false when the
// plan is closed. A change of the control state may make another step the next; the same one goes on waiting.
func (d *planDriver) next(ctx context.Context) (s *state.State, step handoff.Step, open bool) {
	var due time.Time
	var waits string
	for ctx.Err() == nil {
		_, changed := d.node.control().Changed()
		var err error
		if s, err = d.read(ctx); err != nil {
			d.node.logger.Debug("the control state cannot be read: the plan waits", "plan", d.id, "error", err)
			pauseFor(ctx, readPause, nil)
			continue
		}
		if step, open = d.steps.Next(d.node.sinceStart(), s); !open {
			return s, step, false
		}
		d.say(d.steps.Progress())
		if now := step.String(); now != waits {
			waits, due = now, time.Now().Add(time.Duration(step.PauseNanos))
		}
		left := time.Until(due)
		if left <= 0 || !pauseFor(ctx, left, changed) {
			break
		}
	}
	return s, step, true
}

// report tells what came of a step.
func (d *planDriver) report(step handoff.Step, a handoff.Answer, took time.Duration) {
	logger := d.node.logger.With("plan", d.id, "step", step.Kind.String())
	switch now := a.Failed + a.Refused; {
	case now != "" && now != d.trouble:
		logger.Warn("a step of a plan was not made", "failed", a.Failed, "refused", a.Refused)
		d.trouble = now
	case now == "" && step.Kind.Acts():
		logger.Info("a step of a plan was made", "why", step.Why, "took", took, "slots", a.Slots, "bytes", a.Bytes)
		d.trouble = ""
	}
}

func (d *planDriver) say(words string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.words = words
}

// read is the control state. What follows a decision or an abort rests on a committed read of it; before that each
// step is refused where it is made when it is too late.
func (d *planDriver) read(ctx context.Context) (*state.State, error) {
	c := d.node.control()
	s := c.State()
	if p, ok := s.Plan(d.id); ok && p.Phase == state.PlanOpen {
		return s, nil
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return c.Read(ctx)
}

// pauseFor waits until changed is closed, which it reports, a time has passed, or ctx ends.
func pauseFor(ctx context.Context, pause time.Duration, changed <-chan struct{}) (early bool) {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
		return true
	case <-t.C:
		return false
	}
}

// holdPoints are where a test may stop the process, right before a step.
var holdPoints = map[handoff.Kind]string{
	handoff.Pull: "plan.pull", handoff.Freeze: "plan.freeze", handoff.Open: "plan.open", handoff.Seal: "plan.seal",
	handoff.Decide: "plan.decide", handoff.Activate: "plan.activate", handoff.Release: "plan.release",
	handoff.Close: "plan.close", handoff.Abort: "plan.abort", handoff.AbortSource: "plan.abort",
	handoff.AbortDestination: "plan.abort",
}

// make makes a step, as the control state stands.
func (d *planDriver) make(ctx context.Context, s *state.State, step handoff.Step) handoff.Answer {
	plan, ok := s.Plan(d.id)
	if !ok {
		return handoff.Answer{Failed: "the plan is closed"}
	}
	if point, is := holdPoints[step.Kind]; is {
		guard.Hold(point)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(step.WithinNanos))
	defer cancel()
	switch step.Kind {
	case handoff.Decide:
		decision := step.Decision
		return d.propose(ctx, step.Kind, &state.Command{Kind: state.KindDecidePlan, Plan: plan.ID, Decide: &decision})
	case handoff.Abort:
		return d.propose(ctx, step.Kind, &state.Command{Kind: state.KindAbortPlan, Plan: plan.ID, Comment: step.Why})
	case handoff.Close:
		return d.propose(ctx, step.Kind, &state.Command{Kind: state.KindClosePlan, Plan: plan.ID})
	case handoff.Wait:
		return handoff.Answer{}
	case handoff.LookSource, handoff.LookDestination, handoff.Pull, handoff.Freeze, handoff.Open, handoff.Seal,
		handoff.Activate, handoff.Release, handoff.AbortSource, handoff.AbortDestination:
	}
	go d.cancelWhenChanged(ctx, cancel, plan.Phase)
	return d.ask(ctx, s, plan, step)
}

// cancelWhenChanged ends a step when the plan is decided, aborted or closed meanwhile.
func (d *planDriver) cancelWhenChanged(ctx context.Context, cancel context.CancelFunc, phase state.PlanPhase) {
	for ctx.Err() == nil {
		s, changed := d.node.control().Changed()
		if p, ok := s.Plan(d.id); !ok || p.Phase != phase {
			cancel()
			return
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// propose has the control group make a step.
func (d *planDriver) propose(ctx context.Context, step handoff.Kind, cmd *state.Command) handoff.Answer {
	cmd.Actor = admin.ItselfName
	if _, err := d.node.control().Propose(ctx, cmd); err != nil {
		return failedAnswer(step, err)
	}
	return handoff.Answer{}
}

// failedAnswer is what an error says of a step.
func failedAnswer(step handoff.Kind, err error) handoff.Answer {
	e := quotaerr.As(err)
	switch {
	case e.Reason == quotaerr.InvalidArgument, e.Reason == quotaerr.Capacity:
		return handoff.Answer{Refused: e.Message}
	case step == handoff.Freeze && (e.Reason == quotaerr.PolicyStale || e.Reason == quotaerr.PolicyBehind):
		return handoff.Answer{Refused: e.Message} // so nothing is frozen, which is known
	default:
		return handoff.Answer{Failed: string(e.Reason) + ": " + e.Message}
	}
}

// stepKinds are the steps that the ends make.
var stepKinds = map[handoff.Kind]quoratev1.PlanStepKind{
	handoff.LookSource:       quoratev1.PlanStepKind_PLAN_STEP_KIND_LOOK,
	handoff.LookDestination:  quoratev1.PlanStepKind_PLAN_STEP_KIND_LOOK,
	handoff.Pull:             quoratev1.PlanStepKind_PLAN_STEP_KIND_PULL,
	handoff.Freeze:           quoratev1.PlanStepKind_PLAN_STEP_KIND_FREEZE,
	handoff.Open:             quoratev1.PlanStepKind_PLAN_STEP_KIND_OPEN,
	handoff.Seal:             quoratev1.PlanStepKind_PLAN_STEP_KIND_SEAL,
	handoff.Activate:         quoratev1.PlanStepKind_PLAN_STEP_KIND_ACTIVATE,
	handoff.Release:          quoratev1.PlanStepKind_PLAN_STEP_KIND_RELEASE,
	handoff.AbortSource:      quoratev1.PlanStepKind_PLAN_STEP_KIND_ABORT,
	handoff.AbortDestination: quoratev1.PlanStepKind_PLAN_STEP_KIND_ABORT,
}

// ask has one of the ends make a step.
func (d *planDriver) ask(ctx context.Context, s *state.State, plan *state.Plan, step handoff.Step) handoff.Answer {
	n := d.node
	q := &quoratev1.PlanStepRequest{
		ClusterId: n.cfg.ClusterID, FromNode: n.cfg.ID, Plan: uint64(plan.ID), Step: stepKinds[step.Kind],
		Partition: plan.Destination.String(), Ranges: rangesOnWire(plan.Slots()),
	}
	switch step.Kind {
	case handoff.LookSource, handoff.Freeze, handoff.Release, handoff.AbortSource:
		q.Partition, q.Revision = plan.Source.String(), uint64(step.Revision)
	case handoff.Open:
		q.Manifest = manifestOnWire(step.Manifest)
	case handoff.Activate:
		q.Epoch, q.Lost = uint64(plan.Epoch), plan.Lost()
	case handoff.Pull:
		select {
		case n.plans.pulls <- struct{}{}:
			defer func() { <-n.plans.pulls }()
		case <-ctx.Done():
			return handoff.Answer{Failed: "other plans are being copied: waiting for a turn"}
		}
		q.Source, q.SourceNode, q.AnyReplica = plan.SourceName(), plan.From, plan.Copies()
		if plan.Copies() && !plan.Lost() {
			q.Ranges = ownedOnWire(plan.Ranges)
		}
		if !plan.Copies() {
			leader, ok := (*cluster)(n).Leader(plan.Source.String())
			if !ok {
				return handoff.Answer{Failed: "no leader of " + plan.Source.String() + " is known"}
			}
			q.SourceNode = leader
		}
	default:
	}
	if plan.Phase == state.PlanOpen && plan.Made && !d.whole && q.Partition == plan.Destination.String() {
		if missing := n.lacksReplicas(s, plan.Destination); missing != "" {
			return handoff.Answer{Failed: missing}
		}
		d.whole = true
	}
	a, err := n.stepAt(ctx, q)
	if err != nil {
		return failedAnswer(step.Kind, err)
	}
	return answerOf(a)
}

// answerOf is what an end says.
func answerOf(a *quoratev1.PlanStepResponse) handoff.Answer {
	end, known := endOf(a.GetEnd())
	if !known {
		return handoff.Answer{Failed: "the node does not say how it stands: check that the nodes' versions agree"}
	}
	out := handoff.Answer{
		End: end, Revision: fsm.Revision(a.GetRevision()), Slots: a.GetSlots(), Bytes: a.GetSize(),
		Clearing: a.GetClearing(),
	}
	if a.GetManifest() != nil {
		var err error
		if out.Manifest, err = manifestOf(a.GetManifest()); err != nil {
			return handoff.Answer{Failed: err.Error()}
		}
	}
	return out
}

// stepAt has a partition make a step, wherever it is led. A leader that the first node names is asked at once.
func (n *Node) stepAt(ctx context.Context, q *quoratev1.PlanStepRequest) (*quoratev1.PlanStepResponse, error) {
	leader, ok := (*cluster)(n).Leader(q.GetPartition())
	if !ok {
		return nil, quotaerr.New(quotaerr.NoQuorum, "no leader of %s is known", q.GetPartition())
	}
	a, err := n.stepOn(ctx, leader, q)
	var e *quotaerr.Error
	if errors.As(err, &e) && e.Reason == quotaerr.NotLeader && e.Leader != "" && e.Leader != leader {
		a, err = n.stepOn(ctx, e.Leader, q)
	}
	return a, err
}

// stepOn has a node make a step.
func (n *Node) stepOn(
	ctx context.Context, node string, q *quoratev1.PlanStepRequest,
) (*quoratev1.PlanStepResponse, error) {
	if node == n.cfg.ID {
		return n.planStepHere(ctx, q)
	}
	peer, err := n.server.Peer(node)
	if err != nil {
		return nil, err
	}
	a, err := peer.PlanStep(ctx, q)
	if err != nil {
		return nil, errtable.FromStatus(err)
	}
	return a, nil
}

// lacksReplicas is what a partition that was made for a plan still lacks; empty when each of its replicas has its vote.
// With fewer, what is moved to it would rest on fewer disks than before.
func (n *Node) lacksReplicas(s *state.State, id state.PartitionID) string {
	p, ok := s.Partition(id)
	if !ok {
		return id.String() + " is not in the control state"
	}
	g := n.leading(id.String(), time.Now())
	if g == nil {
		return id.String() + " has no leader yet"
	}
	for _, node := range p.Replicas {
		if m, listed := g.lists(node); !listed || m.Learner {
			return id.String() + " does not have its replica on node " + node + " yet"
		}
	}
	return ""
}
