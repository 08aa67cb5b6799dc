package fsm_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
)

// Shows that what is foreseen is the denial that an entry at that time gives, but for its record; that whatever is denied
// was foreseen, unless its id is known; and that to foresee changes nothing.
func TestForesee(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 1))
	m, now := mustBirth(t), fsm.Time(0)
	foreseen, known := 0, 0
	for range 20_000 {
		e := traffic(rng, &now)
		if len(e.Checks) == 0 {
			m.Step(1, e)
			continue
		}
		c := &e.Checks[0]
		e.Checks = e.Checks[:1]
		switch rng.IntN(20) {
		case 0:
			c.PolicyRevision = fsm.Revision(rng.IntN(3))
		case 1:
			c.RouteEpoch = fsm.Epoch(rng.IntN(3))
		case 2:
			c.Also = []fsm.Charge{{Class: "b", Cost: 1}}
		}
		before := m.Digest()
		got, ok := m.Foresee(c, e.Stamp)
		if m.Digest() != before {
			t.Fatal("to foresee has changed the state")
		}
		want := m.Step(1, e).Decisions[0]
		switch fresh := want.Reason.Denied() && !want.Replayed; {
		case ok && !fresh:
			t.Fatalf("foresaw %+v, and it became %+v", got, want)
		case ok:
			foreseen++
			if want.Recorded = false; !cmp.Equal(got, want) {
				t.Fatal(cmp.Diff(want, got))
			}
		case fresh:
			known++
		}
	}
	if foreseen < 300 || known > foreseen/10 {
		t.Errorf("%d denials were foreseen, %d were not", foreseen, known)
	}
}

// Shows that an unborn machine foresees nothing, nor does one for what is malformed or not its own.
func TestForeseeNothing(t *testing.T) {
	c := fsm.Check{Principal: "u", Gateway: "g", DecisionID: "d", RouteEpoch: 1, Charge: fsm.Charge{Class: "a", Cost: 1 << 40}}
	if d, ok := fsm.New().Foresee(&c, 1); ok {
		t.Errorf("unborn: %+v", d)
	}
	m := mustBirth(t)
	c.Principal = ""
	if d, ok := m.Foresee(&c, 1); ok {
		t.Errorf("malformed: %+v", d)
	}
	c.Principal, c.RouteEpoch = "u", 2
	if d, ok := m.Foresee(&c, 1); ok {
		t.Errorf("of another epoch: %+v", d)
	}
}
