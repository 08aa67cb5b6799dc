package sim

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/agreement"
	"github.com/quorate/quorate/partition/group"
)

const (
	partitionID = "p0"
	driftPPM    = 500
)

// node is a node's machine: it outlives its processes.
type node struct {
	c       *cluster
	id      string
	clock   *machineClock
	admin   chan struct{} // held while members or leader change, see process
	cleanup sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	disk     *disk
	instance string
	number   int // of the instance
	p        *process
	wanted   bool // it is to run
	refused  bool // its disk was refused, or is gone: it is to be replaced
	slow     func(index uint64) time.Duration
	alter    func(index uint64, data []byte) []byte // a fault of its memory
	altered  time.Time                              // when alter changed something first
	frozen   bool                                   // its clocks stand still
	still    time.Time                              // when they last did
}

// process is a node's process.
type process struct {
	n         *node
	life      *life
	self      group.Member
	disk      *disk
	opened    chan struct{} // closed when opening has come to an end
	ended     chan struct{} // closed when its goroutines are gone
	partition *partition.Partition
	group     group.Group
	err       error
	fatal     error
	lease     partition.PolicyLease
	mu        sync.Mutex // guards err, fatal, lease, partition and group
}

// start begins a process, unless one runs.
func (n *node) start(bootstrap []group.Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.p != nil || n.c.stopping() {
		return
	}
	n.disk.restart()
	p := &process{
		n: n, life: newLife(), self: n.member(), disk: n.disk,
		opened: make(chan struct{}), ended: make(chan struct{}),
	}
	n.p = p
	n.cleanup.Go(func() { p.open(bootstrap) })
}

// member needs mu.
func (n *node) member() group.Member {
	return group.Member{ID: n.id, Instance: n.instance, Addr: "addr-" + n.id}
}

// now is the running process; nil when there is none, or it is not open yet.
func (n *node) now() *process {
	n.mu.Lock()
	p := n.p
	n.mu.Unlock()
	if p == nil || p.life.over() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.partition == nil {
		return nil
	}
	return p
}

// end is the sudden end of the process that runs: of its machine's power, or of the process alone.
func (n *node) end(power bool, why string) {
	n.mu.Lock()
	p := n.p
	if p == nil {
		n.mu.Unlock()
		return
	}
	n.p = nil
	p.life.end()
	if power {
		n.disk.losePower()
		n.clock = n.c.newClock()
	}
	n.mu.Unlock()
	n.c.net.end(p.self, power)
	n.c.note("%s ends: %s", n.id, why)
	n.cleanup.Go(p.bury)
}

// bury waits for the goroutines of a dead process.
func (p *process) bury() {
	defer close(p.ended)
	<-p.opened
	p.mu.Lock()
	part, g := p.partition, p.group
	p.mu.Unlock()
	switch {
	case part != nil:
		_ = part.Close() // a dead process has nothing to report
	case g != nil:
		_ = g.Close()
	}
}

// open opens the partition. It may end with its goroutine, when the process ends.
func (p *process) open(bootstrap []group.Member) {
	defer close(p.opened)
	n := p.n
	n.mu.Lock()
	source := n.clock
	n.mu.Unlock()
	n.cleanup.Go(func() { p.renew(source) })
	p.disk.mu.Lock()
	first := !p.disk.used
	p.disk.mu.Unlock()
	part, err := partition.Open(partition.Config{
		ID: partitionID, NodeID: n.id, Source: source, MaxDriftPPM: driftPPM, TrustWall: clock.TrustNever,
		Birth:  func() (*fsm.Birth, error) { birth := *n.c.birth; return &birth, nil },
		Policy: p.find, Lease: p.leased,
		Open: func(a group.Applier) (group.Group, error) {
			g, err := group.Open(n.c.groupConfig(p, a, first, bootstrap))
			if err != nil {
				return nil, err
			}
			w := &watched{Group: g, p: p}
			p.mu.Lock()
			p.group = w
			p.mu.Unlock()
			return w, nil
		},
		Ahead:      func(partition.Ahead) {},
		Consult:    p.consult,
		WithRoom:   func() (string, bool) { return "", false },
		PeerLevels: func() (fsm.Level, bool) { return 0, false },
		Fatal:      p.die,
		Metrics:    prometheus.NewRegistry(), Logger: n.c.logger(n.id),
	})
	p.mu.Lock()
	p.partition, p.err = part, err
	p.mu.Unlock()
	if err != nil {
		n.c.note("%s cannot open: %v", n.id, err)
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.p == p { // it was not ended meanwhile
			n.p, n.refused = nil, true
			p.life.end()
			n.cleanup.Go(p.bury)
		}
		return
	}
	p.disk.mu.Lock()
	p.disk.used = true
	p.disk.mu.Unlock()
	n.c.note("%s is open", n.id)
}

// die is the end of the process by its own hand. It does not return, as the end of a process does not.
func (p *process) die(err error) {
	p.mu.Lock()
	p.fatal = err
	p.mu.Unlock()
	p.n.mu.Lock()
	mine := p.n.p == p
	if mine {
		p.n.p = nil
	}
	p.n.mu.Unlock()
	if mine {
		p.life.end()
		p.n.c.net.end(p.self, false)
		p.disk.reboot()
		p.n.c.note("%s ends itself: %v", p.n.id, err)
		p.n.cleanup.Go(p.bury)
	}
	runtime.Goexit()
}

