package partition

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

const movedEpoch = testEpoch + 1

// move is a plan that moves slots from one partition to another, and drives it by hand.
type move struct {
	t        *testing.T
	from, to *cluster
	plan     fsm.PlanID
	ranges   []fsm.SlotRange
	frozen   fsm.Manifest
}

var allSlots = []fsm.SlotRange{{First: 0, Last: fsm.NumSlots - 1}}

// newMove is two partitions of one cluster, the second of which owns nothing.
func newMove(t *testing.T, ranges []fsm.SlotRange) *move {
	t.Helper()
	of := func(id string, owned []fsm.OwnedRange) func(*cluster) {
		return func(c *cluster) {
			c.id = id
			c.birth = func(b *fsm.Birth) {
				b.Partition, b.Owned, b.Seed = id, owned, [16]byte{1}
			}
		}
	}
	return &move{
		t: t, plan: 7, ranges: ranges,
		from: newCluster(t, of("p0", mustBirth(t, "").Owned)), to: newCluster(t, of("p1", nil)),
	}
}

// make makes a step at whoever leads, until it is made.
func (m *move) make(at *cluster, what string, step func(*Partition) error) {
	m.t.Helper()
	must(m.t, m.ask(at, what, step))
}

// ask asks for a step at whoever leads, until that is answered or refused.
func (m *move) ask(at *cluster, what string, step func(*Partition) error) (err error) {
	m.t.Helper()
	eventually(m.t, what, func() bool {
		leader := at.find()
		if leader == nil {
			return false
		}
		err = step(leader.partition())
		switch quotaerr.ReasonOf(err) {
		case quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.OutcomeUnknown:
			return false
		}
		return true
	})
	return err
}

func (m *move) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(m.t.Context(), patience)
}

// pull has the destination fetch what it lacks, and tells how many pieces that was.
func (m *move) pull() (pieces int) {
	m.t.Helper()
	m.make(m.to, "pull", func(p *Partition) error {
		source := m.from.find()
		if source == nil {
			return quotaerr.New(quotaerr.NoQuorum, "no leader")
		}
		ctx, cancel := m.ctx()
		defer cancel()
		pieces = 0
		return p.Stage(ctx, m.plan, m.frozen.Revision == 0, func(yield func([]fsm.Piece, error) bool) {
			for batch := range Export(source.partition(), m.ranges, p.Staged(m.plan)) {
				pieces += len(batch)
				if !yield(batch, nil) {
					return
				}
			}
		})
	})
	return pieces
}

func (m *move) freeze() {
	m.t.Helper()
	m.make(m.from, "freeze", func(p *Partition) (err error) {
		ctx, cancel := m.ctx()
		defer cancel()
		m.frozen, err = p.Freeze(ctx, m.plan, m.ranges, 1)
		return err
	})
}

func (m *move) open() {
	m.t.Helper()
	m.make(m.to, "open", func(p *Partition) error {
		ctx, cancel := m.ctx()
		defer cancel()
		return p.OpenImport(ctx, m.plan, m.ranges, m.frozen)
	})
}

func (m *move) seal() (sealed fsm.Manifest) {
	m.t.Helper()
	m.make(m.to, "seal", func(p *Partition) (err error) {
		ctx, cancel := m.ctx()
		defer cancel()
		sealed, err = p.Seal(ctx, m.plan)
		return err
	})
	return sealed
}

func (m *move) activate() {
	m.t.Helper()
	m.make(m.to, "activate", func(p *Partition) error {
		ctx, cancel := m.ctx()
		defer cancel()
		return p.Activate(ctx, m.plan, movedEpoch, false)
	})
}

func (m *move) release() {
	m.t.Helper()
	m.make(m.from, "release", func(p *Partition) error {
		ctx, cancel := m.ctx()
		defer cancel()
		return p.Release(ctx, m.plan)
	})
}

func (m *move) abort(at *cluster) {
	m.t.Helper()
	m.make(at, "abort", func(p *Partition) error {
		ctx, cancel := m.ctx()
		defer cancel()
		return p.AbortPlan(ctx, m.plan)
	})
}

// decide follows a principal with one decision id: it asks the one partition, then the other, until one decides.
func (m *move) decide(check fsm.Check) (Answer, error) {
	var err error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for at, epoch := range map[*cluster]fsm.Epoch{m.from: testEpoch, m.to: movedEpoch} {
			leader := at.find()
			if leader == nil {
				continue
			}
			p := leader.partition()
			if p == nil {
				continue
			}
			check.RouteEpoch = epoch
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			var a Answer
			a, err = p.Check(ctx, check)
			cancel()
			if err == nil {
				return a, nil
			}
			switch quotaerr.ReasonOf(err) {
			case quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.OutcomeUnknown, quotaerr.Frozen, quotaerr.WrongEpoch:
			default:
				return Answer{}, err
			}
		}
	}
	return Answer{}, errors.Join(errors.New("no answer in time"), err)
}

