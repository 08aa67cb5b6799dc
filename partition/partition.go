package partition

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/chaos"
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/partition/agreement"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/policy"
)

// ErrNotYet says, wrapped, that there is nothing to make the partition with yet. It is asked for again.
var ErrNotYet = errors.New("the partition cannot be made yet")

// Config is what a Partition needs. All fields but InFlight are required.
type Config struct {
	ID     string // the partition's
	NodeID string
	// Open opens the Raft group that replicates the partition to applier.
	Open func(applier group.Applier) (group.Group, error)
	// Birth is what the partition is made with, asked for by the first leader; its Policy is not used. An
	// error that is ErrNotYet is nothing to report.
	Birth func() (*fsm.Birth, error)
	// Policy finds the policy that an entry names, see fsm.PolicyRef.Check. It blocks until it has it, or until
	// ctx ends, as it does with the partition: the entry is not applied before.
	Policy func(ctx context.Context, ref fsm.PolicyRef) (*policy.Policy, error)
	// Lease is this node's policy lease. It must not block.
	Lease func() PolicyLease
	// Source is this machine's clocks, MaxDriftPPM the most by which they drift.
	Source      clock.Source
	MaxDriftPPM int64
	TrustWall   clock.TrustWall
	// Ahead hears that partition time outran this machine's clock; it must not block.
	Ahead func(Ahead)
	// Consult asks another replica, when states differ.
	Consult agreement.Consult
	// WithRoom names a node of another voter whose disk has room; ok is false when there is none.
	WithRoom func() (node string, ok bool)
	// PeerLevels is the lowest feature level that the programs of all other replicas know; all is false
	// while one of them is unknown.
	PeerLevels func() (lowest fsm.Level, all bool)
	// InFlight, if set, is shared by the partitions of a node.
	InFlight *InFlight
	// Fatal ends the process with a message: an entry or a snapshot is beyond this program.
	Fatal   func(error)
	Metrics prometheus.Registerer
	Logger  *slog.Logger

	level        fsm.Level     // the highest that this program knows; 0 means fsm.MaxLevel
	tickInterval time.Duration // 0 means the constant
}

// Ahead is what a follower saw of a leader whose partition time runs fast.
type Ahead struct {
	Leader string // node id; empty when not known
	Term   uint64
	clock.Spans
}

// Partition is this node's replica of a partition, and its owner while the node leads it.
type Partition struct {
	cfg      Config
	timeline *clock.Timeline
	pace     *clock.Pace
	replica  *Replica
	group    group.Group
	owner    *owner
	metrics  *metrics

	// inquiry compares the state with the others'; nil while the group is opened, when there is nobody to ask:
	// a state that differs goes on differing, so the next entry tells again.
	inquiry atomic.Pointer[agreement.Agreement]
	diskLow atomic.Bool
	crowded chan struct{} // holds a signal while the log may name too many policies

	opened    chan struct{} // closed when all of the above is set: the group applies before
	stop      context.CancelFunc
	done      chan struct{}
	steppedAt atomic.Int64 // when it last stepped down for its pace, nanoseconds of started
	started   time.Time
}

