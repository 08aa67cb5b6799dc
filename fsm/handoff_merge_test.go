package fsm_test

import (
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

// A partition that takes over the principals of another one, beside its own, with another history of the same
// policies, answers from then on as the naive model of such a merge does, where the rules leave nothing open. Apart
// from what that model says, no limit that was listed and whose history was held for all of its window is ever
// passed, and until the next policy every allow is one that the principal's own partition would have given as well.
func TestMergedMachineAnswersAsTheReference(t *testing.T) {
	merged, open, carried := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		var sides [2]*side
		begin := func(s *reference.Session, e *fsm.Entry) {
			i := 0
			if sides[0] != nil && sides[0].s != s {
				i = 1
			}
			if sides[i] == nil {
				sides[i] = &side{wanderer: wanderer{t: t, s: s, m: fsm.New()}}
			}
			sides[i].apply(e)
		}
		reference.NewPair(t, begin)
		for range rapid.IntRange(0, 60).Draw(t, "entries") {
			of := rapid.SampledFrom(sides[:]).Draw(t, "side")
			of.apply(of.s.Next(t))
		}
		a, b := sides[0], sides[1]
		for _, of := range sides {
			for of.s.Behind() {
				of.apply(of.s.Install(of.m.Now()))
			}
		}
		a.take(b)
		if merged++; a.open {
			open++
		} else if len(a.m.Carried()) > 0 {
			carried++
		}
		for range rapid.IntRange(1, 60).Draw(t, "later entries") {
			if rapid.IntRange(0, 19).Draw(t, "restart") == 19 {
				a.m = restored(t, a.m)
			}
			a.apply(a.s.Next(t))
		}
	})
	if open > merged/2 || carried < merged/30 {
		t.Errorf("of %d merges %d left something open, %d carried rules without: it shows little", merged, open, carried)
	}
}

// side is one partition of two.
type side struct {
	wanderer
	homes []*home // of whose principals it has
	open  bool    // the rules leave open what is counted, so the model is not compared
}

// home is what is known of some principals apart from the model.
type home struct {
	principals []string
	inForce    []inForce
	admitted   []admitted
	// alone answers as if the principals had stayed where they were; nil before they met others, and after the
	// next policy.
	alone *reference.Model
}

type inForce struct {
	from   fsm.Time
	policy *policy.Policy
}

type admitted struct {
	at               fsm.Time
	principal, class string
	cost             int64
}

// apply gives an entry to the machine and the models.
func (s *side) apply(e *fsm.Entry) {
	switch e.Kind {
	case fsm.KindBirth:
		var owned []string
		for _, p := range []string{"p", "q", "r", "s"} {
			if slices.ContainsFunc(e.Birth.Owned, func(r fsm.OwnedRange) bool { return r.First == fsm.SlotOf([16]byte{}, p) }) {
				owned = append(owned, p)
			}
		}
		s.homes = []*home{{principals: owned, inForce: []inForce{{e.Stamp, e.Birth.Policy}}}}
		s.m.Step(reference.Term, e)
		s.h.entry(e, nil)
		return
	case fsm.KindInstall:
		for _, h := range s.homes {
			h.inForce = append(h.inForce, inForce{max(s.m.Now(), e.Stamp), e.Install.Policy})
			h.alone = nil
		}
	}
	s.huge = s.huge || hasHugeCost(e)
	ever := admittedTo(s.s.Model, e.Forgive)
	want := s.s.Apply(e)
	s.h.entry(e, &want)
	got := s.m.Step(reference.Term, e)
	if !s.huge && !s.open {
		mustForgive(s.t, want.Forgiven, got.Forgiven, ever)
	}
	for i := range e.Checks {
		s.check(got.Time, &e.Checks[i], &got.Decisions[i])
	}
	if f := e.Forgive; f != nil && got.Forgiven.Reason == fsm.ReasonAllowed {
		s.homeOf(f.Principal).forgive(got.Time, f)
	}
	diff := cmp.Diff(told(want, s.huge), told(*got, s.huge), cmpopts.EquateEmpty())
	if diff != "" && !s.open {
		s.t.Fatalf("after (answers of the reference)\n%s(-reference +machine):\n%s", (*strings.Builder)(&s.h), diff)
	}
}

