package partition

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

// inBackground does something in a goroutine, and returns when it waits or has its outcome.
func inBackground(f func() error) <-chan error {
	out := make(chan error, 1)
	go func() { out <- f() }()
	synctest.Wait()
	return out
}

// Shows what a step of a plan comes to besides being made: refused for good, refused until the revision is another,
// refused since the plan has ended, not made since another node leads, or of unknown fate; and that a policy is not
// installed while slots are frozen, which is no refusal for good.
func TestPlanStepErrors(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		s.elect(group.Leadership{}, "n2", true)
		_, err := p.PlanEnd(7)
		if e := mustReason(t, err, quotaerr.NotLeader); e.Leader != "n2" {
			t.Errorf("the leader is %q", e.Leader)
		}
		mustReason(t, p.Release(t.Context(), 7), quotaerr.NotLeader)
		lead(t, p, s)
		step := func(term uint64, f func() error) error {
			t.Helper()
			out := inBackground(f)
			s.commit(term)
			return <-out
		}
		freeze := func(revision fsm.Revision) func() error {
			return func() error {
				_, err := p.Freeze(t.Context(), 7, allSlots, revision)
				return err
			}
		}
		mustReason(t, step(5, freeze(2)), quotaerr.PolicyBehind)
		mustReason(t, step(5, func() error { return p.Release(t.Context(), 7) }), quotaerr.InvalidArgument)
		if end, err := p.PlanEnd(7); err != nil || end != fsm.PlanNone {
			t.Errorf("it stands at %d, %v", end, err)
		}
		must(t, step(5, freeze(1)))
		ref := s.policies.add(2, mustPolicy(t, "p2", 2))
		mustReason(t, step(5, func() error { return p.Install(t.Context(), ref) }), quotaerr.Frozen)
		conflict := step(5, func() error { return p.AbortPlan(t.Context(), 9) })
		if mustReason(t, conflict, quotaerr.InvalidArgument); errors.Is(conflict, ErrPlanEnded) {
			t.Errorf("another plan's step: %v", conflict)
		}
		mustReason(t, step(6, func() error { return p.Release(t.Context(), 7) }), quotaerr.NotLeader) // in another leadership
		lost := inBackground(func() error { return p.Release(t.Context(), 7) })
		s.abandon(group.ErrUnknown)
		mustReason(t, <-lost, quotaerr.OutcomeUnknown)
		must(t, step(5, func() error { return p.Release(t.Context(), 7) }))
		if err := step(5, freeze(1)); !errors.Is(err, ErrPlanEnded) {
			t.Errorf("after the release: %v", err)
		}
		must(t, step(5, func() error { return p.Install(t.Context(), ref) }))
		must(t, step(5, func() error { return p.Barrier(t.Context()) }))
	})
}

// Shows that a partition which clears up after a plan says so, and writes entries that do it one soon after the other
// while nobody asks for anything, until it has cleared up.
func TestPlanIsClearedUp(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		check := start(t.Context(), p, convert("acme", "1"))
		s.commit(5)
		if a := <-check; a.err != nil {
			t.Fatal(a.err)
		}
		within := func(most time.Duration) {
			t.Helper()
			began := time.Now()
			for s.inFlight() == 0 {
				if time.Sleep(time.Millisecond); time.Since(began) > most {
					t.Fatalf("no entry within %s", most)
				}
			}
		}
		step := func(f func() error) {
			t.Helper()
			for s.inFlight() > 0 {
				s.commit(5)
			}
			out := inBackground(f)
			s.commit(5)
			must(t, <-out)
		}
		step(func() error {
			_, err := p.Freeze(t.Context(), 7, allSlots, 1)
			return err
		})
		if p.Clearing() {
			t.Error("frozen slots are cleared up")
		}
		step(func() error { return p.Release(t.Context(), 7) })
		within(tickInterval / 4) // when it looks next
		for range 3 {
			if !p.Clearing() {
				t.Fatal("it has cleared up without an entry")
			}
			s.abandon(group.ErrUnknown)
			within(2 * clearInterval)
		}
		s.commit(5)
		if st := p.Status(); p.Clearing() || st.Keys != 0 {
			t.Errorf("clearing %t, %d keys", p.Clearing(), st.Keys)
		}
		if time.Sleep(2 * tickInterval); s.inFlight() > 0 {
			t.Error("an entry although there is nothing left to clear up")
		}
	})
}