// Open opens the replica and begins to serve.
func Open(cfg Config) (*Partition, error) {
	if cfg.level == 0 {
		cfg.level = fsm.MaxLevel
	}
	timeline, err := clock.NewTimeline(cfg.Source, cfg.MaxDriftPPM, cfg.TrustWall)
	if err != nil {
		return nil, err
	}
	p := &Partition{
		cfg: cfg, timeline: timeline, pace: clock.NewPace(cfg.Source, cfg.MaxDriftPPM),
		opened: make(chan struct{}), done: make(chan struct{}), crowded: make(chan struct{}, 1),
		started: time.Now(),
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	p.replica = newReplica(replicaConfig{
		timeline: timeline, level: cfg.level, observe: p.observe, restored: p.pace.Reset, differs: p.doubt,
		policy:  func(ref fsm.PolicyRef) (*policy.Policy, error) { return cfg.Policy(ctx, ref) },
		closing: func() bool { return ctx.Err() != nil }, crowded: p.crowd,
		fatal: func(err error) { cfg.Fatal(fmt.Errorf("partition %s: %w", cfg.ID, err)) },
		tap:   chaos.NewTap(cfg.NodeID, cfg.ID),
	})
	if p.group, err = cfg.Open(p.replica); err != nil {
		cancel()
		return nil, fmt.Errorf("partition %s: %w", cfg.ID, err)
	}
	p.owner = p.newOwner()
	p.metrics = newMetrics(cfg.Metrics, p)
	p.owner.metrics = p.metrics
	p.inquiry.Store(p.newInquiry())
	close(p.opened)
	var loops sync.WaitGroup
	loops.Go(func() { p.owner.run(ctx) })
	loops.Go(func() { p.compact(ctx) })
	go func() {
		loops.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *Partition) newOwner() *owner {
	o := &owner{
		group: p.group, replica: p.replica, timeline: p.timeline, source: p.cfg.Source, lease: p.cfg.Lease,
		queue: newQueue(), orders: make(chan *order), ended: make(chan struct{}),
		birth: p.cfg.Birth, logger: p.cfg.Logger.With("partition", p.cfg.ID),
		slots: make(chan struct{}, maxInFlight), inFlight: p.cfg.InFlight, started: time.Now(), roles: newRoles(),
		foreseer: newForeseer(),
		halted:   p.halted, diskLow: p.diskLow.Load, level: p.cfg.level, peerLevels: p.cfg.PeerLevels,
		withRoom: p.cfg.WithRoom, interval: p.cfg.tickInterval,
	}
	if o.interval == 0 {
		o.interval = tickInterval
	}
	return o
}

func (p *Partition) newInquiry() *agreement.Agreement {
	return agreement.New(agreement.Config{
		Group: p.cfg.ID, NodeID: p.cfg.NodeID, Members: p.group.Members, DigestAt: p.replica.DigestAt,
		Applied: p.replica.Index, Consult: p.cfg.Consult, Condemn: p.group.Condemn,
		Asking: p.metrics.disagreements.Inc, Logger: p.cfg.Logger,
	})
}

// doubt has an inquiry begin, since an entry's proposer had another state at a log index.
func (p *Partition) doubt(index uint64) {
	if a := p.inquiry.Load(); a != nil {
		a.Doubt(index)
	}
}

// diverged is why this replica has stopped for good; empty while it has not.
func (p *Partition) diverged() string {
	if a := p.inquiry.Load(); a != nil {
		return a.Stopped()
	}
	return ""
}

// halted is why this replica gives no answers; nil while it does.
func (p *Partition) halted() error { return p.inquiry.Load().Halted() }

// Suspect hears of another replica's digest at a log index, has an inquiry begin when it is known to differ
// from this one's, and tells this one's.
func (p *Partition) Suspect(index uint64, other [16]byte) agreement.Opinion {
	return p.inquiry.Load().Suspect(index, other)
}

// crowd has the log compacted soon. It does not block.
func (p *Partition) crowd() {
	select {
	case p.crowded <- struct{}{}:
	default: // it is there
	}
}

// compact takes a snapshot whenever the log names too many policies, until ctx ends: a snapshot holds the
// policies that still count, so the bodies of the others are not needed again.
func (p *Partition) compact(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.crowded:
		}
		if err := p.group.CompactNow(); err != nil && ctx.Err() == nil {
			p.cfg.Logger.Error("the log names many policies and was not compacted: it is tried again at the next",
				"partition", p.cfg.ID, "error", err)
		}
	}
}

// Close stops serving, answers what waits, and closes the group.
func (p *Partition) Close() error {
	p.stop()
	err := p.group.Close()
	p.inquiry.Load().Close()
	<-p.done
	p.replica.tap.Flush()
	return err
}

// Answer is a decision, with its wait as real time.
type Answer struct {
	fsm.Decision
	// RetryAfterNanos is the real time until the same check fits if nobody else consumes, at least 0; only
	// with fsm.ReasonQuotaExhausted.
	RetryAfterNanos int64
	// ResetAfterNanos has for each of Limits the real time until its oldest admission expires.
	ResetAfterNanos []int64
}

