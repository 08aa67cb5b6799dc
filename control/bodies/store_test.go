package bodies_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"iter"
	"os"
	"path/filepath"
	"testing"

	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
)

func mustOpen(t *testing.T, dir string) *bodies.Store {
	t.Helper()
	s, err := bodies.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func chunks(b []byte, size int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for len(b) > 0 {
			n := min(len(b), size)
			if !yield(b[:n], nil) {
				return
			}
			b = b[n:]
		}
	}
}

func body(n, size int) ([]byte, state.Digest) {
	b := bytes.Repeat([]byte{byte(n)}, size)
	return b, sha256.Sum256(b)
}

func mustPut(t *testing.T, s *bodies.Store, n int, epoch uint64) state.Digest {
	t.Helper()
	b, d := body(n, 3000)
	if _, err := s.Put(d, epoch, chunks(b, 1000)); err != nil {
		t.Fatal(err)
	}
	return d
}

func has(t *testing.T, dir string, d state.Digest) bool {
	t.Helper()
	_, err := os.Stat(filepath.Join(dir, d.String()+".policy"))
	return err == nil
}

// Shows that a body of many chunks goes from one store to another whole, and is there after a new start.
func TestBodiesTravelInChunks(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	from, to := mustOpen(t, one), mustOpen(t, two)
	b, d := body(7, 5<<20+17)
	if n, err := from.Put(d, 0, chunks(b, bodies.MaxChunkBytes)); err != nil || n != int64(len(b)) {
		t.Fatalf("%d bytes: %v", n, err)
	}
	if n, err := to.Put(d, 0, from.Chunks(d)); err != nil || n != int64(len(b)) {
		t.Fatalf("%d bytes: %v", n, err)
	}
	if n, err := to.Put(d, 0, nil); err != nil || n != int64(len(b)) {
		t.Fatalf("one that is there: %d bytes: %v", n, err)
	}
	r, size, err := mustOpen(t, two).Get(d)
	if err != nil || size != int64(len(b)) {
		t.Fatalf("size %d: %v", size, err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, b) {
		t.Fatalf("%d bytes: %v", len(got), err)
	}
}

// Shows that what is not the body gets no name and leaves nothing, that a chunk over the bound is refused,
// and that what a crash left is removed.
func TestOnlyWholeBodiesAreNamed(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	b, d := body(1, 3000)
	broken := errors.New("broken")
	for _, c := range []struct {
		chunks iter.Seq2[[]byte, error]
		want   error
	}{
		{chunks(b[1:], 1000), bodies.ErrMismatch},
		{chunks(bytes.Repeat(b, 1000), bodies.MaxChunkBytes+1), bodies.ErrTooLarge},
		{func(yield func([]byte, error) bool) { _ = yield(b, nil) && yield(nil, broken) }, broken},
	} {
		if _, err := s.Put(d, 0, c.chunks); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	if _, _, err := s.Get(d); !errors.Is(err, bodies.ErrNotFound) {
		t.Errorf("%v, want not found", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "incoming-7.tmp"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, dir)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// Shows that a body that was damaged on the disk is told from the real one at its end, by both ways to read.
func TestDamageIsNoticed(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	d := mustPut(t, s, 1, 0)
	path := filepath.Join(dir, d.String()+".policy")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[1500] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	r, _, err := s.Get(d)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, bodies.ErrMismatch) {
		t.Errorf("Get: %v", err)
	}
	var last error
	for _, err := range s.Chunks(d) {
		last = err
	}
	if !errors.Is(last, bodies.ErrMismatch) {
		t.Errorf("Chunks: %v", last)
	}
}

// Shows that a sweep drops what nobody wants and nobody asked for in the epoch that ended, that asking keeps
// a body through the next one, and that what was there at a start outlives the first sweep.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	s := mustOpen(t, dir)
	wanted, idle, asked := mustPut(t, s, 1, 5), mustPut(t, s, 2, 5), mustPut(t, s, 3, 5)
	sweep := func(epoch uint64, want int) {
		t.Helper()
		n, err := s.Sweep(epoch, func(d state.Digest) bool { return d == wanted })
		if err != nil || n != want {
			t.Errorf("sweep %d dropped %d, want %d: %v", epoch, n, want, err)
		}
	}
	sweep(6, 0)
	if ok, err := s.Has(asked, 6); !ok || err != nil {
		t.Fatalf("%t %v", ok, err)
	}
	sweep(7, 1)
	if has(t, dir, idle) || !has(t, dir, asked) || !has(t, dir, wanted) {
		t.Error("the wrong one was dropped")
	}
	if ok, _ := s.Has(idle, 7); ok {
		t.Error("a dropped one is there")
	}
	s = mustOpen(t, dir)
	sweep(8, 0)
	sweep(9, 0)
	sweep(10, 1)
	if has(t, dir, asked) || !has(t, dir, wanted) {
		t.Error("the wrong one was dropped")
	}
}
