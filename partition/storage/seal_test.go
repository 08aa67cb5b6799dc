package storage

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
)

// sealedLog is a log in memory with the entries 1 to 9, and what is stored of it.
func sealedLog(t *testing.T) (*log, *raft.InmemStore, func() []error) {
	t.Helper()
	var fatal []error
	f := &faulty{InmemStore: raft.NewInmemStore()}
	l := faultyLog(t, f, func(err error) { fatal = append(fatal, err) })
	must(t, l.StoreLogs(entries(1, 9, 2)))
	return l, f.InmemStore, func() []error { return fatal }
}

func mustStored(t *testing.T, s *raft.InmemStore, index uint64) *raft.Log {
	t.Helper()
	var l raft.Log
	must(t, s.GetLog(index, &l))
	l.Extensions = append([]byte(nil), l.Extensions...)
	l.Data = append([]byte(nil), l.Data...)
	return &l
}

// What Raft appends is not touched, since it is on its way to followers at the same time, and what it
// reads is what it appended, Extensions and time included.
func TestSealIsStoredOnly(t *testing.T) {
	var fatal []error
	f := &faulty{InmemStore: raft.NewInmemStore()}
	l := faultyLog(t, f, func(err error) { fatal = append(fatal, err) })
	now := time.Now()
	appended := []*raft.Log{
		{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: []byte("a"), AppendedAt: now},
		{Index: 2, Term: 1, Data: []byte("b"), Extensions: []byte("mine")},
	}
	want := []raft.Log{*appended[0], *appended[1]}
	must(t, l.StoreLogs(appended))
	for i := range want {
		var got raft.Log
		must(t, l.GetLog(want[i].Index, &got))
		if diff := cmp.Diff(want[i], got); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(want[i], *appended[i]); diff != "" {
			t.Errorf("Raft's own: %s", diff)
		}
		if stored := mustStored(t, f.InmemStore, want[i].Index); len(stored.Extensions) <= len(want[i].Extensions) {
			t.Error("it is not stored with a seal")
		}
	}
}

// An entry with one bit changed anywhere, without a seal, with a seal of another version, or in another's
// place, is fatal when it is read, in one line that names file, partition and index and says what to do;
// the time of the append is not covered.
func TestReadDamage(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(s *raft.InmemStore, l *raft.Log)
		want   string
	}{
		"data":       {func(_ *raft.InmemStore, l *raft.Log) { l.Data[0] ^= 1 }, "checksum"},
		"term":       {func(_ *raft.InmemStore, l *raft.Log) { l.Term++ }, "checksum"},
		"type":       {func(_ *raft.InmemStore, l *raft.Log) { l.Type++ }, "checksum"},
		"before":     {func(_ *raft.InmemStore, l *raft.Log) { l.Extensions[7] ^= 1 }, "checksum"},
		"checksum":   {func(_ *raft.InmemStore, l *raft.Log) { l.Extensions[18] ^= 1 }, "checksum"},
		"extensions": {func(_ *raft.InmemStore, l *raft.Log) { l.Extensions = append(l.Extensions, 1) }, "checksum"},
		"boundary": {func(_ *raft.InmemStore, l *raft.Log) {
			n := len(l.Data) - 1
			l.Extensions, l.Data = append(l.Extensions, l.Data[n]), l.Data[:n]
		}, "checksum"},
		"version byte": {func(_ *raft.InmemStore, l *raft.Log) { l.Extensions[0] ^= 1 }, "version is damaged"},
		"version": {func(_ *raft.InmemStore, l *raft.Log) { l.Extensions[0], l.Extensions[17] = 2, 9 },
			"start the program version that wrote it"},
		"no seal": {func(_ *raft.InmemStore, l *raft.Log) { l.Extensions = nil }, "no seal"},
		"index": {func(s *raft.InmemStore, l *raft.Log) {
			var other raft.Log
			_ = s.GetLog(6, &other) // it is there
			*l = other
		}, "it is entry 6"},
		"time": {func(_ *raft.InmemStore, l *raft.Log) { l.AppendedAt = time.Now() }, "checksum"},
	} {
		t.Run(name, func(t *testing.T) {
			l, s, fatal := sealedLog(t)
			stored := mustStored(t, s, 5)
			tc.change(s, stored)
			b := &replaced{LogBackend: l.LogBackend, index: 5, entry: *stored}
			l.LogBackend = b
			err := l.GetLog(5, new(raft.Log))
			if tc.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if !errors.Is(err, ErrDamaged) || len(fatal()) != 1 {
				t.Fatalf("got %v, fatal %v", err, fatal())
			}
			for _, want := range []string{tc.want, "partition p7", "wal", "entry 5", "quorate node replace"} {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%q, want one line with %q", err, want)
				}
			}
		})
	}
}

