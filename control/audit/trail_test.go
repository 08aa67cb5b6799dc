package audit_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/state"
)

// tape appends records and knows the running hash.
type tape struct {
	*audit.Trail
	path string
	hash state.Digest
	all  []*state.Record
	sums []state.Digest
}

func mustOpen(t *testing.T, path string, maxRecords int) *audit.Trail {
	t.Helper()
	trail, err := audit.Open(path, maxRecords)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { trail.Close() })
	return trail
}

func newTape(t *testing.T, maxRecords int) *tape {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.db")
	return &tape{Trail: mustOpen(t, path, maxRecords), path: path}
}

// mustAppend makes record n, at log index 10n.
func (p *tape) mustAppend(t *testing.T, from, to int) {
	t.Helper()
	for n := from; n <= to; n++ {
		r := &state.Record{
			Index: uint64(10 * n), WallNanos: int64(1000 * n), Actor: []string{"kim", "lee"}[n%2],
			Action: []string{"policy.publish", "node.put", "policy.rollback"}[n%3], Object: "node n" + string(rune('0'+n%10)), Result: "done",
		}
		p.hash = state.NextHash(p.hash, r)
		p.all, p.sums = append(p.all, r), append(p.sums, p.hash)
		if err := p.Append(r, p.hash); err != nil {
			t.Fatal(err)
		}
	}
}

func indexes(t *testing.T, trail *audit.Trail, q audit.Query) (out []uint64) {
	t.Helper()
	found, _, err := trail.Search(q)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range found {
		out = append(out, r.Index)
	}
	return out
}

