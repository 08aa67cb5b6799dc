package handoff_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/handoff"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

const second = int64(1_000_000_000)

// has is an end that has answered.
func has(stands fsm.PlanEnd, r fsm.Revision) handoff.End {
	return handoff.End{Known: true, Fresh: true, Stands: stands, Revision: r}
}

func digest(n byte) fsm.Manifest {
	return fsm.Manifest{FrozenAt: 5, Revision: 4, Digest: [16]byte{n}}
}

// input is an open move between two ends that have revision 4.
func input(source, destination fsm.PlanEnd, change ...func(*handoff.Input)) handoff.Input {
	in := handoff.Input{
		Plan:   &state.Plan{ID: 7, Kind: state.PlanMove, Phase: state.PlanOpen},
		Source: has(source, 4), Destination: has(destination, 4),
	}
	for _, c := range change {
		c(&in)
	}
	return in
}

func kind(k state.PlanKind) func(*handoff.Input) { return func(in *handoff.Input) { in.Plan.Kind = k } }

func phase(p state.PlanPhase) func(*handoff.Input) {
	return func(in *handoff.Input) { in.Plan.Phase = p }
}

func pulled(bytes ...uint64) func(*handoff.Input) {
	return func(in *handoff.Input) { in.PulledBytes = bytes }
}

func exported(n byte) func(*handoff.Input) {
	return func(in *handoff.Input) { in.Exported = digest(n) }
}

func imported(n byte) func(*handoff.Input) {
	return func(in *handoff.Input) { in.Imported = digest(n) }
}

func level(in *handoff.Input) { in.Level = true }

func frozen(nanos int64) func(*handoff.Input) {
	return func(in *handoff.Input) { in.FrozenNanos = nanos }
}

func stuck(nanos int64) func(*handoff.Input) {
	return func(in *handoff.Input) { in.StuckNanos = nanos }
}

func source(change func(*handoff.End)) func(*handoff.Input) {
	return func(in *handoff.Input) { change(&in.Source) }
}

func destination(change func(*handoff.End)) func(*handoff.Input) {
	return func(in *handoff.Input) { change(&in.Destination) }
}

func silent(e *handoff.End) { e.Failures++ }

func unknown(e *handoff.End) { *e = handoff.End{} }

func gone(e *handoff.End) { *e = handoff.End{Gone: true} }

func empty(e *handoff.End) { e.Empty = true }

func stale(e *handoff.End) { e.Fresh = false }

func clears(e *handoff.End) { e.Clearing = true }

func revision(r fsm.Revision) func(*handoff.End) { return func(e *handoff.End) { e.Revision = r } }

