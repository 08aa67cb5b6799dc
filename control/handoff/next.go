package handoff

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// Next is the next step of a plan. It is found from what both ends say and from nothing else, so it does not matter who
// made the steps before, or whether the last one was made: what is not known to have been made is made again.
//
// A plan that is open, of a source that serves, begins once both ends have cleared up after their earlier plans: the
// first step would do all that is left of it in one go, and have every check wait.
//
//  1. Pull, while it still pays. The destination says what it has, and gets what differs: a repeated pull is a smaller
//     one. What is staged decides nothing, and is replaced by what comes later.
//  2. Freeze, once both ends have the same policy revision. The source answers a repeated one with the same manifest,
//     since nothing frozen changes; once the plan has ended there it refuses it. From here neither end installs.
//  3. Open, with the freeze's manifest, hence after the freeze was committed. The time that ages are counted back from
//     is drawn by the first one only. If this came before the freeze, ages would be taken too great: the plan is
//     aborted if it looks so.
//  4. Pull the difference. One pull that began after the freeze brings all: the source cannot change.
//  5. Seal. The destination takes nothing more, so a repeated one answers the same digest.
//  6. Decide, by the control group, on equal digests. There the first of Decide and Abort wins, and the other is
//     refused.
//
// If the source is not frozen, since it is one replica or a backup, pulls are repeated until one finds nothing left to
// fetch, and its manifest is what the destination is opened with. A replica that changes all the time has a majority,
// and is none to recover from: the plan is aborted.
//
// A plan that is decided is never aborted. Activate, until the destination has; it refuses what is not its plan, and
// what it has activated it activates no second time. Only then Release: until the destination serves, the source keeps
// its state. An end that has released says that the plan has ended there, whoever asks. Then Close.
//
// A plan that is aborted is undone at both ends, in any order, since neither can serve the slots by it any more: each
// marks the plan as ended, even if it never heard of it, so that a driver which sleeps before a step of the plan and
// wakes after this changes nothing. Then Close. An end that owns nothing is retired by that, and is not waited for.
//
// Times are those that this driver has counted itself. A new one begins anew, so slots that were frozen by the one
// before may stay frozen for another FreezeLimitNanos.
func Next(in Input) Step {
	s := in.step()
	if in.Trouble != "" {
		s.PauseNanos = max(s.PauseNanos, RetryNanos)
	}
	if in.FrozenNanos > 0 {
		s.PauseNanos = min(s.PauseNanos, frozenRetryNanos)
	}
	s.WithinNanos = in.within(s.Kind)
	return s
}

func (in *Input) step() Step {
	switch {
	case in.Plan.Phase == state.PlanDecided:
		return in.finish()
	case in.Plan.Phase == state.PlanAborted:
		return in.undo()
	}
	if why := in.hopeless(); why != "" {
		return Step{Kind: Abort, Why: comment(why)}
	}
	switch {
	case in.Plan.Copies():
		return in.copyOver()
	case in.Source.Stands != fsm.PlanFrozen:
		return in.prepare()
	case in.Exported.Digest == [16]byte{}: // another driver has frozen it: what did it answer?
		return Step{Kind: Freeze, Revision: in.Source.Revision}
	}
	return in.take()
}

// prepare is the next step until the source is frozen.
func (in *Input) prepare() Step {
	source, destination := &in.Source, &in.Destination
	switch {
	case !source.answers():
		return Step{Kind: LookSource}
	case !destination.answers():
		return Step{Kind: LookDestination}
	case source.Clearing:
		return Step{Kind: LookSource, PauseNanos: RetryNanos, Why: clearing}
	case destination.Clearing:
		return Step{Kind: LookDestination, PauseNanos: RetryNanos, Why: clearing}
	case !in.copied():
		return Step{Kind: Pull}
	case !source.Fresh:
		return Step{Kind: LookSource}
	case source.Revision < destination.Revision:
		return Step{Kind: LookSource, PauseNanos: RetryNanos, Why: behind(destination.Revision)}
	case source.Revision > destination.Revision:
		return Step{Kind: LookDestination, PauseNanos: RetryNanos, Why: behind(source.Revision)}
	}
	return Step{Kind: Freeze, Revision: source.Revision}
}

// copyOver is the next step when the source is one replica, or a backup.
func (in *Input) copyOver() Step {
	switch {
	case !in.Destination.answers():
		return Step{Kind: LookDestination}
	case in.Exported.Digest == [16]byte{} || !in.Level && in.Destination.Stands < fsm.PlanSealed:
		return Step{Kind: Pull}
	}
	return in.take()
}

// take is the next step once it is known what the destination is to have.
func (in *Input) take() Step {
	destination := &in.Destination
	switch {
	case !destination.answers():
		return Step{Kind: LookDestination}
	case destination.Stands < fsm.PlanOpen && destination.Revision < in.Exported.Revision:
		return Step{Kind: LookDestination, PauseNanos: RetryNanos, Why: behind(in.Exported.Revision)}
	case destination.Stands < fsm.PlanOpen:
		return Step{Kind: Open, Manifest: in.Exported}
	case destination.Stands < fsm.PlanSealed && !in.Level:
		return Step{Kind: Pull}
	case destination.Stands < fsm.PlanSealed || in.Imported.Digest == [16]byte{}:
		return Step{Kind: Seal}
	}
	return Step{Kind: Decide, Decision: state.Decide{Exported: in.Exported.Digest, Imported: in.Imported.Digest}}
}

