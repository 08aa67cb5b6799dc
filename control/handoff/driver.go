package handoff

import (
	"fmt"
	"strings"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// Driver is what one driver of one plan remembers. It is for one goroutine, and is forgotten when that stops driving:
// whoever drives the plan next finds everything out anew.
type Driver struct {
	plan fsm.PlanID
	in   Input
	step Step  // that Next said last
	last int64 // when Next or Note was called last

	frozen, decided           bool
	frozenSince, decidedSince int64
	// refused is why a freeze was refused that named revision: for good, unless the source has another by now.
	refused  string
	revision fsm.Revision
	troubled Kind // the step that in.Trouble is about
}

// NewDriver is a driver that knows nothing of a plan yet. Times are nanoseconds of a clock of the driver's own that
// never goes back.
func NewDriver(plan fsm.PlanID, nowNanos int64) *Driver { return &Driver{plan: plan, last: nowNanos} }

// Next is the next step, as the control state stands; false when the plan is closed.
func (d *Driver) Next(nowNanos int64, s *state.State) (Step, bool) {
	p, ok := s.Plan(d.plan)
	if !ok {
		return Step{}, false
	}
	in := &d.in
	in.StuckNanos += nowNanos - d.last
	d.last = nowNanos
	in.Plan = p
	source, destination := s.Ends(p)
	in.Source.stand(source)
	in.Destination.stand(destination)
	if p.Phase == state.PlanDecided && !d.decided {
		d.decided, d.decidedSince = true, nowNanos
	}
	in.DecidedNanos = since(d.decided, d.decidedSince, nowNanos)
	in.FrozenNanos = since(d.frozen, d.frozenSince, nowNanos)
	d.step = Next(*in)
	if d.step.Kind == Freeze {
		d.freezes(nowNanos) // whether it answers or not
	}
	return d.step, true
}

func (e *End) stand(p *state.Partition) {
	e.Gone = p == nil
	e.Empty = p != nil && len(p.Ranges) == 0
}

func since(began bool, at, nowNanos int64) int64 {
	if !began {
		return 0
	}
	return max(1, nowNanos-at)
}

func (d *Driver) freezes(nowNanos int64) {
	if !d.frozen {
		d.frozen, d.frozenSince = true, nowNanos
	}
}

// Note takes what came of the step that Next has said last.
func (d *Driver) Note(nowNanos int64, a Answer) {
	in, k := &d.in, d.step.Kind
	spent := nowNanos - d.last
	if k == Pull {
		spent = min(spent, PullStallNanos) // it is ended when it brings nothing for that long
	}
	in.StuckNanos += spent
	d.last = nowNanos
	if k == Wait {
		return
	}
	end := in.end(k)
	if end != nil {
		end.Stands = max(end.Stands, a.End) // committed once, so what says less is old
	}
	a = expect(k, a)
	switch {
	case a.Failed != "":
		in.Trouble, d.troubled = k.String()+": "+a.Failed, k
	case a.Refused != "":
		in.Trouble, d.troubled = k.String()+" was refused: "+a.Refused, k
		d.refuse(a.Refused)
	case k == d.troubled || k != LookSource && k != LookDestination: // a look heals nothing but itself
		in.Trouble = ""
	}
	if end != nil {
		end.hear(a, k)
	}
	if in.Source.Stands == fsm.PlanFrozen && in.Plan.Phase == state.PlanOpen {
		d.freezes(nowNanos)
	}
	if a.Failed == "" && a.Refused == "" {
		d.made(a)
	}
}

// end is the end that makes a step; nil for the control group.
func (in *Input) end(k Kind) *End {
	switch k {
	case LookSource, Freeze, Release, AbortSource:
		return &in.Source
	case LookDestination, Pull, Open, Seal, Activate, AbortDestination:
		return &in.Destination
	case Decide, Abort, Close, Wait:
	}
	return nil
}

// hear takes what an end has said of itself.
func (e *End) hear(a Answer, k Kind) {
	if a.Failed != "" {
		e.Failures++
		return
	}
	e.Known, e.Failures, e.Fresh = true, 0, k != Freeze || a.Refused == ""
	if a.Revision > 0 {
		e.Revision = a.Revision
	}
	if a.Refused == "" {
		e.Clearing = a.Clearing
	}
}

// expect makes of an answer what it is worth: a step that was answered as one that was not made is refused; a look
// that was refused, and a step of a plan that must be finished or undone, have to be tried again.
func expect(k Kind, a Answer) Answer {
	stands := fsm.PlanNone
	final, export := false, false
	switch k {
	case Freeze:
		stands, export = fsm.PlanFrozen, true
	case Open:
		stands = fsm.PlanOpen
	case Seal:
		stands, export = fsm.PlanSealed, true
	case Activate, Release, AbortSource, AbortDestination:
		stands, final = fsm.PlanEnded, true
		if a.End == fsm.PlanEnded {
			return Answer{End: a.End, Revision: a.Revision} // refused or not, it is done
		}
	case LookSource, LookDestination, Abort, Close:
		final = true
	case Pull, Decide, Wait:
	}
	if a.Failed == "" && a.Refused == "" {
		switch {
		case a.End < stands:
			a.Refused = fmt.Sprintf("it was answered, and not made (%d)", a.End)
		case export && a.End != fsm.PlanEnded && a.Manifest.Digest == [16]byte{}:
			a.Refused = "it was answered without a digest"
		}
	}
	if final && a.Refused != "" {
		a.Failed, a.Refused = a.Refused, ""
	}
	return a
}

// refuse takes the refusal of the last step. Only of a freeze it can be that it is not for good: a policy revision may
// have come between.
func (d *Driver) refuse(why string) {
	in := &d.in
	if d.step.Kind != Freeze || in.Source.Stands != fsm.PlanNone {
		in.Refused = in.Trouble
		return
	}
	d.refused, d.revision, d.frozen = why, d.step.Revision, false
}

// made takes the answer to a step that was made.
func (d *Driver) made(a Answer) {
	in := &d.in
	switch d.step.Kind {
	case LookSource:
		if d.refused != "" && in.Source.Stands == fsm.PlanNone && in.Source.Revision == d.revision {
			in.Refused = Freeze.String() + " was refused: " + d.refused
		}
		d.refused = ""
		return
	case LookDestination:
		return
	case Pull:
		d.pulled(a)
	case Freeze:
		in.Exported = a.Manifest
	case Seal:
		in.Imported = a.Manifest
	case Open, Decide, Activate, Release, Abort, AbortSource, AbortDestination, Close, Wait:
	}
	in.StuckNanos = 0
}

// pulled takes a complete pull.
func (d *Driver) pulled(a Answer) {
	in := &d.in
	if in.Plan.Copies() {
		in.Exported, in.Level = a.Manifest, a.Slots == 0
		if a.Manifest.Digest == [16]byte{} {
			in.Refused = "a pull was answered without a manifest"
		}
	} else {
		in.Level = in.Source.Stands == fsm.PlanFrozen
	}
	if len(in.PulledBytes) < MaxPulls {
		in.PulledBytes = append(in.PulledBytes, a.Bytes)
	}
	in.Source.Fresh = false
}

// Progress is how the plan stands, in a few words for people. It changes with what is done, not with every try.
func (d *Driver) Progress() string {
	words := d.step.String()
	if d.step.Kind == Pull {
		if n := len(d.in.PulledBytes); d.in.FrozenNanos > 0 {
			words = "pull: what has changed since the copy"
		} else if n > 0 {
			words = fmt.Sprintf("pull %d: the one before fetched %d bytes", n+1, d.in.PulledBytes[n-1])
		}
	}
	switch {
	case d.in.Trouble == "" || d.step.Kind == Abort:
		return words
	case strings.HasPrefix(d.in.Trouble, words+":"):
		return d.in.Trouble // which begins with the step that has it
	}
	return words + "; " + d.in.Trouble
}