// UsageAnswer is a usage, with its waits as real time.
type UsageAnswer struct {
	fsm.Usage
	ResetAfterNanos []int64
}

// Check has c decided, if this node leads the partition. Errors are of type *quotaerr.Error; all but
// outcome_unknown and internal say that nothing was consumed and nothing will be.
func (p *Partition) Check(ctx context.Context, c fsm.Check) (Answer, error) {
	r := newRequest(ctx, c.Gateway)
	r.check = &c
	return p.answerTo(p.owner.ask(r))
}

// answerTo is what the outcome of a check means to its caller.
func (p *Partition) answerTo(out outcome) (Answer, error) {
	if out.err != nil {
		return Answer{}, out.err
	}
	d := out.decision
	if err := refusal(d.Reason, d.Detail, d.Epoch, d.Revision); err != nil {
		return Answer{}, err
	}
	a := Answer{Decision: *d, ResetAfterNanos: p.resets(d.Limits, d.AsOf)}
	if d.Reason == fsm.ReasonQuotaExhausted {
		a.RetryAfterNanos = p.timeline.RealWait(int64(d.RetryAt - d.AsOf))
	}
	return a, nil
}

// Peek tells a usage as of a committed entry, if this node leads the partition.
func (p *Partition) Peek(ctx context.Context, peek fsm.Peek) (UsageAnswer, error) {
	if !guard.On(guard.LoggedPeek) {
		return p.peekHere(&peek)
	}
	r := newRequest(ctx, "")
	r.peek = &peek
	out := p.owner.ask(r)
	if out.err != nil {
		return UsageAnswer{}, out.err
	}
	return p.usageOf(out.usage)
}

// usageOf is what the outcome of a peek means to its caller.
func (p *Partition) usageOf(u *fsm.Usage) (UsageAnswer, error) {
	if err := refusal(u.Reason, u.Detail, u.Epoch, u.Revision); err != nil {
		return UsageAnswer{}, err
	}
	return UsageAnswer{Usage: *u, ResetAfterNanos: p.resets(u.Limits, u.AsOf)}, nil
}

func (p *Partition) resets(limits []fsm.LimitState, asOf fsm.Time) []int64 {
	out := make([]int64, len(limits))
	for i := range limits {
		out[i] = p.timeline.RealWait(int64(limits[i].ResetAt - asOf))
	}
	return out
}

// Status is the replica as it stands.
type Status struct {
	fsm.Status
	AppliedIndex uint64
	RaftTerm     uint64
	Leadership   group.Leadership
	Leader       string // node id; empty while none is known
	Members      []group.Member
	Born         bool
	// Diverged is why this replica has stopped for good; empty while it has not.
	Diverged string
	DiskLow  bool
	// Awaits is the policy revision that the next entry names and that was not found yet; 0 without.
	Awaits fsm.Revision
}

// Status tells how the replica stands.
func (p *Partition) Status() Status {
	s := Status{
		Leadership: p.group.Leadership(), Members: p.group.Members(), RaftTerm: p.group.Status().Term,
		DiskLow: p.diskLow.Load(), Diverged: p.diverged(), Awaits: p.replica.Awaits(),
	}
	p.replica.view(func(m *fsm.Machine, index uint64) {
		s.Status, s.AppliedIndex, s.Born = m.Status(), index, m.Born()
	})
	if leader, ok := p.group.Leader(); ok {
		s.Leader = leader.ID
	}
	return s
}

// Load is what a partition has to do.
type Load struct {
	Keys int64
	// Decisions are those that this node has made for it, since it was opened.
	Decisions int64
}

// Load tells what there is to do.
func (p *Partition) Load() Load {
	out := Load{Decisions: p.owner.decided.Load()}
	p.replica.view(func(m *fsm.Machine, _ uint64) { out.Keys = m.Status().Keys })
	return out
}

// DigestAt is the digest of the state as of a recent log index; known is false when it is too long ago, or
// to come.
func (p *Partition) DigestAt(index uint64) (digest [16]byte, known bool) {
	return p.replica.DigestAt(index)
}

// Revision is the policy revision that this replica has installed; 0 before the birth.
func (p *Partition) Revision() fsm.Revision { return p.replica.Revision() }

