package node

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/control/handoff"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that what plans send between nodes comes as it was, and that what is no range, no manifest, no piece and no
// standing is refused.
func TestPlanMessages(t *testing.T) {
	ranges := []fsm.SlotRange{{First: 0, Last: 0}, {First: 1, Last: 5}, {First: 16000, Last: fsm.NumSlots - 1}}
	if got, err := slotRanges(rangesOnWire(ranges)); err != nil || cmp.Diff(ranges, got) != "" {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range [][]*quoratev1.SlotRange{
		{{FirstSlot: 2, LastSlot: 1}}, {{LastSlot: fsm.NumSlots}}, {{LastSlot: 5}, {FirstSlot: 5, LastSlot: 6}},
		{{FirstSlot: 9, LastSlot: 9}, {FirstSlot: 1, LastSlot: 2}}, {{FirstSlot: 1 << 20, LastSlot: 1 << 21}},
		{{LastSlot: math.MaxUint32}, {}},
	} {
		if got, err := slotRanges(bad); quotaerr.ReasonOf(err) != quotaerr.InvalidArgument {
			t.Errorf("%v: %v %v", bad, got, err)
		}
	}
	manifest := fsm.Manifest{FrozenAt: 7, Revision: 3, Digest: [16]byte{1, 15: 2}}
	if got, err := manifestOf(manifestOnWire(manifest)); err != nil || got != manifest {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []*quoratev1.PlanManifest{
		nil, {}, {Digest: make([]byte, 15)}, {Digest: make([]byte, 16), FrozenAt: math.MaxInt64},
	} {
		if got, err := manifestOf(bad); quotaerr.ReasonOf(err) != quotaerr.InvalidArgument {
			t.Errorf("%v: %v %v", bad, got, err)
		}
	}
	pieces := []fsm.Piece{
		{Slot: 3, Digest: [16]byte{9}, Size: 10, Offset: 4, Data: []byte("rest..")}, {Slot: fsm.HistorySlot, Data: []byte{}},
	}
	if got, err := piecesOf(messageOf(pieces)); err != nil || cmp.Diff(pieces, got) != "" {
		t.Errorf("%v %v", got, err)
	}
	digest := make([]byte, 16)
	for _, bad := range [][]*quoratev1.SlotPiece{
		{{Slot: uint32(fsm.HistorySlot) + 1, Digest: digest}}, {{Digest: digest[:3]}},
		{{Digest: digest, Data: make([]byte, fsm.MaxStageBytes)}, {Digest: digest, Data: []byte("x")}},
	} {
		if got, err := piecesOf(&quoratev1.ExportSlotsResponse{Pieces: bad}); err == nil {
			t.Errorf("%d pieces are taken", len(got))
		}
	}
	for end, wire := range endsOnWire {
		if got, known := endOf(wire); !known || got != end {
			t.Errorf("%v comes back as %v", end, got)
		}
	}
	if _, known := endOf(quoratev1.PlanEnd_PLAN_END_UNSPECIFIED); known {
		t.Error("what is not specified is a standing")
	}
}

// Shows that an end's answer is taken as it was sent, and that one without a standing says nothing.
func TestPlanAnswers(t *testing.T) {
	manifest := fsm.Manifest{FrozenAt: 7, Revision: 3, Digest: [16]byte{1}}
	got := answerOf(&quoratev1.PlanStepResponse{
		End: quoratev1.PlanEnd_PLAN_END_FROZEN, Revision: 3, Manifest: manifestOnWire(manifest), Slots: 4, Size: 5, Clearing: true,
	})
	want := handoff.Answer{End: fsm.PlanFrozen, Revision: 3, Manifest: manifest, Slots: 4, Bytes: 5, Clearing: true}
	if got != want {
		t.Errorf("%+v", got)
	}
	if got := answerOf(&quoratev1.PlanStepResponse{}); got.Failed == "" {
		t.Errorf("%+v", got)
	}
}

// Shows which errors say that a step was refused, as the driver takes them: for good, or of a freeze until the source
// has another revision, which leaves nothing frozen. All others say that nothing is known.
func TestPlanStepFailed(t *testing.T) {
	for _, tt := range []struct {
		step    handoff.Kind
		reason  quotaerr.Reason
		refused bool
	}{
		{handoff.Freeze, quotaerr.PolicyStale, true},
		{handoff.Freeze, quotaerr.PolicyBehind, true},
		{handoff.Freeze, quotaerr.InvalidArgument, true},
		{handoff.Freeze, quotaerr.OutcomeUnknown, false},
		{handoff.Freeze, quotaerr.NotLeader, false},
		{handoff.Open, quotaerr.PolicyStale, false},
		{handoff.Open, quotaerr.PolicyBehind, false},
		{handoff.Pull, quotaerr.InvalidArgument, true},
		{handoff.Pull, quotaerr.Capacity, true},
		{handoff.Pull, quotaerr.NoQuorum, false},
		{handoff.Seal, quotaerr.OutcomeUnknown, false},
	} {
		a := failedAnswer(tt.step, quotaerr.New(tt.reason, "why"))
		if (a.Refused != "") != tt.refused || (a.Failed != "") == tt.refused {
			t.Errorf("%s, %s: %+v", tt.step, tt.reason, a)
		}
	}
}

// Shows that only slots which are owned as they are wanted count as owned: the whole range, under its epoch. What is
// wanted under no epoch need not be.
func TestPlanWantsOwned(t *testing.T) {
	owned := []fsm.OwnedRange{
		{SlotRange: fsm.SlotRange{First: 10, Last: 19}, Epoch: 1}, {SlotRange: fsm.SlotRange{First: 20, Last: 29}, Epoch: 1},
		{SlotRange: fsm.SlotRange{First: 30, Last: 39}, Epoch: 2, FrozenBy: 5}, {SlotRange: fsm.SlotRange{First: 50, Last: 59}, Epoch: 2},
	}
	for _, tt := range []struct {
		first, last fsm.Slot
		epoch       fsm.Epoch
		lacks       fsm.Slot // the first that is not owned, unless all are
		all         bool
	}{
		{10, 29, 1, 0, true},
		{15, 22, 1, 0, true},
		{30, 39, 2, 0, true},
		{10, 39, 1, 30, false},
		{20, 29, 2, 20, false},
		{30, 59, 2, 40, false},
		{9, 12, 1, 9, false},
		{55, 60, 2, 60, false},
		{0, fsm.NumSlots - 1, 0, 0, true},
	} {
		wanted := ownedOnWire([]state.Range{
			{SlotRange: fsm.SlotRange{First: 25, Last: 29}, Epoch: 1},
			{SlotRange: fsm.SlotRange{First: tt.first, Last: tt.last}, Epoch: tt.epoch},
		})
		slots, lacks := notOwned(owned, wanted)
		if lacks == tt.all || lacks && slots != (fsm.SlotRange{First: tt.lacks, Last: tt.last}) {
			t.Errorf("%d to %d under %d: %v, lacks %t", tt.first, tt.last, tt.epoch, slots, lacks)
		}
	}
	if slots, lacks := notOwned(nil, ownedOnWire([]state.Range{{SlotRange: fsm.SlotRange{First: 1, Last: 2}, Epoch: 1}})); !lacks {
		t.Errorf("who owns nothing owns %v", slots)
	}
}

// Shows that whoever comes ends who is at it and waits until that has ended, also where somebody in between has given
// up waiting.
func TestTurns(t *testing.T) {
	var turn turns
	first, doneFirst, err := turn.take(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	impatient, giveUp := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() {
		_, _, err := turn.take(impatient)
		gaveUp <- err
	}()
	<-first.Done()
	giveUp()
	if err := <-gaveUp; quotaerr.ReasonOf(err) != quotaerr.Overloaded {
		t.Errorf("who gives up waiting gets %v", err)
	}
	taken := make(chan func())
	go func() {
		ctx, done, err := turn.take(t.Context())
		if err != nil || ctx.Err() != nil {
			t.Errorf("%v %v", ctx, err)
		}
		taken <- done
	}()
	select {
	case <-taken:
		t.Error("two are at it")
	default:
	}
	doneFirst()
	done := <-taken
	done()
	if ctx, done, err := turn.take(t.Context()); err != nil || ctx.Err() != nil {
		t.Errorf("after all have ended: %v", err)
	} else {
		done()
	}
}

// Shows that a rate is counted over whole spans, and begins anew when what is counted does.
func TestRate(t *testing.T) {
	var r rate
	at := time.Now()
	for _, step := range []struct {
		after       time.Duration
		count, want int64
	}{
		{0, 1000, 0}, {rateSpan / 2, 6000, 0}, {rateSpan, 11000, 1000}, {rateSpan + 1, 50000, 1000},
		{3 * rateSpan, 31000, 1000}, {3*rateSpan + 1, 5, 0}, {4*rateSpan + 1, 105, 10},
	} {
		if got := r.of(step.count, at.Add(step.after)); got != step.want {
			t.Errorf("after %s: %d a second, want %d", step.after, got, step.want)
		}
	}
}

// Shows that a partition is left alone for a while after a plan that it was an end of, for longer where that was
// undone, and that one with a single slot, or in a plan, is not split.
func TestSplittable(t *testing.T) {
	now := time.Now()
	owns := func(last fsm.Slot) []state.Range {
		return []state.Range{{SlotRange: fsm.SlotRange{First: 0, Last: last}, Epoch: 1}}
	}
	ended := func(phase state.PlanPhase, ago time.Duration) *state.Plan {
		return &state.Plan{Source: 1, Destination: 2, Phase: phase, EndedWallNanos: now.Add(-ago).UnixNano()}
	}
	for name, tt := range map[string]struct {
		p    state.Partition
		plan *state.Plan
		want bool
	}{
		"nothing was":     {state.Partition{ID: 1, Ranges: owns(9)}, nil, true},
		"one slot":        {state.Partition{ID: 1, Ranges: owns(0)}, nil, false},
		"in a plan":       {state.Partition{ID: 1, Ranges: owns(9), Plan: 4}, nil, false},
		"just split":      {state.Partition{ID: 1, Ranges: owns(9)}, ended(state.PlanDecided, splitPause-1), false},
		"just made":       {state.Partition{ID: 2, Ranges: owns(9)}, ended(state.PlanDecided, splitPause-1), false},
		"another":         {state.Partition{ID: 3, Ranges: owns(9)}, ended(state.PlanDecided, 0), true},
		"split a while":   {state.Partition{ID: 1, Ranges: owns(9)}, ended(state.PlanDecided, splitPause), true},
		"undone a while":  {state.Partition{ID: 1, Ranges: owns(9)}, ended(state.PlanAborted, splitPause), false},
		"undone for long": {state.Partition{ID: 1, Ranges: owns(9)}, ended(state.PlanAborted, splitBackoff), true},
		"in the future":   {state.Partition{ID: 1, Ranges: owns(9)}, ended(state.PlanAborted, -time.Hour), true},
	} {
		s := &state.State{}
		if tt.plan != nil {
			s.Ended = []*state.Plan{tt.plan}
		}
		if got := splittable(s, &tt.p, now); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// Shows that what a retirement which was cut short has left is removed, and nothing else: not what is claimed, not what
// may still come, and not what is none of a partition's.
func TestSweepEnded(t *testing.T) {
	n, dir := mustClaimed(t)
	for _, path := range []string{
		"groups/p1/wal/1", "groups/p2/wal/1", "groups/p3/floor", "groups/p9/floor", "groups/control/log.db", "groups/px/y",
		"peers/p1.json", "peers/p2.json", "peers/p9.json", "peers/p1.json.tmp",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		mustWriteFile(t, path, []byte("x"))
	}
	if err := n.claim.Record("p2"); err != nil {
		t.Fatal(err)
	}
	s := &state.State{Born: true, NextPartition: 9, Partitions: []*state.Partition{{ID: 3}}}
	var last sweep
	n.sweepEnded(s, &last)
	for path, want := range map[string]bool{
		"groups/p1": false, "groups/p2/wal/1": true, "groups/p3/floor": true, "groups/p9/floor": true,
		"groups/control/log.db": true, "groups/px/y": true, "peers/p1.json": false, "peers/p2.json": true, "peers/p9.json": true,
	} {
		if got := exists(filepath.Join(dir, path)); got != want {
			t.Errorf("%s is there: %t", path, got)
		}
	}
	mustWriteFile(t, filepath.Join(dir, "peers/p1.json"), []byte("x"))
	n.sweepEnded(s, &last)
	if !exists(filepath.Join(dir, "peers/p1.json")) {
		t.Error("it looks again although no partition has ended")
	}
}
