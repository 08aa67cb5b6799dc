package handoff

import (
	"strconv"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// What a plan is given. All are counted by the driver's own clock.
const (
	// FreezeLimitNanos is for how long slots may be frozen before the plan is decided.
	FreezeLimitNanos = 5_000_000_000
	// StuckLimitNanos is for how long a plan may come no further before the freeze, or, where nothing is frozen, before
	// the decision.
	StuckLimitNanos = 60_000_000_000
	// ReplacedAfterNanos is for how long a recovered partition waits after its decision: until no replica of the old
	// one, should it still have a majority after all, can hold a policy lease. A lease is 10 s.
	ReplacedAfterNanos = 15_000_000_000
	// PullStallNanos is how long a pull may bring nothing, and as what one that failed is counted at most.
	PullStallNanos = 10_000_000_000
	// RetryNanos is the pause before a step that has just failed, or waits for something.
	RetryNanos = 200_000_000
)

// What is copied before the freeze.
const (
	// SmallPullBytes is what may be left to be fetched while the slots are frozen.
	SmallPullBytes = 256 << 10
	// MaxPulls bounds the complete pulls before the freeze; of a source that is not frozen, all of them.
	MaxPulls = 8
)

// End is one end of a plan, as its driver knows it.
type End struct {
	// Known says that it has answered this driver. Failures counts what it has not answered since.
	Known    bool
	Failures int
	// Stands is the furthest that it has said to be.
	Stands fsm.PlanEnd
	// Revision is the policy revision that it said to have last.
	Revision fsm.Revision
	// Fresh says that it has said so after the last pull, and after the last freeze that was refused.
	Fresh bool
	// Gone says that the partition is no end of the plan any more, since its recovery was decided: nothing can be asked
	// of it, and it never is one again. So it is with the source of a restore from the beginning.
	Gone bool
	// Empty says that it owns no slots: when the plan is closed it is retired.
	Empty bool
	// Clearing says that it had not cleared up yet after an earlier plan when it answered last.
	Clearing bool
}

// Input is what a driver knows of a plan.
type Input struct {
	Plan                *state.Plan // as a committed state has it
	Source, Destination End
	// Exported is what the source has frozen; where it is not frozen, what the last complete pull was of. Imported is
	// what the destination has sealed. A zero digest says that it is not known.
	Exported, Imported fsm.Manifest
	// PulledBytes are of the complete pulls before the freeze, oldest first.
	PulledBytes []uint64
	// Level says that the destination has all: a pull that began while the source was frozen is complete, or, where it
	// is not frozen, the last complete pull had nothing to fetch.
	Level bool
	// FrozenNanos is for how long the source may have been frozen, StuckNanos for how long the plan has come no
	// further, and DecidedNanos for how long it has been decided; all as far as this driver knows.
	FrozenNanos, StuckNanos, DecidedNanos int64
	// Refused is why an end or the control group will never make a step of the plan; empty while none has said so.
	Refused string
	// Trouble is what went wrong last; empty when the last step was made. It is for people.
	Trouble string
}

// Kind says what a step does.
type Kind uint8

// The kinds of steps. Source and destination are asked at their leaders, by the peer service.
const (
	LookSource       Kind = 1  // asks how the source stands
	LookDestination  Kind = 2  // asks how the destination stands
	Pull             Kind = 3  // the destination fetches from the source what it does not have yet
	Freeze           Kind = 4  // the source stops deciding for the slots, if it has Revision
	Open             Kind = 5  // the destination learns Manifest, and draws the time that ages are counted back from
	Seal             Kind = 6  // the destination takes nothing more, and tells what it has
	Decide           Kind = 7  // the control group moves the slots, on the digests in Decision
	Activate         Kind = 8  // the destination begins to decide for the slots, under the plan's epoch
	Release          Kind = 9  // the source drops the slots
	Abort            Kind = 10 // the control group aborts the plan; the comment is Why
	AbortSource      Kind = 11 // the source undoes what it has done
	AbortDestination Kind = 12 // the destination undoes what it has done
	Close            Kind = 13 // the control group closes the plan
	Wait             Kind = 14 // nothing, for the pause
)

// Acts reports that the step may change an end or the control state. Looks and waits change nothing.
func (k Kind) Acts() bool { return k >= Pull && k <= Close }

// String is the kind as progress and hold points name it.
func (k Kind) String() string {
	switch k {
	case LookSource:
		return "look-source"
	case LookDestination:
		return "look-destination"
	case Pull:
		return "pull"
	case Freeze:
		return "freeze"
	case Open:
		return "open"
	case Seal:
		return "seal"
	case Decide:
		return "decide"
	case Activate:
		return "activate"
	case Release:
		return "release"
	case Abort:
		return "abort"
	case AbortSource:
		return "abort-source"
	case AbortDestination:
		return "abort-destination"
	case Close:
		return "close"
	case Wait:
		return "wait"
	}
	return "step-" + strconv.Itoa(int(k))
}

// Step is one step of a plan. Ranges, epoch, where to pull from and whether history was lost are in the plan.
type Step struct {
	Kind Kind
	// Why is for people. Of an abort it is what the command's comment is to say, within its bound.
	Why string
	// PauseNanos is to pass before the step, unless the control state changes before that.
	PauseNanos int64
	// WithinNanos bounds the step itself.
	WithinNanos int64
	Revision    fsm.Revision // Freeze
	Manifest    fsm.Manifest // Open
	Decision    state.Decide // Decide
}

// String is the step in words.
func (s Step) String() string {
	if s.Why == "" {
		return s.Kind.String()
	}
	return s.Kind.String() + ": " + s.Why
}

// Answer is what came of a step.
type Answer struct {
	// Failed is why nothing is known of what the step did: it may be made, now or later, or not. Empty when it was
	// answered.
	Failed string
	// Refused is why it was refused for good: it conflicts with what is there, or a bound is reached. Empty when it was
	// not. A refusal that time may heal (no leader, overloaded, frozen) is a failure.
	Refused string
	// End and Revision tell how the end stands after the step. A refusal because the plan has ended there tells so too,
	// by fsm.PlanEnded. Of a step of the control group they are zero.
	End      fsm.PlanEnd
	Revision fsm.Revision
	// Clearing says that the end has not cleared up yet after an earlier plan.
	Clearing bool
	// Manifest is what a freeze and a seal answer, and a pull from a replica or a backup.
	Manifest fsm.Manifest
	// Slots and Bytes are what a pull has fetched.
	Slots uint32
	Bytes uint64
}