// CarriedRule is a rule of an earlier revision that is enforced beside the present one.
type CarriedRule struct {
	fsm.Carried
	EndsInNanos int64 // real time until then, as of the last entry; at least 0
}

// Carried tells which rules of earlier revisions are enforced, by class, as this replica has applied them.
func (p *Partition) Carried() []CarriedRule {
	var out []CarriedRule
	p.replica.view(func(m *fsm.Machine, _ uint64) {
		for _, c := range m.Carried() {
			out = append(out, CarriedRule{c, p.timeline.RealWait(int64(c.Until - m.Now()))})
		}
	})
	return out
}

// SetDiskLow says whether this node's disk has too little room left. While it has, checks are refused with
// capacity, and leadership is handed over.
func (p *Partition) SetDiskLow(low bool) { p.diskLow.Store(low) }

// Role is who leads the partition as this node knows it, and under which epoch the principal's slot is
// owned. changed is closed when this node's own leadership may be another; who only follows has to look again.
func (p *Partition) Role(principal string) (leader string, leading bool, epoch fsm.Epoch, changed <-chan struct{}) {
	var epochs [1]fsm.Epoch
	leader, leading, changed = p.Roles([]string{principal}, epochs[:])
	return leader, leading, epochs[0], changed
}

// Roles is Role of several principals. It sets the epoch of each.
func (p *Partition) Roles(
	principals []string, epochs []fsm.Epoch,
) (leader string, leading bool, changed <-chan struct{}) {
	changed = p.owner.roles.changed()
	p.replica.view(func(m *fsm.Machine, _ uint64) {
		if !m.Born() {
			return
		}
		for i, principal := range principals {
			epochs[i], _ = m.EpochOf(m.SlotOf(principal))
		}
	})
	if l := p.group.Leadership(); l.Term != 0 {
		return p.cfg.NodeID, true, changed
	}
	if m, ok := p.group.Leader(); ok {
		leader = m.ID
	}
	return leader, false, changed
}

// Horizon is the replay horizon in force for apiClass; 0 before the birth.
func (p *Partition) Horizon(apiClass string) (horizon time.Duration) {
	p.replica.view(func(m *fsm.Machine, _ uint64) { horizon = time.Duration(m.HorizonOf(apiClass)) })
	return horizon
}

// stepDownEvery bounds how often a leader steps down because a follower finds it fast: were the
// follower's clock the one that is wrong, the partition would otherwise never rest.
const stepDownEvery = time.Minute

// StepDown hands the leadership of term to another replica, because a follower saw partition time outrun
// its clock. It does nothing when this node leads in another term, or did so less than a minute ago.
func (p *Partition) StepDown(term uint64) error {
	if l := p.group.Leadership(); l.Term == 0 || l.Term != term {
		return nil
	}
	last, now := p.steppedAt.Load(), int64(time.Since(p.started))
	if last != 0 && now-last < int64(stepDownEvery) || !p.steppedAt.CompareAndSwap(last, now) {
		return nil
	}
	p.cfg.Logger.Warn("a follower finds partition time fast: stepping down", "partition", p.cfg.ID, "term", term)
	if err := p.group.Transfer(""); err != nil && !errors.Is(err, group.ErrNotLeader) {
		return fmt.Errorf("partition %s: stepping down: %w", p.cfg.ID, err)
	}
	return nil
}

// observe checks an applied entry's time against this machine's clock. It is called by the group's
// applying goroutine only.
func (p *Partition) observe(at fsm.Time, term uint64, live bool) {
	select {
	case <-p.opened:
	default:
		return // what is applied while the group is opened is what was on the disk
	}
	if l := p.owner.term.Load(); l != 0 && l == term {
		p.pace.Reset() // its own stamps come from its own clock
		return
	}
	spans, fast := p.pace.Observe(int64(at), live)
	if !fast {
		return
	}
	p.metrics.paceAlarm.Inc()
	a := Ahead{Term: term, Spans: spans}
	if leader, ok := p.group.Leader(); ok {
		a.Leader = leader.ID
	}
	p.cfg.Ahead(a)
}
