package agreement

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/partition/group"
)

// replicas are what the replicas of a group say, n1 being the one under test.
type replicas struct {
	mu        sync.Mutex // guards the fields below
	opinions  map[string]Opinion
	silent    map[string]bool
	condemned string
	asked     int
}

func (r *replicas) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *replicas) members() []group.Member {
	return []group.Member{{ID: "n1"}, {ID: "n2"}, {ID: "n3"}, {ID: "n4", Learner: true}}
}

func (r *replicas) at(node string, index uint64) Opinion {
	r.mu.Lock()
	defer r.mu.Unlock()
	o := r.opinions[node]
	o.Known = o.Known && o.Index >= index
	return o
}

// watched runs f in a bubble, with an agreement of n1.
func watched(t *testing.T, f func(t *testing.T, a *Agreement, r *replicas)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &replicas{opinions: map[string]Opinion{}, silent: map[string]bool{}}
		for _, m := range r.members() {
			r.opinions[m.ID] = Opinion{Digest: [16]byte{1}, Known: true, Index: 9}
		}
		a := New(Config{
			Group: "p0", NodeID: "n1", Members: r.members, Logger: slog.New(slog.DiscardHandler),
			DigestAt: func(index uint64) ([16]byte, bool) { o := r.at("n1", index); return o.Digest, o.Known },
			Applied:  func() uint64 { return r.at("n1", 0).Index },
			Consult: func(_ context.Context, m group.Member, index uint64, own [16]byte) (Opinion, error) {
				r.mu.Lock()
				silent := r.silent[m.ID]
				r.mu.Unlock()
				if m.ID == "n1" || own != r.at("n1", index).Digest {
					t.Errorf("%s is asked and told %x", m.ID, own)
				}
				if silent {
					return Opinion{}, errors.New("silent")
				}
				return r.at(m.ID, index), nil
			},
			Condemn: func(reason string) error { r.set(func() { r.condemned = reason }); return nil },
			Asking:  func() { r.set(func() { r.asked++ }) },
		})
		defer a.Close()
		f(t, a, r)
	})
}

// With a doubt the replica gives no answers; the majority has its state, and it goes on.
func TestConfirmed(t *testing.T) {
	watched(t, func(t *testing.T, a *Agreement, r *replicas) {
		r.set(func() { r.opinions["n3"], r.silent["n2"] = Opinion{Digest: [16]byte{3}, Known: true, Index: 9}, true })
		if o := a.Suspect(5, [16]byte{1}); !o.Known || o.Digest != [16]byte{1} || o.Index != 9 || a.Halted() != nil {
			t.Errorf("%+v, halted: %v", o, a.Halted())
		}
		a.Suspect(10, [16]byte{3}) // which it has not applied yet
		if a.Halted() != nil {
			t.Errorf("halted: %v", a.Halted())
		}
		a.Suspect(5, [16]byte{3})
		time.Sleep(time.Minute)
		if a.Halted() == nil || a.Stopped() != "" || r.asked != 1 {
			t.Errorf("halted: %v, stopped: %s, %d inquiries", a.Halted(), a.Stopped(), r.asked)
		}
		r.set(func() { r.silent["n2"] = false })
		time.Sleep(time.Second)
		if a.Halted() != nil || a.Stopped() != "" {
			t.Errorf("halted: %v, stopped: %s", a.Halted(), a.Stopped())
		}
	})
}

// The replica outside the majority stops for good and is condemned, and a learner's opinion makes no
// majority.
func TestOutvoted(t *testing.T) {
	watched(t, func(t *testing.T, a *Agreement, r *replicas) {
		r.set(func() {
			r.opinions["n2"] = Opinion{Digest: [16]byte{2}, Known: true, Index: 9}
			r.opinions["n3"] = r.opinions["n2"]
		})
		a.Doubt(5)
		synctest.Wait()
		if why := a.Stopped(); !strings.Contains(why, "log index 5") || why != r.condemned || a.Halted() == nil {
			t.Errorf("stopped: %q, condemned: %q, halted: %v", why, r.condemned, a.Halted())
		}
	})
}

// When a digest is not known any more all are asked for a later one.
func TestForgotten(t *testing.T) {
	watched(t, func(t *testing.T, a *Agreement, r *replicas) {
		r.set(func() { r.opinions["n1"] = Opinion{Index: 9} })
		a.Doubt(5)
		time.Sleep(time.Second)
		if a.Halted() == nil {
			t.Error("it goes on")
		}
		r.set(func() { r.opinions["n1"] = Opinion{Digest: [16]byte{1}, Known: true, Index: 9} })
		time.Sleep(time.Second)
		if a.Halted() != nil {
			t.Error(a.Halted())
		}
	})
}

// Close ends an inquiry that has no verdict.
func TestClose(t *testing.T) {
	watched(t, func(t *testing.T, a *Agreement, r *replicas) {
		r.set(func() { r.silent["n2"], r.silent["n3"] = true, true })
		a.Doubt(5)
		a.Close()
		if a.Stopped() != "" || a.Halted() == nil {
			t.Errorf("stopped: %q, halted: %v", a.Stopped(), a.Halted())
		}
	})
}

// The majority has it: with two of three the third is outvoted, with all different nobody is right, and
// silence decides only what it cannot change.
func TestJudge(t *testing.T) {
	a, b, z := [16]byte{1}, [16]byte{2}, [16]byte{3}
	for _, tc := range []struct {
		own            [16]byte
		votes          map[[16]byte]int
		voters, silent int
		want           verdict
	}{
		{a, map[[16]byte]int{a: 2, b: 1}, 3, 0, confirmed},
		{b, map[[16]byte]int{a: 2, b: 1}, 3, 0, outvoted},
		{a, map[[16]byte]int{a: 1, b: 1}, 3, 1, undecided},
		{a, map[[16]byte]int{a: 1, b: 1, z: 1}, 3, 0, scattered},
		{a, map[[16]byte]int{a: 1, b: 1}, 2, 0, scattered},
		{a, map[[16]byte]int{a: 2}, 5, 3, undecided},
		{a, map[[16]byte]int{a: 3}, 5, 2, confirmed},
		{a, map[[16]byte]int{a: 2, b: 2}, 5, 1, undecided},
		{a, map[[16]byte]int{a: 2, b: 2, z: 1}, 5, 0, scattered},
		{z, map[[16]byte]int{a: 2}, 3, 1, outvoted}, // asked by a learner
	} {
		if got := judge(tc.own, tc.votes, tc.voters, tc.silent); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

// A doubt that comes up while another is being resolved stays until it has been resolved itself.
func TestSecondDoubt(t *testing.T) {
	a := &Agreement{wake: make(chan struct{}, 1)}
	a.Doubt(5)
	index := a.doubt()
	a.Doubt(9)
	a.trust(index)
	if a.Halted() == nil || a.doubt() != 9 {
		t.Errorf("doubted %d, halted %v", a.doubt(), a.Halted())
	}
	a.trust(9)
	if a.Halted() != nil {
		t.Error("it stays halted")
	}
}
