package capacity

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// heapBytes is what is held.
func heapBytes() float64 {
	runtime.GC()
	runtime.GC() // what finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// memoryPer is what a state machine holds per key after each of some rounds, in which each key gets an admission
// more.
func memoryPer(b *testing.B, keys, rounds int, apart fsm.Time) (perKey []float64) {
	b.Helper()
	const batch = 250
	p, err := policy.Parse("policy", []byte("version: p\ndefault: {limits: [{name: d, limit: 100, window: 1h}]}\n"))
	if err != nil {
		b.Fatal(err)
	}
	before := heapBytes()
	m := fsm.New()
	m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, p),
		Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}},
	}})
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Checks: make([]fsm.Check, batch)}
	for round := range rounds {
		for k := 0; k < keys; k += batch {
			e.Stamp += apart
			for i := range e.Checks {
				e.Checks[i] = fsm.Check{
					Principal: fmt.Sprintf("principal-%07d", k+i), Gateway: "g1", RouteEpoch: 1,
					DecisionID: fmt.Sprintf("AAAAAAAAAAAAAAAAAAAAAA-%d-%d", round, k+i), Charge: fsm.Charge{Class: "a", Cost: 1},
				}
			}
			m.Step(1, e)
		}
		perKey = append(perKey, (heapBytes()-before)/float64(keys))
	}
	runtime.KeepAlive(m)
	return perKey
}

// BenchmarkMemory tells the bytes of a key, a pair and a record, by their differences: rounds at one instant make
// records alone, rounds apart make pairs too. Maps grow by leaps, so it is about right, not exact; run it with
// -benchtime 1x.
func BenchmarkMemory(b *testing.B) {
	const keys, rounds = 300_000, 8
	for b.Loop() {
		same, apart := memoryPer(b, keys, rounds, 0), memoryPer(b, keys, rounds, 1000)
		record := (same[rounds-1] - same[0]) / (rounds - 1)
		pair := (apart[rounds-1] - same[rounds-1]) / (rounds - 1)
		b.ReportMetric(record, "B/record")
		b.ReportMetric(pair, "B/pair")
		b.ReportMetric(same[0]-record-pair, "B/key")
		b.ReportMetric(0, "ns/op")
	}
}
