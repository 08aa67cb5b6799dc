package fsm_test

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"
	"weak"

	"github.com/quorate/quorate/fsm"
)

// checksEntry is the encoding of an entry of n checks, of which some are denied.
func checksEntry(n int) []byte {
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: 1e9}
	for i := range n {
		e.Checks = append(e.Checks, fsm.Check{
			Principal: fmt.Sprint("principal-", i%(n/2)), Gateway: fmt.Sprint("gateway-", i%3),
			DecisionID: fmt.Sprint("decision-", i), Charge: fsm.Charge{Class: "a", Tier: "t", Cost: int64(1 + i%5*1000)},
			RouteEpoch: 1,
		})
	}
	return fsm.AppendEntry(nil, e)
}

// Shows that the state keeps none of a decoded entry's strings: they are parts of one, which would stay with it.
func TestEntryIsNotKept(t *testing.T) {
	m := fsm.New()
	m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, mustParse(t)),
		Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}},
	}})
	snapshot := m.BeginSnapshot() // which keeps what changes meanwhile
	defer snapshot.Release()
	text := func() weak.Pointer[byte] {
		e, err := fsm.DecodeEntry(checksEntry(100))
		if err != nil {
			t.Fatal(err)
		}
		reasons := map[fsm.Reason]int{}
		for _, d := range m.Step(1, e).Decisions {
			reasons[d.Reason]++
		}
		if reasons[fsm.ReasonAllowed] == 0 || len(reasons) < 2 {
			t.Errorf("the checks came to %v", reasons)
		}
		return weak.Make(unsafe.StringData(e.Checks[0].Principal))
	}()
	runtime.GC()
	runtime.GC()
	if text.Value() != nil {
		t.Error("the strings of an entry are still there after its step")
	}
	runtime.KeepAlive(m)
}

// Shows that reading an entry allocates as often for a thousand checks as for a few.
func TestDecodeEntryAllocations(t *testing.T) {
	for _, n := range []int{2, 1000} {
		encoded := checksEntry(n)
		allocated := testing.AllocsPerRun(10, func() {
			if _, err := fsm.DecodeEntry(encoded); err != nil {
				t.Error(err)
			}
		})
		if allocated > 4 {
			t.Errorf("%d checks: %v allocations", n, allocated)
		}
	}
}

// BenchmarkDecodeEntry reads entries of 512 checks; ns/op is per entry.
func BenchmarkDecodeEntry(b *testing.B) {
	encoded := checksEntry(512)
	b.ReportAllocs()
	b.SetBytes(int64(len(encoded)))
	for b.Loop() {
		if _, err := fsm.DecodeEntry(encoded); err != nil {
			b.Fatal(err)
		}
	}
}