// consult asks another replica for a digest, over the simulated network.
func (p *process) consult(ctx context.Context, m group.Member, index uint64, own [16]byte,
) (agreement.Opinion, error) {
	select {
	case <-time.After(2 * time.Millisecond):
	case <-ctx.Done():
		return agreement.Opinion{}, ctx.Err()
	}
	other := p.n.c.byID(m.ID)
	q := other.now()
	if q == nil || m.Instance != q.self.Instance || !p.n.c.net.reaches(p.n.id, m.ID) {
		return agreement.Opinion{}, errRefused
	}
	return q.partition.Suspect(index, own), nil
}

// check asks this node. An answer that a dead process gave is no answer.
func (n *node) check(ctx context.Context, c fsm.Check) (partition.Answer, error) {
	p := n.now()
	if p == nil {
		return partition.Answer{}, errRefused
	}
	a, err := p.partition.Check(ctx, c)
	if p.life.over() {
		return partition.Answer{}, errCut
	}
	return a, err
}

// watched is a process's group: what it proposes is noted, and whether it comes to an end.
type watched struct {
	group.Group
	p *process
}

func (w *watched) Propose(data []byte) group.Proposal {
	if w.p.life.over() {
		return ended{}
	}
	h := w.p.n.c.history
	h.propose(data, w.p.n.leases())
	started := time.Now()
	q := w.Group.Propose(data)
	w.p.n.c.proposals.Go(func() {
		limit := time.NewTimer(w.p.n.c.timing.Proposal + w.p.n.c.timing.Enqueue + time.Second)
		defer limit.Stop()
		select {
		case <-q.Done():
		case <-w.p.life.dead:
		case <-limit.C:
			h.violate(endsHolds, "a proposal on %s has no outcome after %v", w.p.n.id, time.Since(started))
		}
	})
	return q
}

// Leadership is noted: one leader in each term.
func (w *watched) Leadership() group.Leadership {
	l := w.Group.Leadership()
	if !w.p.life.over() {
		w.p.n.c.history.saw(l.Term, w.p.self.ID+"@"+w.p.self.Instance)
	}
	return l
}

// exclusive runs a change of members or leader: one at a time, without a mutex to wait for.
func (w *watched) exclusive(f func() error) error {
	select {
	case w.p.n.admin <- struct{}{}:
		defer func() { <-w.p.n.admin }()
		return f()
	case <-w.p.life.dead:
		return errRefused
	}
}

func (w *watched) AddLearner(m group.Member) error {
	return w.exclusive(func() error { return w.Group.AddLearner(m) })
}
func (w *watched) Promote(id string) error {
	return w.exclusive(func() error { return w.Group.Promote(id) })
}
func (w *watched) Remove(id string) error {
	return w.exclusive(func() error { return w.Group.Remove(id) })
}
func (w *watched) Transfer(id string) error {
	return w.exclusive(func() error { return w.Group.Transfer(id) })
}

// Condemn is noted: the replica is to be replaced.
func (w *watched) Condemn(reason string) error {
	err := w.Group.Condemn(reason)
	n := w.p.n
	n.c.note("%s is condemned: %s (%v)", n.id, reason, err)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.p == w.p {
		n.refused = true
	}
	return err
}

// ended is a proposal of a dead process.
type ended struct{}

func (ended) Done() <-chan struct{} {
	done := make(chan struct{}) // of the bubble at hand: a shared one would belong to another
	close(done)
	return done
}

func (ended) Result() (any, error) { return nil, group.ErrNotLeader }

// applier notes what is applied.
type applier struct {
	group.Applier
	p *process
}

func (a *applier) Apply(index, term uint64, data []byte, live bool) any {
	a.p.life.breathe()
	n := a.p.n
	n.mu.Lock()
	slow, alter := n.slow, n.alter
	n.mu.Unlock()
	if slow != nil {
		a.p.life.sleep(slow(index))
	}
	original := data
	if alter != nil {
		if data = alter(index, data); &data[0] != &original[0] {
			n.mu.Lock()
			if n.altered.IsZero() {
				n.altered = time.Now()
			}
			n.mu.Unlock()
		}
	}
	answer := a.Applier.Apply(index, term, data, live)
	n.mu.Lock()
	wrong := !n.altered.IsZero()
	n.mu.Unlock()
	if wrong || a.p.life.over() || answer == nil { // without an answer it is closing, and applied nothing
		return answer
	}
	var digest [16]byte
	known := false
	if d, ok := a.Applier.(interface {
		DigestAt(uint64) ([16]byte, bool)
	}); ok {
		digest, known = d.DigestAt(index)
	}
	n.c.history.apply(n.id, index, term, data, answer, digest, known)
	n.c.heldByMajority(index, term)
	return answer
}

// groupConfig is what a process opens its group with.
func (c *cluster) groupConfig(p *process, a group.Applier, first bool, bootstrap []group.Member) group.Config {
	return group.Config{
		Group: partitionID, Network: host{c.net, p.life}, Disk: &session{p.disk, p.life}, Self: p.self,
		First: first, Bootstrap: bootstrap, Applier: &applier{a, p}, Timing: c.timing, Compaction: c.compaction,
		Fatal: p.die, Logger: c.logger(p.n.id),
	}
}

func (c *cluster) logger(id string) *slog.Logger {
	if !c.verbose {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(&lines{c: c, id: id})
}

// lines writes a log into the run's notes.
type lines struct {
	c  *cluster
	id string
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += fmt.Sprintf(" %s=%v", a.Key, a.Value); return true })
	l.c.note("%s: %s", l.id, text)
	return nil
}
func (l *lines) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *lines) WithGroup(string) slog.Handler      { return l }