// Shows the next step of an open plan for every way in which its ends can stand, and why it is given up.
func TestNextOfAnOpenPlan(t *testing.T) {
	const none, frz, stg, opn, sld, end = fsm.PlanNone, fsm.PlanFrozen, fsm.PlanStaging, fsm.PlanOpen, fsm.PlanSealed, fsm.PlanEnded
	const small, large = handoff.SmallPullBytes - 1, handoff.SmallPullBytes * 8
	recover, restore := kind(state.PlanRecover), kind(state.PlanRestore)
	for _, c := range []struct {
		name string
		in   handoff.Input
		want handoff.Kind
		why  string
	}{
		{"a driver that knows nothing", input(none, none, source(unknown), destination(unknown)), handoff.LookSource, ""},
		{"it knows the source", input(none, none, destination(unknown)), handoff.LookDestination, ""},
		{"the destination is not born yet", input(none, none, destination(unknown), destination(silent)), handoff.LookDestination, ""},
		{"the source is silent", input(none, stg, source(silent), pulled(small)), handoff.LookSource, ""},
		{"nothing was copied", input(none, none), handoff.Pull, ""},
		{"the source clears up", input(none, none, source(clears)), handoff.LookSource, "clears up"},
		{"the destination clears up", input(none, none, destination(clears)), handoff.LookDestination, "clears up"},
		{"the destination clears up, and is silent", input(none, none, destination(clears), destination(silent)), handoff.LookDestination, ""},
		{"copied, and the source clears up", input(none, stg, pulled(small), source(clears)), handoff.LookSource, "clears up"},
		{"frozen, whatever is to clear up", input(frz, stg, exported(1), source(clears), destination(clears)), handoff.Open, ""},
		{"it clears up for too long", input(none, none, source(clears), stuck(60*second)), handoff.Abort, "clears up"},
		{"another driver has copied", input(none, stg), handoff.Pull, ""},
		{"much was copied", input(none, stg, pulled(large*4)), handoff.Pull, ""},
		{"it shrinks by half", input(none, stg, pulled(large*4, large*2)), handoff.Pull, ""},
		{"it does not shrink by half", input(none, stg, pulled(large*4, large*2+1)), handoff.Freeze, ""},
		{"little is left", input(none, stg, pulled(small)), handoff.Freeze, ""},
		{"it shrinks for ever", input(none, stg, pulled(9<<40, 9<<39, 9<<38, 9<<37, 9<<36, 9<<35, 9<<34, 9<<33)), handoff.Freeze, ""},
		{"the revision may be another by now", input(none, stg, pulled(small), source(stale)), handoff.LookSource, ""},
		{"the source is behind", input(none, stg, pulled(small), source(revision(3))), handoff.LookSource, "policy revision 4"},
		{"the destination is behind", input(none, stg, pulled(small), destination(revision(3))), handoff.LookDestination, "policy revision 4"},
		{"frozen by another driver", input(frz, none), handoff.Freeze, ""},
		{"frozen", input(frz, stg, exported(1)), handoff.Open, ""},
		{"frozen, and the source is silent", input(frz, stg, exported(1), source(silent)), handoff.Open, ""},
		{"frozen, and the destination is silent", input(frz, stg, exported(1), destination(silent)), handoff.LookDestination, ""},
		{"frozen, and the destination is behind", input(frz, stg, exported(1), destination(revision(3))), handoff.LookDestination, "policy revision 4"},
		{"opened", input(frz, opn, exported(1)), handoff.Pull, ""},
		{"all has come", input(frz, opn, exported(1), level), handoff.Seal, ""},
		{"sealed by another driver", input(frz, sld), handoff.Freeze, ""},
		{"sealed by another driver, frozen again", input(frz, sld, exported(1)), handoff.Seal, ""},
		{"sealed", input(frz, sld, exported(1), imported(1)), handoff.Decide, ""},
		{"just in time", input(frz, sld, exported(1), imported(1), frozen(5*second-1)), handoff.Decide, ""},

		{"frozen for too long", input(frz, sld, exported(1), imported(1), frozen(5*second)), handoff.Abort, "frozen for too long"},
		{"stuck before the freeze", input(none, stg, stuck(60*second)), handoff.Abort, "no further"},
		{"not quite stuck", input(none, stg, stuck(60*second-1)), handoff.Pull, ""},
		{"different digests", input(frz, sld, exported(1), imported(2)), handoff.Abort, "different state"},
		{"refused for good", input(none, none, func(in *handoff.Input) { in.Refused = "pull: capacity" }), handoff.Abort, "capacity"},
		{"ended at the source", input(end, stg), handoff.Abort, "has ended"},
		{"ended at the destination", input(frz, end), handoff.Abort, "has ended"},
		{"opened before the freeze", input(none, opn), handoff.Abort, "opened"},
		{"a policy came between", input(frz, stg, exported(1), destination(revision(5))), handoff.Abort, "revision 5 came between"},
		{"the source is gone", input(none, none, source(gone)), handoff.Abort, "gone"},
		{"the destination is gone", input(none, none, destination(gone)), handoff.Abort, "gone"},
		{"the source is a destination", input(sld, none), handoff.Abort, "other end"},
		{"the destination is a source", input(none, frz), handoff.Abort, "other end"},

		{"restore: knows nothing", input(none, none, restore, source(gone), destination(unknown)), handoff.LookDestination, ""},
		{"restore: nothing was fetched", input(none, none, restore, source(gone)), handoff.Pull, ""},
		{"restore: something was fetched", input(none, stg, restore, source(gone), exported(1), pulled(9)), handoff.Pull, ""},
		{"restore: nothing was left", input(none, stg, restore, source(gone), exported(1), level, pulled(9, 0)), handoff.Open, ""},
		{"restore: opened by another driver", input(none, opn, restore, source(gone)), handoff.Pull, ""},
		{"restore: opened", input(none, opn, restore, source(gone), exported(1), level, pulled(9, 0)), handoff.Seal, ""},
		{"restore: sealed by another driver", input(none, sld, restore, source(gone)), handoff.Pull, ""},
		{"restore: sealed", input(none, sld, restore, source(gone), exported(1), imported(1)), handoff.Decide, ""},
		{"recover: the source never answers", input(none, none, recover, source(unknown), source(silent)), handoff.Pull, ""},
		{"recover: silent destination", input(none, stg, recover, destination(silent)), handoff.LookDestination, ""},
		{"recover: it still changes", input(none, stg, recover, exported(1), pulled(1, 1, 1, 1, 1, 1, 1, 1)), handoff.Abort, "still changes"},
		{"recover: stuck", input(none, stg, recover, stuck(60*second)), handoff.Abort, "no further"},
		{"recover: different digests", input(none, sld, recover, exported(1), imported(2), level), handoff.Abort, "different state"},
	} {
		check(t, c.name, c.in, c.want, c.why)
	}
}