// Shows that pieces reach the log in their order, two entries at a time, gently one at a time and none larger than it
// needs to be, with a pause between; and that the first error ends it, which waits for what is on its way.
func TestStage(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		batch := func(slot fsm.Slot, sizes ...int) (out []fsm.Piece) {
			for i, size := range sizes {
				out = append(out, fsm.Piece{Slot: slot + fsm.Slot(i), Size: uint64(size), Offset: 1, Data: make([]byte, size-1)})
			}
			return out
		}
		cut := errors.New("the source is gone")
		stage := func(gently bool, batches ...[]fsm.Piece) <-chan error {
			return inBackground(func() error {
				return p.Stage(t.Context(), 7, gently, func(yield func([]fsm.Piece, error) bool) {
					for _, b := range batches {
						if !yield(b, nil) {
							return
						}
					}
					yield(nil, cut)
				})
			})
		}
		slots := func(e *fsm.Entry) (out []fsm.Slot) {
			for _, p := range e.Pieces {
				out = append(out, p.Slot)
			}
			return out
		}
		out := stage(false, batch(1, 9, 9), batch(3, 9), batch(4, 9))
		for i, want := range [][]fsm.Slot{{1, 2}, {3}, {4}} {
			if n := s.inFlight(); n != min(2, 3-i) {
				t.Errorf("%d entries are on their way after %d", n, i)
			}
			if e := s.commit(5).entry; e.Kind != fsm.KindStage || e.Plan != 7 || !slices.Equal(slots(e), want) {
				t.Errorf("entry %d: %+v", i, e)
			}
		}
		if err := <-out; !errors.Is(err, cut) {
			t.Errorf("%v", err)
		}
		out = stage(true, batch(10, 100<<10, 20<<10, 20<<10), batch(13, 200<<10))
		for i, want := range [][]fsm.Slot{{10, 11}, {12}, {13}} {
			time.Sleep(time.Second)
			if n := s.inFlight(); n != 1 {
				t.Errorf("%d entries are on their way", n)
			}
			if e := s.commit(5).entry; !slices.Equal(slots(e), want) {
				t.Errorf("entry %d has %v, want %v", i, slots(e), want)
			}
			if n := s.inFlight(); n != 0 {
				t.Error("there is no pause")
			}
		}
		if err := <-out; !errors.Is(err, cut) {
			t.Errorf("%v", err)
		}
		out = stage(false, batch(20, 9), batch(21, 9), batch(22, 9))
		s.abandon(group.ErrNotLeader)
		select {
		case err := <-out:
			t.Errorf("it does not wait for what is on its way: %v", err)
		default:
		}
		s.commit(5)
		mustReason(t, <-out, quotaerr.NotLeader)
	})
}

// Shows that a stage whose caller gives up has ended only when nothing of it is on its way any more.
func TestStageGivenUp(t *testing.T) {
	scripted(t, func(t *testing.T, p *Partition, s *script, _ *clock.Fake) {
		lead(t, p, s)
		ctx, cancel := context.WithCancel(t.Context())
		out := inBackground(func() error {
			return p.Stage(ctx, 7, false, func(yield func([]fsm.Piece, error) bool) {
				for yield([]fsm.Piece{{Slot: 1}}, nil) {
				}
			})
		})
		cancel()
		s.commit(5)
		s.commit(5)
		if err := <-out; err == nil || s.inFlight() > 0 {
			t.Errorf("%v, %d on their way", err, s.inFlight())
		}
	})
}

// still is a source that does not change.
type still struct{ m *fsm.Machine }

func (s still) View(f func(*fsm.Machine)) { f(s.m) }