// load is clients that ask for more than there is, each id twice. It is told to stop, and then checks that each id has
// one verdict, and each principal its cap.
type load struct {
	move    *move
	stop    chan struct{}
	clients sync.WaitGroup

	mu       sync.Mutex // guards verdicts and asked
	verdicts map[string]map[string]bool
	asked    int
}

const loaded = 12 // principals

func principal(k int) string { return fmt.Sprint("u", k%loaded) }

func (m *move) load() *load {
	l := &load{move: m, stop: make(chan struct{}), verdicts: map[string]map[string]bool{}}
	for client := range 4 {
		l.clients.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-l.stop:
					return
				default:
				}
				for range 2 {
					l.ask(principal(k), fmt.Sprintf("%d-%d", client, k))
				}
			}
		})
	}
	return l
}

func (l *load) ask(principal, id string) {
	a, err := l.move.decide(convert(principal, id))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if err != nil {
		l.move.t.Errorf("%s of %s: %v", id, principal, err)
		return
	}
	of := l.verdicts[principal]
	if of == nil {
		of = map[string]bool{}
		l.verdicts[principal] = of
	}
	if was, known := of[id]; known && was != a.Allowed() {
		l.move.t.Errorf("%s of %s: allowed %t, then %t", id, principal, was, a.Allowed())
	}
	of[id] = of[id] || a.Allowed()
}

// progress waits for so many answers more.
func (l *load) progress(n int) {
	l.move.t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.asked
	}
	from := count()
	eventually(l.move.t, "checks are answered", func() bool { return count() >= from+n })
}

func (l *load) end() {
	l.move.t.Helper()
	close(l.stop)
	l.clients.Wait()
	for k := range loaded {
		allowed := 0
		for _, was := range l.verdicts[principal(k)] {
			if was {
				allowed++
			}
		}
		if allowed != 3 {
			l.move.t.Errorf("%s: %d of %d were allowed, want 3", principal(k), allowed, len(l.verdicts[principal(k)]))
		}
	}
}

// Shows a whole move under contended checks: each principal gets its cap and no more from both partitions together,
// each decision id one verdict, also after the move; what the destination sealed is what the source has frozen; usage
// ends there when it would have ended here; and what comes late, or again, changes nothing.
func TestMove(t *testing.T) {
	m := newMove(t, allSlots)
	m.from.leader()
	m.to.leader()
	l := m.load()
	l.progress(100)
	if n := m.pull(); n < loaded {
		t.Errorf("%d pieces in the first pull", n)
	}
	l.progress(50)
	m.pull()
	m.freeze()
	m.freeze()
	m.open()
	m.pull()
	if n := m.pull(); n != 0 {
		t.Errorf("%d pieces differ, although all was fetched", n)
	}
	sealed := m.seal()
	if diff := cmp.Diff(m.frozen, sealed); diff != "" {
		t.Errorf("frozen and sealed: %s", diff)
	}
	m.activate()
	l.progress(100)
	m.release()
	l.progress(50)
	l.end()
	before := map[string]bool{}
	for k := range loaded {
		for id, allowed := range l.verdicts[principal(k)] {
			if allowed {
				before[principal(k)+" "+id] = true
				if a, err := m.decide(convert(principal(k), id)); err != nil || !a.Allowed() || !a.Replayed {
					t.Errorf("%s of %s again: %+v, %v", id, principal(k), a, err)
				}
			}
		}
	}
	m.late()
	if s := m.from.agree(m.from.up()); s.Keys != 0 || s.Allows != 0 || len(s.Owned) != 0 {
		t.Errorf("the source still has %+v", s)
	}
	m.from.advance(59 * time.Second)
	m.to.advance(59 * time.Second)
	if a, err := m.decide(convert("u0", "early")); err != nil || a.Allowed() {
		t.Errorf("before the window has passed: %+v, %v", a, err)
	}
	m.to.advance(2 * time.Second)
	for k := range 4 {
		if a, err := m.decide(convert("u1", fmt.Sprint("late-", k))); err != nil || a.Allowed() != (k < 3) {
			t.Errorf("after it, check %d: %+v, %v", k, a, err)
		}
	}
}