func check(t *testing.T, name string, in handoff.Input, want handoff.Kind, why string) {
	t.Helper()
	got := handoff.Next(in)
	if got.Kind != want || !strings.Contains(got.Why, why) || why == "" && got.Why != "" {
		t.Errorf("%s: %s", name, got)
	}
	if got.WithinNanos <= 0 {
		t.Errorf("%s: %s within %d", name, got, got.WithinNanos)
	}
}

// Shows the next step of a plan that is decided: the source is released only after the destination was activated, an
// end that is gone, or owns nothing and is silent, is not waited for, and nothing is aborted any more.
func TestNextOfADecidedPlan(t *testing.T) {
	const none, frz, sld, end = fsm.PlanNone, fsm.PlanFrozen, fsm.PlanSealed, fsm.PlanEnded
	decided, recover := phase(state.PlanDecided), kind(state.PlanRecover)
	hopeless := func(in *handoff.Input) {
		in.Refused, in.FrozenNanos, in.StuckNanos, in.Imported = "capacity", 99*second, 99*second, digest(2)
	}
	since := func(nanos int64) func(*handoff.Input) {
		return func(in *handoff.Input) { in.DecidedNanos = nanos }
	}
	for _, c := range []struct {
		name string
		in   handoff.Input
		want handoff.Kind
		why  string
	}{
		{"a driver that knows nothing", input(none, none, decided, source(unknown), destination(unknown)), handoff.Activate, ""},
		{"sealed", input(frz, sld, decided, exported(1), hopeless), handoff.Activate, ""},
		{"silent", input(frz, sld, decided, destination(silent)), handoff.Activate, ""},
		{"the source says that it has ended, too early", input(end, sld, decided), handoff.Activate, ""},
		{"activated", input(frz, end, decided), handoff.Release, ""},
		{"activated, of a source not known", input(none, end, decided, source(unknown)), handoff.Release, ""},
		{"a silent source that owns slots", input(frz, end, decided, source(silent)), handoff.Release, ""},
		{"an empty source", input(frz, end, decided, source(empty)), handoff.Release, ""},
		{"a silent empty source", input(frz, end, decided, source(empty), source(silent)), handoff.Close, ""},
		{"the source was recovered", input(frz, end, decided, source(gone)), handoff.Close, ""},
		{"the destination was recovered", input(frz, sld, decided, destination(gone)), handoff.Release, ""},
		{"released", input(end, end, decided), handoff.Close, ""},
		{"recover: just decided", input(none, sld, decided, recover, since(1)), handoff.Wait, "leases"},
		{"recover: leases have ended", input(none, sld, decided, recover, since(15*second)), handoff.Activate, ""},
		{"recover: activated", input(none, end, decided, recover, since(15*second)), handoff.Close, ""},
		{"restore: just decided", input(none, sld, decided, kind(state.PlanRestore), source(gone)), handoff.Activate, ""},
		{"restore: activated", input(none, end, decided, kind(state.PlanRestore), source(gone)), handoff.Close, ""},
	} {
		check(t, c.name, c.in, c.want, c.why)
	}
}

// Shows the next step of a plan that is aborted: both ends are told, whatever they say to be, neither waits for the
// other, and one that goes anyway is not waited for.
func TestNextOfAnAbortedPlan(t *testing.T) {
	const none, frz, sld, end = fsm.PlanNone, fsm.PlanFrozen, fsm.PlanSealed, fsm.PlanEnded
	aborted := phase(state.PlanAborted)
	for _, c := range []struct {
		name string
		in   handoff.Input
		want handoff.Kind
	}{
		{"a driver that knows nothing", input(none, none, aborted, source(unknown), destination(unknown)), handoff.AbortSource},
		{"nothing was done", input(none, none, aborted), handoff.AbortSource},
		{"sealed", input(frz, sld, aborted, exported(1), imported(1)), handoff.AbortSource},
		{"a silent source", input(frz, sld, aborted, source(silent)), handoff.AbortDestination},
		{"both are silent", input(frz, sld, aborted, source(silent), destination(silent)), handoff.AbortSource},
		{"the source is undone", input(end, none, aborted), handoff.AbortDestination},
		{"the silent source is left", input(frz, end, aborted, source(silent)), handoff.AbortSource},
		{"a destination without slots", input(end, none, aborted, destination(empty)), handoff.AbortDestination},
		{"a silent destination without slots", input(end, none, aborted, destination(empty), destination(silent)), handoff.Close},
		{"a silent destination with slots", input(end, none, aborted, destination(silent)), handoff.AbortDestination},
		{"a recovered source", input(frz, end, aborted, source(gone)), handoff.Close},
		{"both are undone", input(end, end, aborted), handoff.Close},
		{"recover: nothing was done at the source", input(none, end, aborted, kind(state.PlanRecover)), handoff.Close},
		{"restore", input(none, sld, aborted, kind(state.PlanRestore), source(gone)), handoff.AbortDestination},
	} {
		check(t, c.name, c.in, c.want, "")
	}
}

