package fsm_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/fsm"
)

// plan makes a step of a plan at the machine, with the one there as the other end, and tells how it stands then.
func (s *script) plan(t *testing.T, d *datadriven.TestData, out *strings.Builder) {
	t.Helper()
	var plan uint64
	d.ScanArgs(t, "plan", &plan)
	h := &handoff{t: t, plan: fsm.PlanID(plan), src: s.there, dst: s.m, bodies: s.bodies, manifest: s.manifest}
	first, last := uint64(0), uint64(fsm.NumSlots-1)
	d.MaybeScanArgs(t, "slots", &first, &last)
	h.ranges = []fsm.SlotRange{{First: fsm.Slot(first), Last: fsm.Slot(last)}}
	e := &fsm.Entry{Plan: h.plan, Ranges: h.ranges}
	switch d.Cmd {
	case "end":
		fmt.Fprintln(out, s.m.PlanEnd(h.plan))
		return
	case "freeze":
		e.Kind, e.Revision = fsm.KindFreeze, s.m.Revision()
		d.MaybeScanArgs(t, "revision", (*uint64)(&e.Revision))
	case "pull":
		e.Kind, e.Pieces = fsm.KindStage, h.pieces()
	case "open":
		e.Kind, e.Manifest = fsm.KindOpen, s.manifest
	case "seal":
		if e.Kind = fsm.KindSeal; len(s.m.Staged(h.plan)) > 0 {
			e.Policies = h.sealing().Policies
		}
	case "activate":
		epoch := uint64(6)
		d.MaybeScanArgs(t, "epoch", &epoch)
		e.Kind, e.Epoch, e.Lost = fsm.KindActivate, fsm.NewEpoch(1, epoch), d.HasArg("lost")
	case "release":
		e.Kind = fsm.KindRelease
	default:
		e.Kind = fsm.KindAbort
	}
	s.tellPlan(s.step(t, e), e, out)
}

func (s *script) tellPlan(a *fsm.Answers, e *fsm.Entry, out *strings.Builder) {
	if a.Refused != fsm.ReasonUnspecified {
		fmt.Fprintf(out, "%v (%s)\n", a.Refused, a.Detail)
	}
	if e.Kind == fsm.KindFreeze && a.Manifest != nil {
		s.manifest = *a.Manifest
		fmt.Fprintf(out, "frozen at %s under revision %d\n", ms(s.manifest.FrozenAt), s.manifest.Revision)
	}
	if e.Kind == fsm.KindSeal && a.Manifest != nil {
		fmt.Fprintf(out, "all is here: %v\n", *a.Manifest == s.manifest)
	}
	fmt.Fprintln(out, s.m.PlanEnd(e.Plan))
	for _, r := range s.m.Status().Owned {
		fmt.Fprintf(out, "slots %d-%d epoch %d frozen by %d\n", r.First, r.Last, r.Epoch.Counter(), r.FrozenBy)
	}
}
