package control

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/policy"
)

const policySource = `
version: p1
default: {limits: [{name: d, limit: 5, window: 1m}]}
classes:
  convert: {limits: [{name: m, limit: 3, window: 1m}]}
  export: {disabled: true, limits: [{name: m, limit: 3, window: 1m}]}
`

func one(b []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) { yield(b, nil) }
}

// library is a Control that only has policies.
type library struct {
	*Control
	dir     string
	body    *policy.Policy
	encoded []byte
}

func newLibrary(t *testing.T) *library {
	t.Helper()
	l := &library{dir: t.TempDir()}
	store, err := bodies.Open(l.dir)
	if err != nil {
		t.Fatal(err)
	}
	if l.body, err = policy.Parse("p.yaml", []byte(policySource)); err != nil {
		t.Fatal(err)
	}
	l.encoded = l.body.AppendBinary(nil)
	l.Control = &Control{bodies: store, policies: newPolicies(store, slog.New(slog.DiscardHandler))}
	return l
}

func (l *library) revision(switches ...state.Switch) *state.Revision {
	return &state.Revision{
		Number: 4, Label: "made", Body: sha256.Sum256(l.encoded), Bytes: int64(len(l.encoded)), Switches: switches,
	}
}

func (l *library) put(_ context.Context, d state.Digest) error {
	_, err := l.bodies.Put(d, 0, one(l.encoded))
	return err
}

func noFetch(context.Context, state.Digest) error { return errors.New("nobody was to be asked") }

// Shows that what a revision puts in force is its body under its label with the switched classes, default
// among them; that without its body it is not found; and that a class that the body lacks makes it unusable.
func TestPolicyOfARevision(t *testing.T) {
	l := newLibrary(t)
	r := l.revision(state.Switch{Class: "convert", Disabled: true}, state.Switch{Class: "default", Disabled: true},
		state.Switch{Class: "export"})
	if _, err := l.Policy(t.Context(), r); !errors.Is(err, bodies.ErrNotFound) {
		t.Fatalf("without its body: %v", err)
	}
	if err := l.put(t.Context(), r.Body); err != nil {
		t.Fatal(err)
	}
	p, err := l.Policy(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if p.Version != "made" || !p.Classes["convert"].Disabled || p.Classes["export"].Disabled || !p.Default.Disabled {
		t.Errorf("in force: %+v", p)
	}
	ref := r.Ref()
	if err := ref.Check(p); err != nil {
		t.Error(err)
	}
	if again, err := l.Find(t.Context(), ref, noFetch); err != nil || again != p {
		t.Errorf("another copy, %v", err)
	}
	bad := l.revision(state.Switch{Class: "gone"})
	if _, err := l.Find(t.Context(), bad.Ref(), noFetch); !errors.Is(err, ErrUnusable) {
		t.Errorf("a class that is not listed was switched: %v", err)
	}
	trash := []byte("no policy")
	d := state.Digest(sha256.Sum256(trash))
	if _, err := l.bodies.Put(d, 0, one(trash)); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Body(t.Context(), d); !errors.Is(err, ErrUnusable) || !errors.Is(err, policy.ErrEncoding) {
		t.Errorf("trash: %v", err)
	}
}

// Shows that callers at the same time fetch and decode a policy once and get the same one, that they go on
// when the one that fetches gives up, with growing pauses between attempts, and that each ends with its context.
func TestFindIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLibrary(t)
		ref := l.revision().Ref()
		began := time.Now()
		var mu sync.Mutex
		var asked []time.Duration
		fetch := func(ctx context.Context, d state.Digest) error {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, time.Since(began))
			if time.Since(began) < 20*time.Second {
				return errors.New("nobody has it")
			}
			return l.put(ctx, d)
		}
		impatient, cancel := context.WithTimeout(t.Context(), 6*time.Second)
		defer cancel()
		if _, err := l.Find(impatient, ref, fetch); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the impatient one: %v", err)
		}
		if n := len(asked); n != 6 || asked[5]-asked[4] != 2*(asked[4]-asked[3]) {
			t.Fatalf("in %v it was asked for at %v", time.Since(began), asked)
		}
		found := make([]*policy.Policy, 8)
		var wg sync.WaitGroup
		for i := range found {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if i == 0 { // may be the one that fetches
					ctx, cancel = context.WithTimeout(t.Context(), time.Second)
					defer cancel()
				}
				p, err := l.Find(ctx, ref, fetch)
				if (err != nil) != (i == 0) {
					t.Errorf("caller %d: %v", i, err)
				}
				found[i] = p
			})
		}
		wg.Wait()
		for i, p := range found[2:] {
			if p == nil || p != found[1] {
				t.Errorf("caller %d has a copy of its own", i+2)
			}
		}
		if late := len(asked); asked[late-1] < 20*time.Second || asked[late-2] > 20*time.Second {
			t.Errorf("fetched more than once: %v", asked)
		}
	})
}