// Shows that images of any sizes are cut and packed so that each batch fits an entry, none is small without need, and
// the pieces put together are the images in their order.
func TestPacking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var images []fsm.Image
		for i, size := range rapid.SliceOfN(rapid.OneOf(
			rapid.IntRange(0, 200), rapid.IntRange(0, 2*fsm.MaxStageBytes), rapid.Just(fsm.MaxStageBytes-pieceBytes),
		), 0, 9).Draw(t, "sizes") {
			images = append(images, fsm.Image{
				SlotDigest: fsm.SlotDigest{Slot: fsm.Slot(i), Digest: [16]byte{byte(i)}}, Data: bytes.Repeat([]byte{byte(i)}, size),
			})
		}
		var batches [][]fsm.Piece
		out := packer{yield: func(pieces []fsm.Piece) bool {
			batches = append(batches, pieces)
			return true
		}}
		for _, image := range images {
			out.add(image)
		}
		out.flush()
		got := make([]fsm.Image, 0, len(images))
		for i, pieces := range batches {
			weight := 0
			for _, p := range pieces {
				weight += pieceBytes + len(p.Data)
				if p.Offset == 0 {
					got = append(got, fsm.Image{SlotDigest: fsm.SlotDigest{Slot: p.Slot, Digest: p.Digest}, Data: []byte{}})
				}
				last := &got[len(got)-1]
				if last.Slot != p.Slot || uint64(len(last.Data)) != p.Offset || len(images[p.Slot].Data) != int(p.Size) {
					t.Fatalf("a piece of slot %d at %d of %d comes after %d bytes of %d", p.Slot, p.Offset, p.Size, len(last.Data),
						last.Slot)
				}
				last.Data = append(last.Data, p.Data...)
			}
			if weight > fsm.MaxStageBytes || weight < fsm.MaxStageBytes/2 && i < len(batches)-1 {
				t.Fatalf("batch %d of %d weighs %d", i, len(batches), weight)
			}
			e := fsm.AppendEntry(nil, &fsm.Entry{Kind: fsm.KindStage, Plan: 1, Pieces: pieces})
			if len(e) > fsm.MaxStageBytes+100 {
				t.Fatalf("its entry has %d bytes", len(e))
			}
		}
		same := func(a, b fsm.Image) bool { return a.SlotDigest == b.SlotDigest && bytes.Equal(a.Data, b.Data) }
		if !slices.EqualFunc(images, got, same) {
			t.Fatalf("%d images come as %d, or otherwise", len(images), len(got))
		}
	})
}

// Shows that an export has what differs and no more, ends when its reader does, and has nothing where there is nothing.
func TestExport(t *testing.T) {
	m := fsm.New()
	unborn := still{m}
	for range Export(unborn, allSlots, nil) {
		t.Error("an unborn one exports something")
	}
	if _, born := ManifestOf(unborn, allSlots); born {
		t.Error("an unborn one has a manifest")
	}
	m.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: mustBirth(t, "n1")})
	for _, principal := range ids("u", 40) {
		m.Step(1, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Checks: []fsm.Check{convert(principal, "1")}})
	}
	source := still{m}
	var have []fsm.SlotDigest
	for pieces := range Export(source, allSlots, nil) {
		for _, p := range pieces {
			have = append(have, fsm.SlotDigest{Slot: p.Slot, Digest: p.Digest})
		}
	}
	if len(have) < 30 || have[len(have)-1].Slot != fsm.HistorySlot {
		t.Errorf("%d slots, the last %d", len(have), have[len(have)-1].Slot)
	}
	for range Export(source, allSlots, have) {
		t.Error("what is there already is exported")
	}
	stale := slices.Clone(have)
	stale[3].Digest[0]++
	empty := fsm.Slot(0)
	for slices.ContainsFunc(have, func(d fsm.SlotDigest) bool { return d.Slot == empty }) {
		empty++
	}
	stale = slices.Insert(stale, int(empty), fsm.SlotDigest{Slot: empty, Digest: [16]byte{1}})
	slices.SortFunc(stale, func(a, b fsm.SlotDigest) int { return int(a.Slot) - int(b.Slot) })
	var got []fsm.Slot
	for pieces := range Export(source, allSlots, stale) {
		for _, p := range pieces {
			got = append(got, p.Slot)
		}
	}
	if diff := cmp.Diff([]fsm.Slot{have[3].Slot, empty}, got); diff != "" {
		t.Error(diff)
	}
	manifest, born := ManifestOf(source, allSlots)
	if want := m.Manifest(allSlots); !born || manifest != want {
		t.Errorf("%+v, want %+v", manifest, want)
	}
}