// replaced gives another entry at one index.
type replaced struct {
	LogBackend
	index uint64
	entry raft.Log
}

func (r *replaced) GetLog(index uint64, l *raft.Log) error {
	if index == r.index {
		*l = r.entry
		return nil
	}
	return r.LogBackend.GetLog(index, l)
}

// A scan refuses an entry that is sound by itself but does not follow the one before it: one from another
// history, and one that begins a chain in the middle. A log whose head is gone is sound.
func TestChain(t *testing.T) {
	for name, change := range map[string]func(l *raft.Log) chainHash{
		"another history": func(*raft.Log) chainHash { return chainHash{1} },
		"begins anew":     func(*raft.Log) chainHash { return chainHash{} },
	} {
		t.Run(name, func(t *testing.T) {
			l, s, _ := sealedLog(t)
			if _, err := scanLog(l.LogBackend, "wal", 0, 0); err != nil {
				t.Fatalf("without damage: %v", err)
			}
			var own raft.Log
			must(t, l.GetLog(5, &own))
			sealed, _ := newSealer().seal([]*raft.Log{&own}, change(&own))
			b := &replaced{LogBackend: l.LogBackend, index: 5, entry: *sealed[0]}
			_, err := scanLog(b, "wal", 0, 0)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "it does not follow entry 4") {
				t.Errorf("got %v", err)
			}
			must(t, s.DeleteRange(1, 4))
			if _, err := scanLog(l.LogBackend, "wal", 0, 0); err != nil {
				t.Errorf("without a head: %v", err)
			}
		})
	}
}

// Every part of an entry, and every entry before it, is in its chain hash.
func TestChainHash(t *testing.T) {
	s := newSealer()
	base := raft.Log{Index: 1, Term: 2, Type: raft.LogCommand, Data: []byte("ab"), Extensions: []byte("cd")}
	seen := map[chainHash]string{s.hash(&base, base.Extensions, chainHash{}): "base"}
	for name, l := range map[string]raft.Log{
		"index":    {Index: 2, Term: 2, Data: base.Data, Extensions: base.Extensions},
		"term":     {Index: 1, Term: 3, Data: base.Data, Extensions: base.Extensions},
		"type":     {Index: 1, Term: 2, Type: raft.LogNoop, Data: base.Data, Extensions: base.Extensions},
		"data":     {Index: 1, Term: 2, Data: []byte("aB"), Extensions: base.Extensions},
		"ext":      {Index: 1, Term: 2, Data: base.Data, Extensions: []byte("cD")},
		"boundary": {Index: 1, Term: 2, Data: []byte("abc"), Extensions: []byte("d")},
	} {
		h := s.hash(&l, l.Extensions, chainHash{})
		if other, ok := seen[h]; ok {
			t.Errorf("%s and %s have one hash", name, other)
		}
		seen[h] = name
	}
	if _, ok := seen[s.hash(&base, base.Extensions, chainHash{1})]; ok {
		t.Error("the predecessor is not in it")
	}
}

