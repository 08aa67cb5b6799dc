package fsm_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

func mustParse(t testing.TB) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("sample", []byte(`
version: s1
default: {limits: [{name: all, limit: 3, window: 2s}], replay_horizon: 1s}
classes:
  a: {limits: [{name: m, limit: 5, window: 1s}, {name: l, limit: 20, window: 30s}], replay_horizon: 2s}
  b: {limits: [{name: m, limit: 50, window: 10s}], retention: 60s}
groups:
  g: {classes: [a, b], limits: [{name: both, limit: 30, window: 20s}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// traffic makes a random batch, or now and then a forgive, at a time that moves on.
func traffic(rng *rand.Rand, now *fsm.Time) *fsm.Entry {
	*now += fsm.Time(rng.Int64N(20e6))
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: *now}
	if rng.IntN(10) == 0 {
		e.Kind = fsm.KindForgive
		e.Forgive = &fsm.Forgive{Principal: fmt.Sprint("u", rng.IntN(300)), RouteEpoch: 1}
		if rng.IntN(2) == 0 {
			e.Forgive.Class = "a"
		}
		return e
	}
	for range rng.IntN(20) {
		e.Checks = append(e.Checks, fsm.Check{
			Principal: fmt.Sprint("u", rng.IntN(300)), Gateway: fmt.Sprint("g", rng.IntN(3)),
			DecisionID: fmt.Sprint("d", rng.IntN(5000)), RouteEpoch: 1,
			Charge: fsm.Charge{Class: []string{"a", "b", "other"}[rng.IntN(3)], Cost: 1 + rng.Int64N(3)},
		})
	}
	return e
}

func mustBirth(t testing.TB) *fsm.Machine {
	t.Helper()
	m := fsm.New()
	m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Stamp: 0, Birth: &fsm.Birth{
		Cluster: "c", Partition: "p0", Bounds: fsm.Bounds{MaxKeys: 500, MaxReplayRecords: 600},
		Owned:   []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}},
		Install: fsm.NewInstall(1, mustParse(t)),
	}})
	return m
}

// Shows that a snapshot is the state at its beginning, whatever entries are applied between its pieces,
// and that a machine restored from it goes on exactly as one that was never stopped: the same answers
// and the same digest after each later entry. It restores again in mid-way, so that what a restored
// machine derives anew is compared as well.
func TestSnapshotBesideEntries(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m, now := mustBirth(t), fsm.Time(0)
		for range 300 {
			m.Step(1, traffic(rng, &now))
		}
		want := m.Digest()
		s := m.BeginSnapshot()
		var b []byte
		var later []*fsm.Entry
		for more := true; more; {
			b, more = s.Next(b)
			if rng.IntN(4) == 0 {
				e := traffic(rng, &now)
				later = append(later, e)
				m.Step(1, e)
			}
		}
		s.Release()
		restored, err := fsm.Restore(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		if got := restored.Digest(); got != want {
			t.Fatalf("seed %d: restored digest %x, want %x", seed, got, want)
		}
		other := mustBirth(t)
		*other = *restored
		for _, e := range later {
			other.Step(1, e)
		}
		if other.Digest() != m.Digest() {
			t.Fatalf("seed %d: the restored machine went another way", seed)
		}
		continueTogether(t, m, other, rng, now)
	}
}

func continueTogether(t *testing.T, a, b *fsm.Machine, rng *rand.Rand, now fsm.Time) {
	t.Helper()
	for i := range 2000 {
		if i%400 == 399 {
			b = mustRestore(t, b)
			now += fsm.Time(rng.Int64N(40e9)) // much ends at once
		}
		e := traffic(rng, &now)
		x, y := a.Step(1, e), b.Step(1, e)
		for j := range x.Decisions {
			if x.Decisions[j].Reason != y.Decisions[j].Reason || x.Decisions[j].Remaining != y.Decisions[j].Remaining {
				t.Fatalf("entry %d: %+v and %+v", i, x.Decisions[j], y.Decisions[j])
			}
		}
		if a.Digest() != b.Digest() {
			t.Fatalf("entry %d: digests differ", i)
		}
	}
}

// Shows that a machine and one that was restored from it forget as much with an entry, when more has ended than one
// entry forgets, also where rules are carried.
func TestRestoredMachineForgetsAsMuch(t *testing.T) {
	m := mustFill(t, 6000)
	install := fsm.NewInstall(2, mustPolicy(t, "{version: s2, default: {limits: [{name: all, limit: 3, window: 9h}]}}"))
	m.Step(1, &fsm.Entry{Kind: fsm.KindInstall, Term: 1, Stamp: m.Now() + 60e9, Install: &install})
	restored := mustRestore(t, m)
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: m.Now() + 100*3600e9, Checks: make([]fsm.Check, 1)}
	for !m.Idle() {
		m.Step(1, e)
		restored.Step(1, e)
		if m.Digest() != restored.Digest() {
			t.Fatalf("%d and %d keys are left", m.Status().Keys, restored.Status().Keys)
		}
	}
}

// Shows that a snapshot with any single byte changed is refused: 2,000 positions, spread evenly.
func TestDamagedSnapshotIsRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	m, now := mustBirth(t), fsm.Time(0)
	for range 100 {
		m.Step(1, traffic(rng, &now))
	}
	b := snapshotOf(m)
	for i := range 2000 {
		at := i * len(b) / 2000
		damaged := bytes.Clone(b)
		damaged[at] ^= 1 << rng.IntN(8)
		if _, err := fsm.Restore(bytes.NewReader(damaged)); err == nil {
			t.Fatalf("a flipped bit in byte %d of %d goes unnoticed", at, len(b))
		}
	}
	for _, n := range []int{0, 7, 8, 100, len(b) / 2, len(b) - 1} {
		if _, err := fsm.Restore(bytes.NewReader(b[:n])); err == nil {
			t.Fatalf("a snapshot cut to %d of %d bytes is read", n, len(b))
		}
	}
}
