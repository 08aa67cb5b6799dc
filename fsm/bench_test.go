package fsm_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// BenchmarkStep decides batches of 256 checks; ns/op is per check. The sizes of the state should make no
// difference beyond the processor's caches.
func BenchmarkStep(b *testing.B) {
	for _, principals := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("principals=%d", principals), func(b *testing.B) {
			m := fsm.New()
			m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
				Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, mustParse(b)),
				Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}},
			}})
			names := make([]string, principals)
			for i := range names {
				names[i] = fmt.Sprint("principal-", i)
			}
			const batch = 256
			e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Checks: make([]fsm.Check, batch)}
			ids := 0
			step := func() {
				e.Stamp += 1e6
				for i := range e.Checks {
					e.Checks[i] = fsm.Check{
						Principal: names[(ids*7919)%principals], Gateway: "g1", DecisionID: fmt.Sprint(ids),
						Charge: fsm.Charge{Class: "a", Cost: 1}, RouteEpoch: 1,
					}
					ids++
				}
				m.Step(1, e)
			}
			for range principals / batch {
				step()
			}
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += batch {
				step()
			}
		})
	}
}
