package fsm_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// ages says what a destination is told of the instant that ages are counted back from.
type ages func(r *realm, frozenAt fsm.Time) fsm.Time

// Shows, against true time, that ages must travel and be counted back from a base that the destination draws after
// the freeze: two partitions, whose times stand still at times and run no faster than true time, hand one principal
// to and fro, and in no window of true time is more admitted than the limit. When the timestamps are kept as they
// are, or the base is one that was drawn before the freeze, windows are broken.
func TestAgesTravelFromABaseAfterTheFreeze(t *testing.T) {
	for name, tc := range map[string]struct {
		told   ages
		breaks bool
	}{
		"ages from a base after the freeze": {func(_ *realm, at fsm.Time) fsm.Time { return at }, false},
		"timestamps as they are, if they are past": {
			func(r *realm, at fsm.Time) fsm.Time { return max(at, r.dst().time) }, true,
		},
		"ages from a base before the freeze": {
			func(r *realm, at fsm.Time) fsm.Time { return at + r.dst().time - r.early }, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			broken, admitted := 0, 0
			for seed := range uint64(30) {
				r := newRealm(t, rand.New(rand.NewPCG(seed, 6)), tc.told)
				for range 25 {
					r.live()
					r.move()
				}
				if r.passed() {
					broken++
				}
				admitted += len(r.admitted)
			}
			if (broken > 0) != tc.breaks {
				t.Errorf("%d of 30 runs broke a window", broken)
			}
			if admitted < 1500 {
				t.Errorf("%d admissions show little", admitted)
			}
		})
	}
}

const (
	realmLimit  = 3
	realmWindow = fsm.Time(10e9)
)

// realm is two partitions and the true time that they live in.
type realm struct {
	t        *testing.T
	rng      *rand.Rand
	told     ages
	now      fsm.Time // true time
	ends     [2]*end
	owner    int
	plan     fsm.PlanID
	early    fsm.Time // of the destination, before the freeze
	ids      int
	admitted []fsm.Time // in true time
}

// end is a partition and its time.
type end struct {
	m    *fsm.Machine
	time fsm.Time
}

func newRealm(t *testing.T, rng *rand.Rand, told ages) *realm {
	t.Helper()
	r := &realm{t: t, rng: rng, told: told}
	policy := mustPolicy(t, "{version: v1, default: {limits: [{name: all, limit: 3, window: 10s}], replay_horizon: 1s}}")
	for i := range r.ends {
		var owned []fsm.OwnedRange
		if i == 0 {
			owned = []fsm.OwnedRange{{SlotRange: allSlots[0], Epoch: 1}}
		}
		r.ends[i] = &end{fsm.New(), fsm.Time(rng.Int64N(1e12))}
		r.ends[i].m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Stamp: r.ends[i].time, Birth: &fsm.Birth{
			Bounds: fsm.DefaultBounds(), Owned: owned, Install: fsm.NewInstall(1, policy),
		}})
	}
	return r
}

func (r *realm) src() *end { return r.ends[r.owner] }
func (r *realm) dst() *end { return r.ends[1-r.owner] }

// pass lets true time go on, and each partition's time by no more.
func (r *realm) pass(atMost int64) {
	d := fsm.Time(r.rng.Int64N(atMost))
	r.now += d
	for _, e := range r.ends {
		e.time += d * fsm.Time([]int64{0, 500, 999, 1000, 1000, 1000}[r.rng.IntN(6)]) / 1000
	}
}

// live has the owner asked some times.
func (r *realm) live() {
	for range 1 + r.rng.IntN(8) {
		r.pass(3e9)
		r.ids++
		d := r.src().m.Step(1, &fsm.Entry{
			Kind: fsm.KindBatch, Term: 1, Stamp: r.src().time, Checks: []fsm.Check{{
				Principal: "p", Gateway: "g", DecisionID: fmt.Sprint(r.ids), RouteEpoch: fsm.Epoch(r.plan + 1),
				Charge: fsm.Charge{Class: "c", Cost: 1},
			}},
		}).Decisions[0]
		switch d.Reason {
		case fsm.ReasonAllowed:
			r.admitted = append(r.admitted, r.now)
		case fsm.ReasonQuotaExhausted:
		default:
			r.t.Fatalf("%+v", d)
		}
	}
}

// move makes the steps of a plan, each at a time of its own.
func (r *realm) move() {
	r.plan++
	h := &handoff{t: r.t, plan: r.plan, src: r.src().m, dst: r.dst().m, ranges: allSlots}
	for i, step := range []func(){
		func() { h.pull() }, h.freeze,
		func() { h.manifest.FrozenAt = r.told(r, h.manifest.FrozenAt); h.open() },
		func() { h.pull() }, h.seal, func() { h.activate(fsm.Epoch(r.plan + 1)) }, h.release,
	} {
		r.pass(1e9)
		if i == 1 {
			r.early = r.dst().time
			r.pass(4e9)
		}
		for _, e := range r.ends {
			e.m.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: e.time})
		}
		step()
	}
	r.owner = 1 - r.owner
}

// passed reports that more than the limit was admitted in a window of true time.
func (r *realm) passed() bool {
	for i := realmLimit; i < len(r.admitted); i++ {
		if r.admitted[i]-r.admitted[i-realmLimit] < realmWindow {
			return true
		}
	}
	return false
}