func (s *side) homeOf(principal string) *home {
	i := slices.IndexFunc(s.homes, func(h *home) bool { return slices.Contains(h.principals, principal) })
	return s.homes[i]
}

// check looks at one decision.
func (s *side) check(now fsm.Time, c *fsm.Check, d *fsm.Decision) {
	if !d.Allowed() || d.Replayed {
		return
	}
	h := s.homeOf(c.Principal)
	if h.alone != nil {
		if alone := h.alone.Check(now, *c); !alone.Allowed() {
			s.t.Fatalf("after\n%s%+v was allowed, alone %+v", (*strings.Builder)(&s.h), c, alone)
		}
	}
	p := h.inForce[len(h.inForce)-1].policy
	for _, charge := range append([]fsm.Charge{c.Charge}, c.Also...) { // each counts what the earlier ones take
		class, _ := p.ClassOf(charge.Class)
		h.admitted = append(h.admitted, admitted{now, c.Principal, class, charge.Cost})
		for _, l := range p.RuleFor(c.Principal, class, charge.Tier) {
			h.mustHold(s, now, c.Principal, []string{class}, l)
		}
		if g := p.GroupOf(class); g != nil {
			for _, l := range g.Limits {
				h.mustHold(s, now, c.Principal, g.Classes, l)
			}
		}
	}
}

// mustHold wants a limit not to be passed if all classes that it counts were held and listed for all of its window.
func (h *home) mustHold(s *side, now fsm.Time, principal string, classes []string, l policy.Limit) {
	for i, f := range h.inForce {
		if i+1 < len(h.inForce) && h.inForce[i+1].from <= now-fsm.Time(l.WindowNanos) {
			continue
		}
		for _, class := range classes {
			w := f.policy.Windows(class)
			if class != policy.DefaultClass && f.policy.Classes[class] == nil ||
				max(w.Rule, w.Group, w.Retention) < l.WindowNanos {
				return
			}
		}
	}
	var sum int64
	for _, a := range h.admitted {
		if a.principal == principal && slices.Contains(classes, a.class) && a.at > now-fsm.Time(l.WindowNanos) {
			sum += min(a.cost, policy.MaxLimit-min(sum, policy.MaxLimit)+1)
		}
	}
	if sum > l.Max {
		s.t.Fatalf("after\n%s%d of %s in %v within %d, the limit is %d",
			(*strings.Builder)(&s.h), sum, principal, classes, l.WindowNanos, l.Max)
	}
}

func (h *home) forgive(now fsm.Time, f *fsm.Forgive) {
	if h.alone != nil {
		h.alone.Forgive(now, *f)
	}
	h.admitted = slices.DeleteFunc(h.admitted, func(a admitted) bool { return a.principal == f.Principal })
}

func (h *home) move(by fsm.Time) {
	for i := range h.inForce {
		h.inForce[i].from += by
	}
	for i := range h.admitted {
		h.admitted[i].at += by
	}
}

// take has s take over what b has.
func (s *side) take(b *side) {
	h := &handoff{t: s.t, plan: 1, src: b.m, dst: s.m, ranges: b.s.Ranges(), bodies: bodies(s.s.Policies())}
	h.pull()
	h.freeze()
	// The hidden time between the freeze and the base, and between that and the end, is the destination's.
	pass := rapid.SampledFrom([]int64{0, 1, 1e6, 3e9})
	for _, step := range []func(){h.open, h.seal, func() { h.activate(2) }} {
		e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: s.m.Now() + fsm.Time(pass.Draw(s.t, "pass"))}
		s.s.Apply(e)
		s.m.Step(reference.Term, e)
		if step(); rapid.IntRange(0, 4).Draw(s.t, "restart") == 4 {
			s.m = restored(s.t, s.m)
			h.dst = s.m
		}
		if s.m.PlanEnd(1) == fsm.PlanOpen {
			by := s.m.Now() - b.m.Now()
			b.s.Move(by, 2)
			for _, of := range b.homes {
				of.move(by)
			}
		}
	}
	for _, of := range []*side{s, b} {
		for _, home := range of.homes {
			home.alone = of.s.Model.Clone()
		}
	}
	s.open = s.s.Merge(b.s)
	s.homes = append(s.homes, b.homes...)
	s.h.add("%s\ntook over what is above", (*strings.Builder)(&b.h))
}
