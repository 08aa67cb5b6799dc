package partition

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// mustReplica is a replica without a group.
func mustReplica(t *testing.T) *Replica {
	t.Helper()
	line, err := clock.NewTimeline(&clock.Fake{}, testDriftPPM, clock.TrustNever)
	must(t, err)
	return newReplica(quiet(t, line))
}

// quiet is a replica's configuration in which nothing is expected to go wrong.
func quiet(t *testing.T, line *clock.Timeline) replicaConfig {
	t.Helper()
	return replicaConfig{
		timeline: line, level: fsm.MaxLevel, observe: func(fsm.Time, uint64, bool) {}, restored: func() {},
		differs: func(index uint64) { t.Errorf("states differ at %d", index) },
		fatal:   func(err error) { t.Errorf("unexpected: %v", err) },
		policy:  func(fsm.PolicyRef) (*policy.Policy, error) { return mustBirth(t, "").Policy, nil },
		closing: func() bool { return false }, crowded: func() { t.Error("the log names too many policies") },
	}
}

// entryAt is the entry of a log index: the birth first, then batches of checks of ever new principals.
func entryAt(t *testing.T, index uint64) []byte {
	t.Helper()
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: fsm.Time(index) * 1_000_000}
	if index == 1 {
		e.Kind, e.Birth = fsm.KindBirth, mustBirth(t, "seed")
		return fsm.AppendEntry(nil, e)
	}
	for i := range 20 {
		e.Checks = append(e.Checks, convert(fmt.Sprintf("p%d", (int(index)*7+i)%1000), fmt.Sprint(index, i)))
	}
	return fsm.AppendEntry(nil, e)
}

func applyUntil(t *testing.T, r *Replica, from, to uint64) {
	t.Helper()
	for i := from; i <= to; i++ {
		r.Apply(i, 1, entryAt(t, i), true)
	}
}

// A replica anchors its clock at each entry of others and at each snapshot: the time that a later
// leadership of it counts is that since the last of them, and none from before an install.
func TestAnchors(t *testing.T) {
	c := &clock.Fake{}
	line, err := clock.NewTimeline(c, testDriftPPM, clock.TrustNever)
	must(t, err)
	r := newReplica(quiet(t, line))
	stamp := func(term uint64) fsm.Time {
		t.Helper()
		line.Lead(term)
		at, err := line.Stamp(term)
		must(t, err)
		line.Resign()
		return fsm.Time(at)
	}
	c.Advance(int64(time.Hour))
	applyUntil(t, r, 1, 100)
	c.Advance(int64(10 * time.Second))
	if got, want := stamp(2), 100*time.Millisecond; got != fsm.Time(want)+slowed(10*time.Second) {
		t.Errorf("10 s after an entry of %v the stamp is %d", want, got)
	}

	other := mustReplica(t)
	applyUntil(t, other, 1, 300)
	s, err := other.Snapshot()
	must(t, err)
	var file bytes.Buffer
	_, err = s.WriteTo(&file)
	must(t, err)
	s.Release()
	c.Advance(int64(time.Hour))
	must(t, r.Restore(&file))
	c.Advance(int64(2 * time.Second))
	if got, want := stamp(3), 300*time.Millisecond; got != fsm.Time(want)+slowed(2*time.Second) {
		t.Errorf("2 s after a snapshot of %v the stamp is %d", want, got)
	}
}

// An entry that this program cannot read, or whose feature level it does not know, stops the replica: it
// says where in the log and what to do, is not applied, and neither is anything after it.
func TestUnknownEntry(t *testing.T) {
	later := entryAt(t, 2)
	later[0] = 99
	for name, tc := range map[string]struct {
		data []byte
		want string
	}{
		"empty":              {nil, "cut short"},
		"of a later version": {later, "entry of version 99"},
		"cut":                {entryAt(t, 2)[:60], "replace this replica"},
		"of a later level": {
			fsm.AppendEntry(nil, &fsm.Entry{Kind: fsm.KindRaise, Term: 1, Level: fsm.MaxLevel + 1}),
			"start the newer program",
		},
	} {
		t.Run(name, func(t *testing.T) {
			line, err := clock.NewTimeline(&clock.Fake{}, testDriftPPM, clock.TrustNever)
			must(t, err)
			c := quiet(t, line)
			var ends []error
			c.fatal = func(err error) { ends = append(ends, err) }
			r := newReplica(c)
			applyUntil(t, r, 1, 1)
			before := r.basis()
			if got := r.Apply(4711, 1, tc.data, true); got != nil {
				t.Errorf("it answers %v", got)
			}
			applyUntil(t, r, 4712, 4720)
			if len(ends) != 1 || !strings.Contains(ends[0].Error(), "log index 4711") ||
				!strings.Contains(ends[0].Error(), tc.want) {
				t.Errorf("it ends with %v, want one that says %q", ends, tc.want)
			}
			if r.basis() != before {
				t.Error("the state has changed")
			}
			if _, err := r.Snapshot(); err == nil {
				t.Error("the state can be taken for a snapshot that covers the entry")
			}
		})
	}
}