// Shows that callers of Policy at the same time, who do not wait for each other, get the same policy.
func TestPolicyIsShared(t *testing.T) {
	l := newLibrary(t)
	if err := l.put(t.Context(), sha256.Sum256(l.encoded)); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		r := l.revision()
		r.Label = fmt.Sprint("p", i)
		found := make([]*policy.Policy, 8)
		var wg sync.WaitGroup
		for i := range found {
			wg.Go(func() {
				p, err := l.Policy(t.Context(), r)
				if err != nil {
					t.Error(err)
				}
				found[i] = p
			})
		}
		wg.Wait()
		for _, p := range found {
			if p != found[0] {
				t.Fatal("two copies are in use")
			}
		}
	}
}

// Shows that a body that is damaged on the disk is removed and fetched anew, and that a sound one is not.
func TestDamagedBodyIsFetchedAnew(t *testing.T) {
	l := newLibrary(t)
	ref := l.revision().Ref()
	file := filepath.Join(l.dir, state.Digest(ref.Body).String()+".policy")
	if err := os.WriteFile(file, l.encoded[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	fetched := 0
	p, err := l.Find(t.Context(), ref, func(ctx context.Context, d state.Digest) error {
		fetched++
		return l.put(ctx, d)
	})
	if err != nil || fetched != 1 || ref.Check(p) != nil {
		t.Fatalf("fetched %d times: %v", fetched, err)
	}
	if err := l.bodies.Discard(ref.Body); err != nil {
		t.Fatal(err)
	}
	if has, err := l.bodies.Has(ref.Body, 0); !has || err != nil {
		t.Fatalf("a sound body was removed: %v", err)
	}
}

// Shows that policies which nobody uses leave memory but for the last few, and that one which is in use is
// found although it is no longer among these.
func TestUnusedPoliciesLeave(t *testing.T) {
	l := newLibrary(t)
	r := l.revision()
	if err := l.put(t.Context(), r.Body); err != nil {
		t.Fatal(err)
	}
	used, err := l.Policy(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		other := *r
		other.Label = "p" + string(rune('A'+i))
		if _, err := l.Policy(t.Context(), &other); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.policies.kept); n != keptPolicies {
		t.Errorf("%d policies are kept", n)
	}
	huge := *r
	huge.Label, huge.Bytes = "huge", keptBytes
	if _, err := l.Policy(t.Context(), &huge); err != nil || len(l.policies.kept) != 1 {
		t.Errorf("%d policies are kept beside a huge one: %v", len(l.policies.kept), err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		runtime.GC()
		again, err := l.Policy(t.Context(), r)
		if err != nil || again != used {
			t.Fatalf("what is in use is not found: %v", err)
		}
		if n := len(l.policies.entries); n <= keptPolicies+1 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("%d policies are remembered", n)
		}
	}
	runtime.KeepAlive(used)
}

// Shows that a body which was looked at is ready: whoever asks for it later, by its digest, for a revision that puts it
// in force as it is or for one with a switch, makes no second copy of it and reads no file.
func TestBodyIsReady(t *testing.T) {
	l := newLibrary(t)
	r := l.revision()
	r.Label = l.body.Version
	if err := l.put(t.Context(), r.Body); err != nil {
		t.Fatal(err)
	}
	first, err := l.Body(t.Context(), r.Body)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(l.dir, "*.policy"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	runtime.GC() // what is kept does not hang on this test
	again, err := l.Body(t.Context(), r.Body)
	if err != nil || again != first {
		t.Errorf("asked for again: %p %v, want %p", again, err, first)
	}
	found, err := l.Find(t.Context(), r.Ref(), noFetch)
	if err != nil || found != first {
		t.Errorf("for its revision: %p %v, want %p", found, err, first)
	}
	switched := l.revision(state.Switch{Class: "convert", Disabled: true})
	if p, err := l.Find(t.Context(), switched.Ref(), noFetch); err != nil || !p.Classes["convert"].Disabled {
		t.Errorf("with a switch: %+v %v", p, err)
	}
}