// The chain goes on from the last entry that stays after a truncation, and begins anew in an empty log:
// what is stored afterwards is sound for a scan, with both backends.
func TestChainAfterTruncation(t *testing.T) {
	for _, backend := range []Backend{WAL, BoltDB} {
		t.Run(string(backend), func(t *testing.T) {
			c := files(t.TempDir(), backend)
			s := mustMake(t, c)
			must(t, s.Log.StoreLogs(entries(1, 20, 3)))
			must(t, s.Log.DeleteRange(15, 20))
			must(t, s.Log.StoreLogs(entries(15, 18, 4)))
			must(t, s.Close())
			s = mustOpen(t, c)
			if got := mustBounds(t, s.Log); got != [2]uint64{1, 18} {
				t.Errorf("log %v", got)
			}
			must(t, s.Log.DeleteRange(1, 18))
			if s.log.tail != (chainHash{}) {
				t.Error("an empty log has a predecessor for its next entry")
			}
			must(t, s.Log.StoreLogs(entries(1, 5, 5)))
			must(t, s.Close())
			s = mustOpen(t, c)
			if got := mustBounds(t, s.Log); got != [2]uint64{1, 5} {
				t.Errorf("log %v", got)
			}
		})
	}
}

// An append that leaves a gap is fatal, with either backend: a hole would be found at the next start only.
func TestAppendGap(t *testing.T) {
	l, _, fatal := sealedLog(t)
	if err := l.StoreLogs(entries(11, 11, 2)); err == nil || len(fatal()) != 1 {
		t.Errorf("got %v", err)
	}
}

// A seal is read or refused, whatever stands in its place.
func FuzzUnseal(f *testing.F) {
	sealed, _ := newSealer().seal(entries(1, 1, 1), chainHash{})
	f.Add(sealed[0].Extensions, sealed[0].Data)
	f.Fuzz(func(t *testing.T, extensions, data []byte) {
		l := raft.Log{Index: 1, Term: 1, Data: data, Extensions: extensions}
		before, err := newSealer().unseal(&l, 1)
		if err != nil {
			return
		}
		again, _ := newSealer().seal([]*raft.Log{&l}, before)
		if string(again[0].Extensions) != string(extensions) {
			t.Errorf("%x is read, but would be written as %x", extensions, again[0].Extensions)
		}
	})
}

// batch is n entries of a size from index on.
func batch(index uint64, n, size int) []*raft.Log {
	logs := make([]*raft.Log, n)
	for i := range logs {
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(rand.Uint32())
		}
		logs[i] = &raft.Log{Index: index + uint64(i), Term: 1, Data: data}
	}
	return logs
}

// BenchmarkStoreLogs is an append to files with seals and floor, and without both.
func BenchmarkStoreLogs(b *testing.B) {
	for name, size := range map[string][2]int{"1x64": {1, 64}, "64x200": {64, 200}, "1x65536": {1, 65536}} {
		for _, backend := range []Backend{WAL, BoltDB} {
			b.Run(name+"/"+string(backend)+"/plain", func(b *testing.B) {
				l, err := NewFiles(b.TempDir(), backend, nil).Log(false)
				must(b, err)
				defer func() { must(b, l.Close()) }()
				benchmarkAppend(b, l, size)
			})
			b.Run(name+"/"+string(backend)+"/sealed", func(b *testing.B) {
				s := mustMake(b, files(b.TempDir(), backend))
				benchmarkAppend(b, s.log, size)
			})
		}
	}
}

func benchmarkAppend(b *testing.B, l raft.LogStore, size [2]int) {
	logs := batch(1, size[0], size[1])
	b.SetBytes(int64(size[0] * size[1]))
	for b.Loop() {
		must(b, l.StoreLogs(logs))
		b.StopTimer()
		for _, l := range logs {
			l.Index += uint64(len(logs))
		}
		b.StartTimer()
	}
}

// BenchmarkSeal is the processor's part of it alone.
func BenchmarkSeal(b *testing.B) {
	for name, size := range map[string][2]int{"64x200": {64, 200}, "1x65536": {1, 65536}} {
		b.Run(name, func(b *testing.B) {
			logs, s := batch(1, size[0], size[1]), newSealer()
			b.SetBytes(int64(size[0] * size[1]))
			for b.Loop() {
				s.seal(logs, chainHash{1})
			}
		})
	}
}
