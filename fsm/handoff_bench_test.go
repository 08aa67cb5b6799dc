package fsm_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// movedKeys is the size of the range whose hand-off is measured: as many keys with an allow recorded for each.
const movedKeys = 100_000

func mustBear(b testing.TB, owned []fsm.OwnedRange) *fsm.Machine {
	b.Helper()
	m := fsm.New()
	m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, mustParse(b)), Owned: owned,
	}})
	return m
}

// mustFill makes a partition with so many keys and as many recorded allows.
func mustFill(b testing.TB, keys int) *fsm.Machine {
	b.Helper()
	m := mustBear(b, []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}})
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Checks: make([]fsm.Check, 500)}
	for i := 0; i < keys; {
		e.Stamp += 1e6
		for j := range e.Checks {
			e.Checks[j] = fsm.Check{
				Principal: fmt.Sprint("principal-", i), Gateway: "g1", DecisionID: fmt.Sprint(i), RouteEpoch: 1,
				Charge: fsm.Charge{Class: "a", Cost: 1},
			}
			i++
		}
		m.Step(1, e)
	}
	if s := m.Status(); s.Keys != int64(keys) || s.Allows != int64(keys) {
		b.Fatalf("%+v", s)
	}
	return m
}

func mustReadBack(b testing.TB, snapshot []byte) *fsm.Machine {
	b.Helper()
	m, err := fsm.Restore(bytes.NewReader(snapshot))
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// BenchmarkHandoff measures the steps of a plan that moves 100,000 keys whole.
func BenchmarkHandoff(b *testing.B) {
	h := &handoff{t: b, plan: 1, src: mustFill(b, movedKeys), dst: mustBear(b, nil), ranges: allSlots}
	h.freeze()
	frozen := snapshotOf(h.src)
	b.Run("digests", func(b *testing.B) {
		for b.Loop() {
			h.src.SlotDigests(h.ranges)
		}
	})
	b.Run("export", func(b *testing.B) {
		slots := fsm.DifferingSlots(h.src.SlotDigests(h.ranges), nil)
		numBytes := 0
		for b.Loop() {
			numBytes = 0
			for _, img := range h.src.Images(slots) {
				numBytes += len(img.Data)
			}
		}
		b.ReportMetric(float64(numBytes)/movedKeys, "bytes/key")
	})
	b.Run("stage", func(b *testing.B) {
		for b.Loop() {
			h.dst = mustBear(b, nil)
			h.pull()
		}
	})
	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			h.open()
		}
	})
	b.Run("seal", func(b *testing.B) {
		begin := snapshotOf(h.dst)
		for b.Loop() {
			b.StopTimer()
			h.dst = mustReadBack(b, begin)
			b.StartTimer()
			h.seal()
		}
	})
	b.Run("activate", func(b *testing.B) {
		sealed := snapshotOf(h.dst)
		for b.Loop() {
			b.StopTimer()
			h.dst = mustReadBack(b, sealed)
			b.StartTimer()
			h.activate(2)
		}
	})
	b.Run("release", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			h.src = mustReadBack(b, frozen)
			b.StartTimer()
			h.release()
		}
	})
}
