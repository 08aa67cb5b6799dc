package fsm_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
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

// BenchmarkSnapshot takes a snapshot of a million keys and as many replay records, with an entry of 256 checks between
// every two pieces: the longest that either holds the other up, and what it costs the entries.
func BenchmarkSnapshot(b *testing.B) {
	const keys = 1_000_000
	m := newLong(b, "limit: 5, window: 1d}], replay_horizon: 15m")
	admit(m, keys, keys)
	for range b.N {
		var piece []byte
		var longestPiece, longestEntry time.Duration
		ids := 0
		entry := func() {
			e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: m.Now() + 1e6}
			for range 256 {
				e.Checks = append(e.Checks, fsm.Check{
					Principal: fmt.Sprintf("principal-%06d", ids*7919%keys), Gateway: "g1", DecisionID: fmt.Sprint(b.N, "/", ids),
					Charge: fsm.Charge{Class: "long", Cost: 1}, RouteEpoch: 1,
				})
				ids++
			}
			began := time.Now()
			m.Step(1, e)
			longestEntry = max(longestEntry, time.Since(began))
		}
		for range 1024 {
			entry()
		}
		b.ReportMetric(float64(longestEntry.Microseconds())/1e3, "ms/longest-entry-before")
		longestEntry = 0
		began := time.Now()
		s := m.BeginSnapshot()
		for more := true; more; {
			longestPiece = max(longestPiece, time.Since(began))
			entry()
			began = time.Now()
			piece, more = s.Next(piece[:0])
		}
		s.Release()
		b.ReportMetric(float64(longestPiece.Microseconds())/1e3, "ms/longest-piece")
		b.ReportMetric(float64(longestEntry.Microseconds())/1e3, "ms/longest-entry")
	}
}

// newLong is a machine with one limit.
func newLong(b *testing.B, limit string) *fsm.Machine {
	b.Helper()
	p, err := policy.Parse("long", []byte("version: long\ndefault: {limits: [{name: l, "+limit+"}\n"))
	if err != nil {
		b.Fatal(err)
	}
	m := fsm.New()
	m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, p),
		Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}},
	}})
	return m
}

// admit has so many checks of so many principals admitted, one principal after another, 250 in a millisecond.
func admit(m *fsm.Machine, checks, principals int) {
	for i := 0; i < checks; {
		e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: m.Now() + 1e6}
		for range 250 {
			e.Checks = append(e.Checks, fsm.Check{
				Principal: fmt.Sprintf("principal-%06d", i%principals), Gateway: "g1", DecisionID: fmt.Sprint(i),
				Charge: fsm.Charge{Class: "long", Cost: 1}, RouteEpoch: 1,
			})
			i++
		}
		m.Step(1, e)
	}
}
