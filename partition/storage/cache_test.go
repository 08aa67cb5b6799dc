package storage

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// The cache answers what the log beneath would, through any sequence of appends and truncations at both
// ends, holds the newest entries that fit, and never more than its bounds.
func TestCache(t *testing.T) {
	const most, bound = 8, 1000
	rapid.Check(t, func(rt *rapid.T) {
		l := faultyLog(t, &faulty{InmemStore: raft.NewInmemStore()}, func(err error) { rt.Fatalf("fatal: %v", err) })
		c := newCache(l, most, bound)
		term := uint64(0)
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				_, last := l.ledger.bounds()
				term++
				var logs []*raft.Log
				for i := range uint64(rapid.IntRange(1, 12).Draw(t, "n")) {
					size := rapid.IntRange(0, 400).Draw(t, "bytes")
					if rapid.IntRange(0, 20).Draw(t, "huge") == 0 {
						size = bound + 1
					}
					logs = append(logs, &raft.Log{Index: last + 1 + i, Term: term, Data: make([]byte, size)})
				}
				if err := c.StoreLogs(logs); err != nil {
					t.Fatal(err)
				}
			},
			"drop head": func(t *rapid.T) {
				first, last := l.ledger.bounds()
				if first != 0 {
					drop(t, c, first, rapid.Uint64Range(first, last).Draw(t, "to"))
				}
			},
			"drop tail": func(t *rapid.T) {
				first, last := l.ledger.bounds()
				if first != 0 {
					drop(t, c, rapid.Uint64Range(first, last).Draw(t, "from"), last)
				}
			},
			"": func(t *rapid.T) { compareCache(t, c, l, most, bound) },
		})
	})
}

func drop(t *rapid.T, c *cache, lowest, highest uint64) {
	if err := c.DeleteRange(lowest, highest); err != nil {
		t.Fatal(err)
	}
}

func compareCache(t *rapid.T, c *cache, l *log, most int, bound uint64) {
	first, last := l.ledger.bounds()
	var held, bytes uint64
	for i := max(first, 2) - 1; i <= last+1; i++ {
		var got, want raft.Log
		err, wantErr := c.GetLog(i, &got), l.GetLog(i, &want)
		if !errors.Is(err, wantErr) || got.Term != want.Term || got.Index != want.Index {
			t.Fatalf("entry %d: %+v %v, want %+v %v", i, got, err, want, wantErr)
		}
		if cached := c.get(i); cached != nil {
			held++
			bytes += entryBytes(cached)
		} else if held > 0 && i <= last {
			t.Fatalf("entry %d is missing in the middle", i)
		}
	}
	pointers := uint64(0)
	for _, l := range c.ring {
		if l != nil {
			pointers++
		}
	}
	if held > uint64(most) || bytes > bound || bytes != c.bytes || held != c.n || pointers != held {
		t.Fatalf("%d entries, %d bytes, counted as %d and %d; %d in memory", held, bytes, c.n, c.bytes, pointers)
	}
}

// The newest entry is read from memory: the disk is not asked.
func TestCacheSparesDisk(t *testing.T) {
	f := &faulty{InmemStore: raft.NewInmemStore()}
	c := newCache(faultyLog(t, f, func(err error) { t.Errorf("fatal: %v", err) }), cachedEntries, cachedBytes)
	must(t, c.StoreLogs(entries(1, 100, 1)))
	f.err = errors.New("asked")
	for i := uint64(1); i <= 100; i++ {
		must(t, c.GetLog(i, new(raft.Log)))
	}
}