// late repeats all steps of a move that has ended, which changes nothing.
func (m *move) late() {
	m.t.Helper()
	from, to := m.from.agree(m.from.up()), m.to.agree(m.to.up())
	ctx, cancel := m.ctx()
	defer cancel()
	abort := func(p *Partition) error { return p.AbortPlan(ctx, m.plan) }
	activate := func(p *Partition) error { return p.Activate(ctx, m.plan, movedEpoch+1, false) }
	for _, late := range []struct {
		what string
		at   *cluster
		step func(*Partition) error
	}{
		{"freeze", m.from, func(p *Partition) error {
			_, err := p.Freeze(ctx, m.plan, m.ranges, 1)
			return err
		}},
		{"open", m.to, func(p *Partition) error { return p.OpenImport(ctx, m.plan, m.ranges, m.frozen) }},
		{"seal", m.to, func(p *Partition) error {
			_, err := p.Seal(ctx, m.plan)
			return err
		}},
		{"abort at the source", m.from, abort},
		{"abort at the destination", m.to, abort},
		{"activate at the source", m.from, activate},
	} {
		err := m.ask(late.at, "a late "+late.what, late.step)
		if !errors.Is(err, ErrPlanEnded) || quotaerr.ReasonOf(err) != quotaerr.InvalidArgument {
			m.t.Errorf("a late %s: %v", late.what, err)
		}
	}
	m.release()
	m.make(m.to, "a late activate", activate)
	for _, of := range []struct {
		was Status
		at  *cluster
	}{{from, m.from}, {to, m.to}} {
		now := of.at.agree(of.at.up())
		if !slices.Equal(now.Owned, of.was.Owned) || now.Keys != of.was.Keys || now.Allows != of.was.Allows {
			m.t.Errorf("%s: late steps made %+v of %+v", of.at.id, now.Status, of.was.Status)
		}
	}
}

// Shows that a move which is undone, from each step that it can be undone at, leaves everything with the source:
// checks are decided there again with the usage that they had, and no late step changes that.
func TestMoveUndone(t *testing.T) {
	m := newMove(t, []fsm.SlotRange{{First: 0, Last: 9000}, {First: 12000, Last: 16000}})
	m.from.leader()
	m.to.leader()
	l := m.load()
	l.progress(4 * loaded)
	steps := []func(){func() { m.pull() }, m.freeze, m.open, func() { m.pull() }, func() { m.seal() }}
	for made := range len(steps) + 1 {
		m.plan++
		for _, step := range steps[:made] {
			step()
		}
		m.abort(m.to)
		m.abort(m.from)
		ctx, cancel := m.ctx()
		source, destination := m.from.leader().partition(), m.to.leader().partition()
		_, frozen := source.Freeze(ctx, m.plan, m.ranges, 1)
		for what, err := range map[string]error{
			"freeze": frozen, "activate": destination.Activate(ctx, m.plan, movedEpoch, false),
			"release": source.Release(ctx, m.plan), "open": destination.OpenImport(ctx, m.plan, m.ranges, m.frozen),
			"stage": destination.Stage(ctx, m.plan, false, func(yield func([]fsm.Piece, error) bool) {
				yield([]fsm.Piece{{Slot: 1}}, nil)
			}),
		} {
			if !errors.Is(err, ErrPlanEnded) {
				t.Errorf("after %d steps and the abort, %s: %v", made, what, err)
			}
		}
		cancel()
		l.progress(2 * loaded)
	}
	l.end()
	if s := m.to.agree(m.to.up()); s.Keys != 0 || len(s.Owned) != 0 {
		t.Errorf("the destination has %+v", s)
	}
}

// Shows that a move goes on at whatever step all nodes of both partitions are stopped and started, and its leaders
// hand over: each end says what it has reached, and the steps after it lead to the same end.
func TestMoveThroughRestarts(t *testing.T) {
	m := newMove(t, allSlots)
	m.from.leader()
	m.to.leader()
	l := m.load()
	l.progress(4 * loaded)
	for i, s := range []struct {
		step     func()
		from, to fsm.PlanEnd
	}{
		{func() { m.pull() }, fsm.PlanNone, fsm.PlanStaging},
		{m.freeze, fsm.PlanFrozen, fsm.PlanStaging},
		{m.open, fsm.PlanFrozen, fsm.PlanOpen},
		{func() { m.pull() }, fsm.PlanFrozen, fsm.PlanOpen},
		{func() { m.seal() }, fsm.PlanFrozen, fsm.PlanSealed},
		{m.activate, fsm.PlanFrozen, fsm.PlanEnded},
		{m.release, fsm.PlanEnded, fsm.PlanEnded},
	} {
		s.step()
		for _, c := range []*cluster{m.from, m.to} {
			if i%2 == 0 {
				c.mustLead(c.other(c.leader()))
				continue
			}
			for _, machine := range c.machines {
				c.mustClose(machine)
			}
			for _, machine := range c.machines {
				c.mustOpen(machine)
			}
		}
		for _, end := range []struct {
			at   *cluster
			want fsm.PlanEnd
		}{{m.from, s.from}, {m.to, s.to}} {
			m.make(end.at, "look", func(p *Partition) error {
				got, err := p.PlanEnd(m.plan)
				if err == nil && got != end.want {
					t.Errorf("after step %d %s stands at %d, want %d", i, end.at.id, got, end.want)
				}
				return err
			})
		}
		s.step() // again
	}
	l.progress(loaded)
	l.end()
}
