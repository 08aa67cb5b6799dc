package fsm_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// Shows that a reference takes the policy that it names and no other: not another body, label or switch, nor
// a policy of the same contents that was not made of the body.
func TestPolicyRefCheck(t *testing.T) {
	body := mustParse(t)
	switches := []fsm.Switch{{Class: "a", Disabled: true}}
	switched, err := body.With("s2", switches)
	if err != nil {
		t.Fatal(err)
	}
	other, err := body.With("s2", nil)
	if err != nil {
		t.Fatal(err)
	}
	twice, err := other.With("s2", switches)
	if err != nil {
		t.Fatal(err)
	}
	ref := fsm.NewInstall(2, switched).PolicyRef
	if err := ref.Check(switched); err != nil || ref.Body != body.Digest() || ref.Bytes == 0 {
		t.Errorf("%v, %+v", err, ref)
	}
	own := fsm.NewInstall(1, body).PolicyRef
	if err := own.Check(body); err != nil {
		t.Error(err)
	}
	relabelled := ref
	relabelled.Version = "s3"
	for want, err := range map[string]error{
		"was not found":                   ref.Check(nil),
		`is "s2", and was taken for "s1"`: ref.Check(body),
		"switches [{a true}], and was taken for one that switches []": ref.Check(other),
		"was taken for one with body":                                 ref.Check(twice),
		`is "s3", and was taken for "s2"`:                             relabelled.Check(switched),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that says %s", err, want)
		}
	}
}

// Shows which entries need a policy: the birth of what is not born and the install of a later revision, in
// the leadership that stamped them; that these do not go on without it, and that all others do.
func TestNeeds(t *testing.T) {
	bear := func() *fsm.Entry {
		install := fsm.NewInstall(1, mustParse(t))
		install.Policy = nil
		return &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{Bounds: fsm.DefaultBounds(), Install: install}}
	}
	install := func(revision fsm.Revision) *fsm.Entry {
		return &fsm.Entry{Kind: fsm.KindInstall, Term: 1, Install: &fsm.Install{PolicyRef: fsm.PolicyRef{Revision: revision}}}
	}
	born := func() *fsm.Machine { return mustBirth(t) }
	frozen := born()
	frozen.Step(1, &fsm.Entry{Kind: fsm.KindFreeze, Term: 1, Plan: 1, Revision: 1, Ranges: allSlots})
	for name, tc := range map[string]struct {
		m     *fsm.Machine
		e     *fsm.Entry
		term  uint64
		needs bool
	}{
		"a birth":                           {fsm.New(), bear(), 1, true},
		"a birth of another leadership":     {fsm.New(), bear(), 2, false},
		"a second birth":                    {born(), bear(), 1, false},
		"a later revision":                  {born(), install(2), 1, true},
		"the same revision":                 {born(), install(1), 1, false},
		"an install before the birth":       {fsm.New(), install(2), 1, false},
		"an install of another leadership":  {born(), install(2), 2, false},
		"an install while slots are frozen": {frozen, install(2), 1, false},
		"a batch":                           {born(), &fsm.Entry{Kind: fsm.KindBatch, Term: 1}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := len(tc.m.Needs(tc.term, tc.e)) > 0; got != tc.needs {
				t.Errorf("it needs a policy: %t", got)
			}
			defer func() {
				if e := recover(); (e != nil) != tc.needs {
					t.Errorf("without a policy: %v", e)
				}
			}()
			tc.m.Step(tc.term, tc.e)
		})
	}
}

// Shows that a seal needs the policies that the staged history carries while the import is open, each as it is
// named, and does not go on without them; and that they are in the snapshots of the destination from then on.
func TestSealNeedsItsPolicies(t *testing.T) {
	src, dst := mustBear(t, []fsm.OwnedRange{{SlotRange: allSlots[0], Epoch: 1}}), fsm.New()
	next := mustPolicy(t, "{version: s2, default: {limits: [{name: all, limit: 3, window: 9h}]}}")
	install := fsm.NewInstall(2, next)
	src.Step(1, &fsm.Entry{Kind: fsm.KindInstall, Term: 1, Stamp: 900e9, Install: &install})
	dst.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{Bounds: fsm.DefaultBounds(), Install: install}})
	h := &handoff{
		t: t, plan: 1, src: src, dst: dst, ranges: allSlots,
		bodies: map[fsm.Revision]*policy.Policy{1: mustParse(t)},
	}
	h.freeze()
	if _, err := dst.StagedPolicies(1); err == nil {
		t.Error("policies are named before the history is staged")
	}
	h.pull()
	seal := h.sealing()
	seal.Term, seal.Plan = 1, 1
	if n := len(dst.Needs(1, seal)); n != 0 || len(seal.Policies) != 1 {
		t.Fatalf("before the import is open %d of %d policies are needed", n, len(seal.Policies))
	}
	h.open()
	if needed := dst.Needs(1, seal); len(needed) != 1 || needed[0] != &seal.Policies[0] || len(dst.Needs(2, seal)) != 0 {
		t.Fatalf("needed: %+v", needed)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("it was sealed without the policy")
			}
		}()
		without := *seal
		without.Policies = []fsm.Install{{PolicyRef: seal.Policies[0].PolicyRef}}
		mustRestore(t, dst).Step(1, &without)
	}()
	h.seal()
	if n := len(dst.Needs(1, seal)); n != 0 {
		t.Errorf("when it is sealed %d policies are needed", n)
	}
	h.dst = mustRestore(t, dst)
	h.activate(2)
	if got := mustRestore(t, h.dst).Carried(); len(got) != 3 || got[0].Revision != 1 || got[0].Version != "s1" {
		t.Errorf("carried: %+v", got)
	}
}

// Shows that a rollback whose policy shares its limits in memory with the revision that it goes back to is
// answered like one that does not, as after a restore: the limits that are carried are told beside those in
// force.
func TestSharedLimits(t *testing.T) {
	body, m := mustParse(t), fsm.New()
	other := mustPolicy(t, "{version: s2, default: {limits: [{name: all, limit: 3, window: 2s}]}}")
	back, err := body.With("s3", nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, body),
		Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}},
	}})
	for i, p := range []*policy.Policy{other, back} {
		install := fsm.NewInstall(fsm.Revision(i+2), p)
		m.Step(1, &fsm.Entry{Kind: fsm.KindInstall, Term: 1, Stamp: fsm.Time(i+1) * 1e9, Install: &install})
	}
	restored := mustRestore(t, m)
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: 3e9, Checks: []fsm.Check{{
		Principal: "p", Gateway: "g", DecisionID: "d", RouteEpoch: 1, Charge: fsm.Charge{Class: "a", Cost: 1},
	}}}
	got, want := m.Step(1, e), restored.Step(1, e)
	if diff := cmp.Diff(want, got); diff != "" || len(got.Decisions[0].Limits) != 6 {
		t.Errorf("(-restored +shared) %s%+v", diff, got.Decisions[0].Limits)
	}
}
