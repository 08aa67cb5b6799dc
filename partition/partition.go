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
	"github.com/quorate/quorate/partition/group"
)

// Config is what a Partition needs. All fields are required.
type Config struct {
	ID     string // the partition's
	NodeID string
	// Open opens the Raft group that replicates the partition to applier.
	Open func(applier group.Applier) (group.Group, error)
	// Birth is what the partition is made with, asked for by the first leader.
	Birth func() (*fsm.Birth, error)
	// Source is this machine's clocks, MaxDriftPPM the most by which they drift.
	Source      clock.Source
	MaxDriftPPM int64
	TrustWall   clock.TrustWall
	// Ahead hears that partition time outran this machine's clock; it must not block.
	Ahead func(Ahead)
	// Consult asks another replica, when states differ.
	Consult Consult
	// WithRoom names a node of another voter whose disk has room; ok is false when there is none.
	WithRoom func() (node string, ok bool)
	// PeerLevels is the lowest feature level that the programs of all other replicas know; all is false
	// while one of them is unknown.
	PeerLevels func() (lowest fsm.Level, all bool)
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

	agreement agreement
	diskLow   atomic.Bool

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
		opened: make(chan struct{}), done: make(chan struct{}), started: time.Now(),
	}
	p.agreement.wake = make(chan struct{}, 1)
	p.replica = newReplica(replicaConfig{
		timeline: timeline, level: cfg.level, observe: p.observe, restored: p.pace.Reset, differs: p.suspect,
		fatal: func(err error) { cfg.Fatal(fmt.Errorf("partition %s: %w", cfg.ID, err)) },
	})
	if p.group, err = cfg.Open(p.replica); err != nil {
		return nil, fmt.Errorf("partition %s: %w", cfg.ID, err)
	}
	p.owner = &owner{
		group: p.group, replica: p.replica, timeline: timeline, queue: newQueue(),
		birth: cfg.Birth, logger: cfg.Logger.With("partition", cfg.ID),
		slots: make(chan struct{}, maxInFlight), started: time.Now(), roles: newRoles(),
		halted: p.halted, diskLow: p.diskLow.Load, level: cfg.level, peerLevels: cfg.PeerLevels,
		withRoom: cfg.WithRoom,
	}
	if p.owner.interval = cfg.tickInterval; p.owner.interval == 0 {
		p.owner.interval = tickInterval
	}
	p.metrics = newMetrics(cfg.Metrics, p)
	p.owner.metrics = p.metrics
	close(p.opened)
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	var loops sync.WaitGroup
	loops.Go(func() { p.owner.run(ctx) })
	loops.Go(func() { p.inquireWhenSuspected(ctx) })
	go func() {
		loops.Wait()
		close(p.done)
	}()
	return p, nil
}

// Close stops serving, answers what waits, and closes the group.
func (p *Partition) Close() error {
	p.stop()
	err := p.group.Close()
	<-p.done
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
	out := p.owner.ask(r)
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
	r := newRequest(ctx, "")
	r.peek = &peek
	out := p.owner.ask(r)
	if out.err != nil {
		return UsageAnswer{}, out.err
	}
	u := out.usage
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
}

// Status tells how the replica stands.
func (p *Partition) Status() Status {
	s := Status{
		Leadership: p.group.Leadership(), Members: p.group.Members(), RaftTerm: p.group.Status().Term,
		DiskLow: p.diskLow.Load(),
	}
	if why := p.agreement.diverged.Load(); why != nil {
		s.Diverged = *why
	}
	p.replica.view(func(m *fsm.Machine, index uint64) {
		s.Status, s.AppliedIndex, s.Born = m.Status(), index, m.Born()
	})
	if leader, ok := p.group.Leader(); ok {
		s.Leader = leader.ID
	}
	return s
}

// DigestAt is the digest of the state as of a recent log index; known is false when it is too long ago, or
// to come.
func (p *Partition) DigestAt(index uint64) (digest [16]byte, known bool) {
	return p.replica.DigestAt(index)
}

// SetDiskLow says whether this node's disk has too little room left. While it has, checks are refused with
// capacity, and leadership is handed over.
func (p *Partition) SetDiskLow(low bool) { p.diskLow.Store(low) }

// Role is who leads the partition as this node knows it, and under which epoch the principal's slot is
// owned. changed is closed when this node's own leadership may be another; who only follows has to look again.
func (p *Partition) Role(principal string) (leader string, leading bool, epoch fsm.Epoch, changed <-chan struct{}) {
	changed = p.owner.roles.changed()
	p.replica.view(func(m *fsm.Machine, _ uint64) {
		if m.Born() {
			epoch, _ = m.EpochOf(m.SlotOf(principal))
		}
	})
	if l := p.group.Leadership(); l.Term != 0 {
		return p.cfg.NodeID, true, epoch, changed
	}
	if m, ok := p.group.Leader(); ok {
		leader = m.ID
	}
	return leader, false, epoch, changed
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
