package bench

import (
	"context"
	"testing"
	"time"
)

// BenchmarkPick is the choice of a key and its name, which the generator does for each check.
func BenchmarkPick(b *testing.B) {
	for name, s := range map[string]float64{"uniform": 0, "zipf": 1.1} {
		b.Run(name, func(b *testing.B) {
			k := Keys{N: 100_000, Prefix: "p", ZipfS: s}
			all, p := k.names(), k.picker(0)
			b.ReportAllocs()
			for b.Loop() {
				_ = all.of(p.next())
			}
		})
	}
}

// atOnce answers at once.
type atOnce struct{}

func (atOnce) Do(context.Context, int, string) (Outcome, error) { return Allowed, nil }

// BenchmarkOne is all that the generator itself costs a check: choice, clock, histogram.
func BenchmarkOne(b *testing.B) {
	now := time.Now()
	r := &running{Load: &Load{Target: atOnce{}, Keys: Keys{N: 100_000, Prefix: "p"}}, began: now}
	r.names, r.rec = r.Keys.names(), newRecorder(now, now.Add(time.Hour), false)
	p := r.Keys.picker(0)
	b.ReportAllocs()
	for sent := now; b.Loop(); {
		sent = r.one(b.Context(), 0, &p, sent, sent)
	}
}
