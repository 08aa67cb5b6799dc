package storage

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// earlyLog is a log on a disk that hangs until it is released, whose appends may return early.
func earlyLog(t *testing.T, f *faulty, fatal func(error)) *cache {
	f.InmemStore, f.hang = raft.NewInmemStore(), make(chan struct{})
	l := faultyLog(t, f, fatal)
	l.early = func() bool { return true }
	return newCache(l, cachedEntries, cachedBytes)
}

// ends runs f in a goroutine and reports, once all is quiet, whether it has ended.
func ends(f func()) (ended func() bool) {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// Shows that an early append returns while the disk hangs, with its entries there to be read; and that the next append,
// a truncation, the ends of the log and whoever waits for the entries to be durable come only when it has ended.
func TestEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{}
		c := earlyLog(t, f, func(err error) { t.Errorf("unexpected: %v", err) })
		must(t, c.StoreLogs(entries(1, 3, 1)))
		var e raft.Log
		must(t, c.GetLog(3, &e))
		must(t, c.awaitDurable(0, nil)) // all before is
		canceled := make(chan struct{})
		close(canceled)
		if err := c.awaitDurable(2, canceled); !errors.Is(err, errCanceled) {
			t.Errorf("entry 2 counts as durable: %v", err)
		}
		durable := ends(func() { must(t, c.awaitDurable(3, nil)) })
		last := ends(func() {
			if n, err := c.LastIndex(); err != nil || n < 3 {
				t.Errorf("the log ends at %d: %v", n, err)
			}
		})
		next := ends(func() { must(t, c.StoreLogs(entries(4, 4, 1))) })
		if durable() || last() || next() {
			t.Error("something came before the append has ended")
		}
		close(f.hang)
		if !durable() || !last() || !next() {
			t.Error("something does not come after it")
		}
		must(t, c.awaitDurable(4, nil))
		if n, err := f.InmemStore.LastIndex(); err != nil || n != 4 {
			t.Errorf("the disk has entries up to %d: %v", n, err)
		}
		must(t, c.DeleteRange(2, 4))
		must(t, c.StoreLogs(entries(2, 2, 2)))
		must(t, c.Close())
		must(t, f.InmemStore.GetLog(2, &e))
		if e.Term != 2 {
			t.Errorf("entry 2 has term %d", e.Term)
		}
	})
}

// Shows that a change of members, and what is too large to be kept in memory, is durable when the append returns; and
// so is everything when it is not to be early.
func TestNotEarly(t *testing.T) {
	large := batch(1, maxEarlyBytes>>20+1, 1<<20)
	for name, logs := range map[string][]*raft.Log{
		"members": {{Index: 1, Term: 1}, {Index: 2, Term: 1, Type: raft.LogConfiguration}}, "large": large,
		"follower": entries(1, 1, 1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &faulty{}
				c := earlyLog(t, f, func(err error) { t.Errorf("unexpected: %v", err) })
				c.early = func() bool { return name != "follower" }
				stored := ends(func() { must(t, c.StoreLogs(logs)) })
				if stored() {
					t.Error("the append returned while the disk hung")
				}
				close(f.hang)
				if !stored() {
					t.Error("it does not return")
				}
			})
		})
	}
}

// Shows that an early append which fails calls the hook once, is never taken for durable, and lets nothing follow it.
func TestEarlyFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fatal []error
		broken := errors.New("input/output error")
		f := &faulty{err: broken}
		c := earlyLog(t, f, func(err error) { fatal = append(fatal, err) })
		must(t, c.StoreLogs(entries(1, 1, 1)))
		close(f.hang)
		for range 2 {
			if err := c.awaitDurable(1, nil); !errors.Is(err, broken) {
				t.Errorf("it counts as durable: %v", err)
			}
		}
		for range 2 {
			if err := c.StoreLogs(entries(2, 2, 1)); !errors.Is(err, broken) {
				t.Errorf("an append after it: %v", err)
			}
		}
		if len(fatal) != 1 {
			t.Errorf("the hook was called with %v", fatal)
		}
	})
}
