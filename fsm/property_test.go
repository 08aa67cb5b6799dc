package fsm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/reference"
	"github.com/quorate/quorate/policy"
)

// The most entries of one random history.
const propertyEntries = 150

// The machine answers every check and peek of a random history (checks, replays, bursts, policy
// changes and rollbacks, stamps on the edges of windows) as the naive model does, also when it is
// replaced by its own restored snapshot on the way.
func TestMachineAnswersAsTheReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := reference.NewSession(t)
		m := fsm.New()
		if a := m.Step(reference.Term, s.Birth); a.Refused != fsm.ReasonUnspecified {
			t.Fatalf("birth: %v", a.Refused)
		}
		huge := false // a cost of the largest limit was sent
		var h history
		h.entry(s.Birth, nil)
		for range rapid.IntRange(1, propertyEntries).Draw(t, "entries") {
			if rapid.IntRange(0, 19).Draw(t, "restart") == 19 {
				m = restored(t, m)
				h.add("restored")
			}
			e := s.Next(t)
			huge = huge || hasHugeCost(e)
			ever := admittedTo(s.Model, e.Forgive)
			want := s.Apply(e)
			h.entry(e, &want)
			got := m.Step(reference.Term, e)
			if !huge {
				mustForgive(t, want.Forgiven, got.Forgiven, ever)
			}
			if diff := cmp.Diff(told(want, huge), told(*got, huge), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("after (answers of the reference)\n%s(-reference +machine):\n%s",
					(*strings.Builder)(&h), diff)
			}
		}
	})
}

// admittedTo is what was ever admitted to the principal of f and not forgiven, by class.
func admittedTo(m *reference.Model, f *fsm.Forgive) func(class string) int64 {
	ever := map[string]int64{}
	if f != nil {
		for _, class := range []string{"a", "b", "c", "d", policy.DefaultClass} {
			ever[class] = m.Admitted(f.Principal, class)
		}
	}
	return func(class string) int64 { return ever[class] }
}

// mustForgive wants the machine to drop at least what counts within the windows that the model knows of, and
// no more than was ever admitted: for carried rules it keeps more than the model says.
func mustForgive(t *rapid.T, want, got *fsm.Forgiven, ever func(class string) int64) {
	if want == nil {
		return
	}
	dropped := map[string]int64{}
	for _, a := range got.Amounts {
		dropped[a.Class] = a.Amount
		if a.Amount < 1 || a.Amount > ever(a.Class) {
			t.Fatalf("%d of class %s forgiven, %d were admitted", a.Amount, a.Class, ever(a.Class))
		}
	}
	for _, a := range want.Amounts {
		if dropped[a.Class] < a.Amount {
			t.Fatalf("%d of class %s forgiven, at least %d count", dropped[a.Class], a.Class, a.Amount)
		}
	}
}

// told leaves out what the model does not tell: texts for people, the limits of a replay, and of
// a refusal all but its reason and, for wrong_epoch, the epoch.
func told(a fsm.Answers, huge bool) fsm.Answers {
	for i := range a.Decisions {
		d := &a.Decisions[i]
		decided := fsm.Decision{Reason: d.Reason, AsOf: d.AsOf}
		switch {
		case d.Reason == fsm.ReasonWrongEpoch:
			decided.Epoch = d.Epoch
		case d.Allowed() || d.Reason == fsm.ReasonQuotaExhausted:
			decided = *d
			decided.Detail, decided.Epoch = "", 0
			decided.Limits = distinctStates(d.Limits, huge)
			if d.Replayed {
				decided.Limits = nil
			}
		case d.Reason.Denied():
			decided.Revision, decided.Version, decided.Recorded = d.Revision, d.Version, d.Recorded
		}
		*d = decided
	}
	for i := range a.Usages {
		u := &a.Usages[i]
		u.Detail, u.Epoch, u.Limits = "", 0, distinctStates(u.Limits, huge)
	}
	if a.Forgiven != nil {
		a.Forgiven = &fsm.Forgiven{Reason: a.Forgiven.Reason, Epoch: a.Forgiven.Epoch}
	}
	return a
}

func hasHugeCost(e *fsm.Entry) bool {
	return slices.ContainsFunc(e.Checks, func(c fsm.Check) bool {
		return c.Cost >= fsm.MaxCost ||
			slices.ContainsFunc(c.Also, func(o fsm.Charge) bool { return o.Cost >= fsm.MaxCost })
	})
}

// distinctStates drops what appears twice: the model lists a limit once for each charge that it
// applies to. Behind a cost as large as the largest limit no decision depends on what is older, and
// the machine does not keep it: then the reset of a limit without room is not compared.
func distinctStates(states []fsm.LimitState, huge bool) (distinct []fsm.LimitState) {
	for _, s := range states {
		if huge && s.Remaining == 0 {
			s.ResetAt = 0
		}
		if !slices.Contains(distinct, s) {
			distinct = append(distinct, s)
		}
	}
	return distinct
}

// restored returns the machine that a snapshot of m restores.
func restored(t *rapid.T, m *fsm.Machine) *fsm.Machine {
	s := m.BeginSnapshot()
	defer s.Release()
	var b []byte
	for more := true; more; {
		b, more = s.Next(b)
	}
	r, err := fsm.Restore(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	return r
}

// history is what was applied so far, for a failure's report.
type history strings.Builder

func (h *history) add(format string, args ...any) {
	fmt.Fprintf((*strings.Builder)(h), format+"\n", args...)
}

func (h *history) entry(e *fsm.Entry, a *fsm.Answers) {
	switch {
	case e.Kind == fsm.KindBirth:
		h.add("%d birth %s", e.Stamp, mustText(e.Birth.Policy))
	case e.Kind == fsm.KindInstall:
		h.add("%d install %d %s", e.Stamp, e.Install.Revision, mustText(e.Install.Policy))
	case e.Kind == fsm.KindForgive:
		h.add("%d forgive %+v: %+v", e.Stamp, *e.Forgive, *a.Forgiven)
	case len(e.Checks)+len(e.Peeks) == 0:
		h.add("%d tick", e.Stamp)
	}
	for i, c := range e.Checks {
		d := a.Decisions[i]
		h.add("%d %s %s %s %+v also %+v rev %d: %s %s remaining %d retry %d replayed %v recorded %v",
			e.Stamp, c.Principal, c.Gateway, c.DecisionID, c.Charge, c.Also, c.PolicyRevision,
			d.Reason, d.Limit, d.Remaining, d.RetryAt, d.Replayed, d.Recorded)
	}
	for i, p := range e.Peeks {
		h.add("%d peek %+v: %+v", e.Stamp, p, a.Usages[i])
	}
}

func mustText(p *policy.Policy) string {
	b, err := json.Marshal(struct {
		Version           string
		Default           policy.Class
		Classes           map[string]*policy.Class
		Tiers, Principals map[string]map[string][]policy.Limit
		Groups            map[string]*policy.Group
	}{p.Version, p.Default, p.Classes, p.Tiers, p.Principals, p.Groups})
	if err != nil {
		panic(err)
	}
	return string(b)
}