// Shows what steps carry: the revision that both ends have, the freeze's manifest, both digests, and a reason that the
// control group takes as a comment, whatever was said.
func TestStepsCarry(t *testing.T) {
	freeze := handoff.Next(input(fsm.PlanNone, fsm.PlanStaging, pulled(0)))
	open := handoff.Next(input(fsm.PlanFrozen, fsm.PlanStaging, exported(1)))
	decide := handoff.Next(input(fsm.PlanFrozen, fsm.PlanSealed, exported(1), imported(1)))
	if freeze.Revision != 4 {
		t.Errorf("freeze at revision %d", freeze.Revision)
	}
	if diff := cmp.Diff(digest(1), open.Manifest); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(state.Decide{Exported: [16]byte{1}, Imported: [16]byte{1}}, decide.Decision); diff != "" {
		t.Error(diff)
	}
	for _, said := range []string{strings.Repeat("ü", 2000), "a\x00b", "a\xff", strings.Repeat("\xff", 2000)} {
		in := input(fsm.PlanNone, fsm.PlanNone, func(in *handoff.Input) { in.Refused = said })
		m, index := mustCluster(t)
		plan := mustStart(t, m, &index, &state.StartPlan{Kind: state.PlanMerge, Source: 0, Destination: 1})
		index++
		r, _ := m.Apply(index, &state.Command{Kind: state.KindAbortPlan, Plan: plan, Comment: handoff.Next(in).Why})
		if r.Refused != nil {
			t.Errorf("%.20q: %v", said, r.Refused)
		}
	}
}

// Shows the pauses and bounds of steps: what has failed is tried again after a pause, a short one while slots are
// frozen, and no step outlasts the time that is left for the freeze.
func TestPace(t *testing.T) {
	trouble := func(in *handoff.Input) { in.Trouble = "pull: no answer" }
	for _, c := range []struct {
		name          string
		in            handoff.Input
		pause, within int64
	}{
		{"the first pull", input(fsm.PlanNone, fsm.PlanNone), 0, 600 * second},
		{"after a failure", input(fsm.PlanNone, fsm.PlanNone, trouble), second / 5, 600 * second},
		{"the freeze", input(fsm.PlanNone, fsm.PlanStaging, pulled(0)), 0, 2 * second},
		{"frozen", input(fsm.PlanFrozen, fsm.PlanOpen, exported(1), frozen(2*second)), 0, 3 * second},
		{"frozen, after a failure", input(fsm.PlanFrozen, fsm.PlanOpen, exported(1), frozen(2*second), trouble), second / 20, 3 * second},
		{"frozen for too long", input(fsm.PlanFrozen, fsm.PlanOpen, exported(1), frozen(9*second)), 0, 5 * second},
		{"decided", input(fsm.PlanFrozen, fsm.PlanSealed, phase(state.PlanDecided), frozen(4*second)), 0, 2 * second},
	} {
		got := handoff.Next(c.in)
		if got.PauseNanos != c.pause || got.WithinNanos != c.within {
			t.Errorf("%s: %s after %d within %d", c.name, got, got.PauseNanos, got.WithinNanos)
		}
	}
}

// Shows that a recovered partition is activated only after every policy lease that was granted before its decision has
// ended, however much the driver's clock may run fast.
func TestReplacedAfterLeases(t *testing.T) {
	slowest := int64(handoff.ReplacedAfterNanos) / 1_000_000 * (1_000_000 - clock.MaxMaxDriftPPM)
	if slowest <= int64(control.PolicyLease) {
		t.Errorf("%d ns may be %d ns, and a lease is %s", handoff.ReplacedAfterNanos, slowest, control.PolicyLease)
	}
}