// finish is the next step of a plan that is decided.
func (in *Input) finish() Step {
	source, destination := &in.Source, &in.Destination
	left := int64(ReplacedAfterNanos) - in.DecidedNanos
	served := destination.Gone || destination.Stands == fsm.PlanEnded
	switch {
	case !served && in.Plan.Kind == state.PlanRecover && left > 0:
		return Step{Kind: Wait, PauseNanos: min(left, waitNanos), Why: "leases of the old partition may not have ended yet"}
	case !served:
		return Step{Kind: Activate}
	case in.Plan.Copies() || source.Gone || source.Stands == fsm.PlanEnded || source.Empty && source.Failures > 0:
		return Step{Kind: Close}
	}
	return Step{Kind: Release}
}

// undo is the next step of a plan that is aborted. The end that failed less often comes first, so that one which does
// not answer keeps the other from nothing.
func (in *Input) undo() Step {
	waits := func(e *End) bool {
		return !e.Gone && e.Stands != fsm.PlanEnded && (!e.Empty || e.Failures == 0)
	}
	source := waits(&in.Source) && !in.Plan.Copies() // nothing was done to a source that is only read
	destination := waits(&in.Destination)
	switch {
	case source && (!destination || in.Source.Failures <= in.Destination.Failures):
		return Step{Kind: AbortSource}
	case destination:
		return Step{Kind: AbortDestination}
	}
	return Step{Kind: Close}
}

// hopeless says why an open plan cannot be decided any more, or should not be waited for; empty when it can.
func (in *Input) hopeless() string {
	source, destination, read := &in.Source, &in.Destination, in.Plan.Copies()
	switch {
	case in.Refused != "":
		return in.Refused
	case destination.Gone || source.Gone && !read:
		return "one of the partitions is gone"
	case destination.Stands == fsm.PlanEnded || source.Stands == fsm.PlanEnded:
		return "the plan has ended at one of the partitions, though it was not decided"
	case source.Stands > fsm.PlanFrozen || destination.Stands == fsm.PlanFrozen:
		return "a partition stands as the other end of the plan should"
	case !read && source.Known && source.Stands == fsm.PlanNone && destination.Stands >= fsm.PlanOpen:
		return "the destination was opened, and the source is not known to have been frozen before"
	case !read && destination.Stands < fsm.PlanOpen && in.Exported.Revision > 0 &&
		destination.Revision > in.Exported.Revision:
		return fmt.Sprintf("policy revision %d came between: try again", destination.Revision)
	case in.Exported.Digest != in.Imported.Digest && in.Exported.Digest != [16]byte{} && in.Imported.Digest != [16]byte{}:
		return "both partitions have different state"
	case read && !in.Level && len(in.PulledBytes) >= MaxPulls:
		return "the replica still changes: a partition that has its majority needs no recovery"
	case in.FrozenNanos >= FreezeLimitNanos:
		return "the slots were frozen for too long" + because(in.Trouble)
	case in.StuckNanos >= StuckLimitNanos:
		return "it came no further for too long" + because(in.waits())
	}
	return ""
}

// waits says what an open plan waits for; empty when that is not known.
func (in *Input) waits() string {
	if in.Trouble != "" || in.Plan.Copies() || !in.Source.answers() || !in.Destination.answers() {
		return in.Trouble
	}
	a, b := in.Source.Revision, in.Destination.Revision
	switch {
	case in.Source.Clearing || in.Destination.Clearing:
		return clearing
	case a != b:
		return fmt.Sprintf("the source has policy revision %d, the destination %d", a, b)
	}
	return ""
}

// copied reports that it is time to freeze: little is left to fetch, or it does not become less.
func (in *Input) copied() bool {
	n := len(in.PulledBytes)
	switch {
	case n == 0:
		return false
	case n >= MaxPulls || in.PulledBytes[n-1] < SmallPullBytes:
		return true
	}
	return n > 1 && in.PulledBytes[n-1] > in.PulledBytes[n-2]/2
}

// answers reports that what is known of the end is what it said last.
func (e *End) answers() bool { return e.Known && e.Failures == 0 }

const (
	// frozenRetryNanos is the longest pause while slots are frozen.
	frozenRetryNanos = 50_000_000
	lookWithinNanos  = 2_000_000_000
	pullWithinNanos  = 600_000_000_000
	// stepWithinNanos is for an entry of an end's log. It is short, since a leader that stands still does not answer,
	// and another one, who does, is there after an election; whatever it came to, the step is made again.
	stepWithinNanos  = 2_000_000_000
	orderWithinNanos = 5_000_000_000 // of the control group
	waitNanos        = 1_000_000_000
)

// within bounds a step.
func (in *Input) within(k Kind) int64 {
	most := int64(stepWithinNanos)
	switch k {
	case LookSource, LookDestination:
		most = lookWithinNanos
	case Pull:
		most = pullWithinNanos
	case Abort, Close, Decide, Wait:
		most = orderWithinNanos
	case Freeze, Open, Seal, Activate, Release, AbortSource, AbortDestination:
	}
	if in.Plan.Phase == state.PlanOpen && in.FrozenNanos > 0 && k != Abort {
		most = min(most, FreezeLimitNanos-in.FrozenNanos)
	}
	return most
}

// clearing is why a plan does not begin yet.
const clearing = "it still clears up after an earlier plan"

func behind(r fsm.Revision) string {
	return fmt.Sprintf("policy revision %d is not installed there yet", r)
}

func because(trouble string) string {
	if trouble == "" {
		return ""
	}
	return ": " + trouble
}

// comment is a reason as the comment of a command, whatever is in it.
func comment(why string) string {
	why = strings.ReplaceAll(strings.ToValidUTF8(why, "?"), "\x00", "?")
	if len(why) > state.MaxCommentBytes {
		why = strings.ToValidUTF8(why[:state.MaxCommentBytes], "")
	}
	return why
}