// A snapshot of a feature level that this program does not know is not taken over.
func TestSnapshotOfLaterLevel(t *testing.T) {
	line, err := clock.NewTimeline(&clock.Fake{}, testDriftPPM, clock.TrustNever)
	must(t, err)
	c := quiet(t, line)
	c.level = fsm.MaxLevel + 1
	newer := newReplica(c)
	applyUntil(t, newer, 1, 1)
	newer.Apply(2, 1, fsm.AppendEntry(nil, &fsm.Entry{Kind: fsm.KindRaise, Term: 1, Level: c.level}), true)
	s, err := newer.Snapshot()
	must(t, err)
	var file bytes.Buffer
	_, err = s.WriteTo(&file)
	must(t, err)
	s.Release()
	if err := mustReplica(t).Restore(bytes.NewReader(file.Bytes())); err == nil ||
		!strings.Contains(err.Error(), "start the newer program") {
		t.Errorf("error %v", err)
	}
	must(t, newReplica(c).Restore(&file))
}

// between applies further entries between the pieces of a snapshot that is being written.
type between struct {
	bytes.Buffer
	apply  func()
	writes int
}

func (b *between) Write(p []byte) (int, error) {
	b.writes++
	b.apply()
	return b.Buffer.Write(p)
}

// A snapshot holds the state as of the entry at which it was begun, whatever is applied while it is
// written; a replica that restores it and applies the entries that follow has the state of the others.
func TestSnapshotBesideApply(t *testing.T) {
	r := mustReplica(t)
	applyUntil(t, r, 1, 200)
	want, ok := r.DigestAt(200)
	s, err := r.Snapshot()
	must(t, err)
	next := uint64(201)
	pieces := 0
	to := &between{apply: func() {
		if pieces++; pieces%32 == 1 { // there are hundreds
			applyUntil(t, r, next, next+2)
			next += 3
		}
	}}
	n, err := s.WriteTo(to)
	must(t, err)
	s.Release()
	if int(n) != to.Len() || to.writes < 3 || next == 201 {
		t.Fatalf("%d bytes of %d were written in %d pieces", n, to.Len(), to.writes)
	}

	other, anew := mustReplica(t), 0
	other.restored = func() { anew++ }
	applyUntil(t, other, 1, 3) // it had something, which goes
	must(t, other.Restore(bytes.NewReader(to.Bytes())))
	got, known := other.DigestAt(200)
	if !ok || !known || got != want || anew != 1 {
		t.Fatalf("the restored state is %x (%v), want %x (%v); %d announcements", got, known, want, ok, anew)
	}
	if _, ok := other.DigestAt(3); ok {
		t.Error("a digest of the old state is left")
	}
	applyUntil(t, other, 201, next-1)
	want, _ = r.DigestAt(next - 1)
	if got, _ := other.DigestAt(next - 1); got != want {
		t.Errorf("after the same entries the state is %x, want %x", got, want)
	}
}

// A snapshot of a replica before the birth is one too; a damaged or cut one is refused, and leaves the
// state alone.
func TestSnapshotEdges(t *testing.T) {
	r := mustReplica(t)
	s, err := r.Snapshot()
	must(t, err)
	var unborn bytes.Buffer
	_, err = s.WriteTo(&unborn)
	must(t, err)
	s.Release()
	must(t, r.Restore(bytes.NewReader(unborn.Bytes())))
	applyUntil(t, r, 1, 50)
	was, _ := r.DigestAt(50)

	s, err = r.Snapshot()
	must(t, err)
	var whole bytes.Buffer
	_, err = s.WriteTo(&whole)
	must(t, err)
	s.Release()
	head := append([]byte(nil), whole.Bytes()...)
	head[8] = 7
	flipped := append([]byte(nil), whole.Bytes()...)
	flipped[len(flipped)/2] ^= 1
	for name, data := range map[string][]byte{
		"empty": nil, "cut head": whole.Bytes()[:5], "damaged head": head,
		"cut": whole.Bytes()[:whole.Len()-1], "flipped": flipped,
	} {
		if err := r.Restore(bytes.NewReader(data)); err == nil {
			t.Errorf("%s: restored", name)
		}
		if d, ok := r.DigestAt(50); !ok || d != was {
			t.Errorf("%s: the state changed", name)
		}
	}
}

// A snapshot whose file cannot be written ends with that error, and the next one can be begun.
func TestSnapshotFails(t *testing.T) {
	r := mustReplica(t)
	applyUntil(t, r, 1, 50)
	for range 2 {
		s, err := r.Snapshot()
		must(t, err)
		reader, writer := io.Pipe()
		must(t, reader.CloseWithError(io.ErrClosedPipe))
		if _, err := s.WriteTo(writer); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v", err)
		}
		s.Release()
	}
}