// Shows that records are found by time, actor, action and object, newest first, page by page.
func TestSearch(t *testing.T) {
	p := newTape(t, 0)
	p.mustAppend(t, 1, 12)
	for _, c := range []struct {
		name  string
		query audit.Query
		want  []uint64
	}{
		{"time", audit.Query{FromNanos: 3000, UntilNanos: 6000}, []uint64{50, 40, 30}},
		{"actor", audit.Query{Actor: "lee", Limit: 2}, []uint64{110, 90}},
		{"action", audit.Query{Action: "node.put"}, []uint64{100, 70, 40, 10}},
		{"actions", audit.Query{Action: "policy", FromNanos: 9000}, []uint64{120, 110, 90}},
		{"object", audit.Query{Object: "n2"}, []uint64{120, 20}},
		{"object in full", audit.Query{Object: "node n2", Actor: "kim"}, []uint64{120, 20}},
		{"before", audit.Query{Before: 30}, []uint64{20, 10}},
		{"none", audit.Query{Actor: "nobody"}, nil},
	} {
		if diff := cmp.Diff(c.want, indexes(t, p.Trail, c.query)); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	var all []uint64
	for q := (audit.Query{Limit: 5}); ; {
		found, next, err := p.Search(q)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range found {
			all = append(all, r.Index)
		}
		if q.Before = next; next == 0 {
			break
		}
	}
	if len(all) != 12 {
		t.Errorf("pages hold %v", all)
	}
	if _, _, err := p.Search(audit.Query{Limit: audit.MaxFound + 1}); err == nil {
		t.Error("a limit over the bound was taken")
	}
}

// Shows that a record is kept once, that another in its place is refused, and that a start finds all.
func TestAppendIsIdempotent(t *testing.T) {
	p := newTape(t, 0)
	p.mustAppend(t, 1, 5)
	for i, r := range p.all {
		if err := p.Append(r, p.sums[i]); err != nil {
			t.Errorf("again: %v", err)
		}
	}
	if err := p.Append(p.all[2], p.sums[3]); !errors.Is(err, audit.ErrDamaged) {
		t.Errorf("another record in its place: %v", err)
	}
	if err := p.Append(&state.Record{Index: 60}, p.hash); !errors.Is(err, audit.ErrDamaged) {
		t.Errorf("a record that does not continue the trail: %v", err)
	}
	p.Close()
	again := mustOpen(t, p.path, 0)
	if last, hash := again.End(); last != 50 || hash != p.hash {
		t.Errorf("it ends at %d", last)
	}
}

// Shows that the oldest records go at the bound, but none while a snapshot needs them, and that the trail is
// whole after a start.
func TestOldestAreDropped(t *testing.T) {
	p := newTape(t, 4)
	p.mustAppend(t, 1, 6)
	if got := indexes(t, p.Trail, audit.Query{}); !cmp.Equal(got, []uint64{60, 50, 40, 30}) {
		t.Fatalf("kept %v", got)
	}
	cut := p.Cut()
	p.mustAppend(t, 7, 9)
	var b bytes.Buffer
	if _, err := cut.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	cut.Release()
	cut.Release()
	p.mustAppend(t, 10, 10)
	if got := indexes(t, p.Trail, audit.Query{}); !cmp.Equal(got, []uint64{100, 90, 80, 70}) {
		t.Fatalf("kept %v", got)
	}
	p.Close()
	mustOpen(t, p.path, 4)
	other := newTape(t, 4)
	if err := other.Restore(&b, p.sums[5]); err != nil {
		t.Fatal(err)
	}
	if got := indexes(t, other.Trail, audit.Query{}); !cmp.Equal(got, []uint64{60, 50, 40, 30}) {
		t.Fatalf("restored %v", got)
	}
}

// Shows that a snapshot replaces what is there, leaves alone a trail that has it and more, takes nothing that
// is not the state's, and is read to its end and no further.
func TestRestore(t *testing.T) {
	p := newTape(t, 0)
	p.mustAppend(t, 1, 600) // several batches
	cut := p.Cut()
	var b bytes.Buffer
	n, err := cut.WriteTo(&b)
	cut.Release()
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("%d of %d bytes: %v", n, b.Len(), err)
	}
	snapshot, hash := bytes.Clone(b.Bytes()), p.hash
	other := newTape(t, 0)
	other.mustAppend(t, 3, 5)
	if err := other.Restore(bytes.NewReader(snapshot), state.Digest{1}); err == nil {
		t.Error("a trail of another state was taken")
	}
	rest := bytes.NewReader(append(bytes.Clone(snapshot), "rest"...))
	if err := other.Restore(rest, hash); err != nil || rest.Len() != 4 {
		t.Fatalf("%d bytes left: %v", rest.Len(), err)
	}
	if last, got := other.End(); last != 6000 || got != hash {
		t.Errorf("it ends at %d", last)
	}
	p.mustAppend(t, 601, 602)
	if err := p.Restore(bytes.NewReader(snapshot), hash); err != nil {
		t.Fatal(err)
	}
	if last, _ := p.End(); last != 6020 {
		t.Errorf("what came after was dropped: it ends at %d", last)
	}
	for i := 0; i < len(snapshot); i += 97 {
		bad := bytes.Clone(snapshot)
		bad[i] ^= 4
		if err := newTape(t, 0).Restore(bytes.NewReader(bad), hash); err == nil {
			t.Fatalf("a flipped bit in byte %d was taken", i)
		}
		if i > 2000 {
			i += 9700
		}
	}
}

// Shows that a changed byte in a stored record keeps the trail from being opened, with the remedy.
func TestDamageIsNoticed(t *testing.T) {
	p := newTape(t, 0)
	p.mustAppend(t, 1, 20)
	p.Close()
	b, err := os.ReadFile(p.path)
	if err != nil {
		t.Fatal(err)
	}
	changed := bytes.ReplaceAll(b, []byte("kim"), []byte("bob"))
	if bytes.Equal(b, changed) {
		t.Fatal("nothing to change")
	}
	if err := os.WriteFile(p.path, changed, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := audit.Open(p.path, 0); !errors.Is(err, audit.ErrDamaged) {
		t.Fatalf("got %v", err)
	}
}
