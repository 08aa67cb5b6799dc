package storage

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files is a disk in dir.
func files(dir string, b Backend) Config { return Config{Disk: NewFiles(dir, b, nil)} }

// mustMake opens a disk for the first time.
func mustMake(t testing.TB, c Config) *Store {
	t.Helper()
	c.First = true
	return mustOpen(t, c)
}

func mustOpen(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Partition == "" {
		c.Partition = "p7"
	}
	if c.Fatal == nil {
		c.Fatal = func(err error) { t.Errorf("fatal: %v", err) }
	}
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // closed by the test itself where it matters
	return s
}

func entries(from, to, term uint64) []*raft.Log {
	var logs []*raft.Log
	for i := from; i <= to; i++ {
		logs = append(logs, &raft.Log{Index: i, Term: term, Data: fmt.Appendf(nil, "%d/%d", i, term)})
	}
	return logs
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustBounds(t testing.TB, l raft.LogStore) [2]uint64 {
	t.Helper()
	first, err := l.FirstIndex()
	must(t, err)
	last, err := l.LastIndex()
	must(t, err)
	return [2]uint64{first, last}
}

func mustSnapshot(t testing.TB, s *Store, index, term uint64) string {
	t.Helper()
	_, transport := raft.NewInmemTransport("a") // only encodes addresses here
	k, err := s.Snapshots.Create(1, index, term, raft.Configuration{}, 1, transport)
	must(t, err)
	_, err = k.Write([]byte("state"))
	must(t, err)
	must(t, k.Close())
	must(t, transport.Close())
	return k.ID()
}

// Entries, their sizes, the vote and the newest snapshot's index are there again after a reopen, with
// both backends.
func TestReopen(t *testing.T) {
	for _, backend := range []Backend{WAL, BoltDB} {
		t.Run(string(backend), func(t *testing.T) {
			c := files(filepath.Join(t.TempDir(), "p7"), backend)
			s := mustMake(t, c)
			must(t, s.Log.StoreLogs(entries(1, 20, 3)))
			must(t, s.Log.DeleteRange(19, 20))
			must(t, s.Stable.SetUint64([]byte("CurrentTerm"), 3))
			must(t, s.Stable.SetUint64(keyVoteTerm, 3))
			must(t, s.Stable.Set(keyVoteCandidate, []byte("b")))
			mustSnapshot(t, s, 5, 3)
			bytes := s.BytesAfter(5)
			must(t, s.Close())

			s = mustOpen(t, c)
			var got raft.Log
			must(t, s.Log.GetLog(18, &got))
			if string(got.Data) != "18/3" || mustBounds(t, s.Log) != [2]uint64{1, 18} {
				t.Errorf("entry %q, bounds %v", got.Data, mustBounds(t, s.Log))
			}
			if s.BytesAfter(5) != bytes || s.SnapshotIndex() != 5 {
				t.Errorf("bytes %d, want %d; snapshot %d, want 5", s.BytesAfter(5), bytes, s.SnapshotIndex())
			}
			for key, want := range map[string]uint64{"CurrentTerm": 3, "LastVoteTerm": 3, "other": 0} {
				if v, err := s.Stable.GetUint64([]byte(key)); v != want || err != nil {
					t.Errorf("%s = %d, %v; want %d", key, v, err, want)
				}
			}
			if m, ok := s.Log.(raft.MonotonicLogStore); !ok || !m.IsMonotonic() {
				t.Error("Raft would keep a log that may conflict with an installed snapshot")
			}
		})
	}
}

// A log of one backend is not taken for an empty one of the other.
func TestOtherBackend(t *testing.T) {
	dir := t.TempDir()
	must(t, mustMake(t, files(dir, WAL)).Close())
	for _, first := range []bool{true, false} {
		c := Config{Disk: NewFiles(dir, BoltDB, nil), Partition: "p7", First: first, Fatal: func(error) {}}
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), `set it back to "wal"`) {
			t.Errorf("first %v: got %v", first, err)
		}
	}
}

// Between the two calls in which Raft writes a vote nothing is on the disk; after the second both
// parts are. A crash between them (here: a copy of the file) leaves the old vote whole.
func TestVoteIsOneWrite(t *testing.T) {
	dir := t.TempDir()
	s := mustMake(t, files(dir, WAL))
	must(t, s.Stable.SetUint64(keyVoteTerm, 4))
	must(t, s.Stable.Set(keyVoteCandidate, []byte("old")))
	must(t, s.Stable.SetUint64(keyVoteTerm, 5))
	if v, err := s.Stable.GetUint64(keyVoteTerm); v != 5 || err != nil {
		t.Errorf("the vote's term reads %d, %v; want 5", v, err)
	}
	if diff := cmp.Diff([]string{"4", "old"}, mustVote(t, dir)); diff != "" {
		t.Errorf("between the calls: %s", diff)
	}
	must(t, s.Stable.SetUint64([]byte("CurrentTerm"), 5)) // another key carries no vote along
	if diff := cmp.Diff([]string{"4", "old"}, mustVote(t, dir)); diff != "" {
		t.Errorf("after another key: %s", diff)
	}
	before := mustTxID(t, s)
	must(t, s.Stable.Set(keyVoteCandidate, []byte("new")))
	after := mustTxID(t, s)
	if diff := cmp.Diff([]string{"5", "new"}, mustVote(t, dir)); diff != "" {
		t.Errorf("after both calls: %s", diff)
	}
	if after != before+1 {
		t.Errorf("%d transactions, want 1", after-before)
	}
}

// mustTxID is the number of the last committed transaction.
func mustTxID(t *testing.T, s *Store) (id int) {
	t.Helper()
	must(t, s.stable.table.(*boltTable).db.View(func(tx *bbolt.Tx) error {
		id = tx.ID()
		return nil
	}))
	return id
}

// mustVote is the vote in a copy of the stable store's file, as a restart would find it.
func mustVote(t *testing.T, dir string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "stable.db"))
	must(t, err)
	file := filepath.Join(t.TempDir(), "copy.db")
	must(t, os.WriteFile(file, data, 0o600))
	table, err := openTable(file, false)
	must(t, err)
	s := &stable{table: table, file: file}
	term, err := s.GetUint64(keyVoteTerm)
	must(t, err)
	candidate, err := s.Get(keyVoteCandidate)
	must(t, err)
	must(t, s.Close())
	return []string{fmt.Sprint(term), string(candidate)}
}

// faulty is a log that fails, or hangs, when told to.
type faulty struct {
	*raft.InmemStore
	err  error
	hang chan struct{}

	truncating func() // called before a truncation
	truncated  int
}

func (f *faulty) Close() error { return nil }

func (f *faulty) StoreLogs(logs []*raft.Log) error {
	if f.hang != nil {
		<-f.hang
	}
	if f.err != nil {
		return f.err
	}
	return f.InmemStore.StoreLogs(logs)
}

func (f *faulty) DeleteRange(lowest, highest uint64) error {
	if f.err != nil {
		return f.err
	}
	if f.truncating != nil {
		f.truncating()
	}
	f.truncated++
	return f.InmemStore.DeleteRange(lowest, highest)
}

func (f *faulty) GetLog(index uint64, l *raft.Log) error {
	if f.err != nil {
		return f.err
	}
	return f.InmemStore.GetLog(index, l)
}

func faultyLog(t testing.TB, f *faulty, fatal func(error)) *log {
	stop := &failStop{partition: "p7", fatal: fatal, bound: 10 * time.Second}
	floor, err := openFloor(&memoryFile{}, "floor", stop, "p7", nil, 0)
	must(t, err)
	t.Cleanup(func() { _ = floor.Close() }) // it may have failed, as the test wants
	s := &snapshots{floor: floor}
	s.newest.Store(&Position{})
	return &log{
		writing:    newTurn(),
		LogBackend: f, file: "wal", stop: stop, stored: func() {}, ledger: &ledger{}, sealer: newSealer(),
		floor: floor, snapshots: s,
	}
}

// A failed append, truncation or read calls the hook once with partition and file, is reported to
// Raft, and nothing is written afterwards, though the disk would take it.
func TestFailStop(t *testing.T) {
	broken := errors.New("input/output error")
	for name, operation := range map[string]func(l *log) error{
		"append":     func(l *log) error { return l.StoreLogs(entries(2, 2, 1)) },
		"truncation": func(l *log) error { return l.DeleteRange(1, 1) },
		"read":       func(l *log) error { return l.GetLog(1, new(raft.Log)) },
	} {
		t.Run(name, func(t *testing.T) {
			var fatal []error
			f := &faulty{InmemStore: raft.NewInmemStore()}
			l := faultyLog(t, f, func(err error) { fatal = append(fatal, err) })
			must(t, l.StoreLogs(entries(1, 1, 1)))
			f.err = broken
			if err := operation(l); !errors.Is(err, broken) {
				t.Errorf("got %v", err)
			}
			f.err = nil
			if err := l.StoreLog(entries(2, 2, 1)[0]); !errors.Is(err, broken) {
				t.Errorf("a write after the failure: %v", err)
			}
			if last, _ := f.LastIndex(); last != 1 {
				t.Errorf("entry %d was written after the failure", last)
			}
			if len(fatal) != 1 || !strings.Contains(fatal[0].Error(), "partition p7") ||
				!strings.Contains(fatal[0].Error(), "wal") {
				t.Errorf("fatal %v, want one that names partition and file", fatal)
			}
		})
	}
}

// Entries that compaction removed are gone with both backends, those behind them are there.
func TestTruncateHead(t *testing.T) {
	for _, backend := range []Backend{WAL, BoltDB} {
		t.Run(string(backend), func(t *testing.T) {
			s := mustMake(t, files(t.TempDir(), backend))
			must(t, s.Log.StoreLogs(entries(1, 20, 3)))
			must(t, s.Log.DeleteRange(1, 15))
			if err := s.Log.GetLog(15, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
				t.Errorf("entry 15: %v, want ErrLogNotFound", err)
			}
			must(t, s.Log.GetLog(16, new(raft.Log)))
			if got := s.EntriesWithin(math.MaxUint64); got != 5 {
				t.Errorf("%d entries, want 5", got)
			}
		})
	}
}

// An entry that is simply not there is no failure.
func TestMissingEntryIsNotFatal(t *testing.T) {
	l := faultyLog(t, &faulty{InmemStore: raft.NewInmemStore()}, func(err error) { t.Errorf("fatal: %v", err) })
	if err := l.GetLog(7, new(raft.Log)); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("got %v", err)
	}
}

// A vote that cannot be written is fatal and is not taken for given.
func TestFailStopVote(t *testing.T) {
	fatal := 0
	s := mustMake(t, Config{Disk: NewFiles(t.TempDir(), WAL, nil), Fatal: func(error) { fatal++ }})
	must(t, s.stable.table.Close())
	_ = s.Stable.SetUint64(keyVoteTerm, 9)
	if err := s.Stable.Set(keyVoteCandidate, []byte("b")); !errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		t.Errorf("got %v", err)
	}
	if fatal != 1 || s.Err() == nil {
		t.Errorf("fatal %d times, store error %v", fatal, s.Err())
	}
	if err := s.Log.StoreLogs(entries(1, 1, 1)); err == nil {
		t.Error("the log goes on after the vote was lost")
	}
}

// An append that does not come back calls the hook after the bound, not before, and fails although the
// disk takes it in the end.
func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fatal := make(chan error, 1)
		f := &faulty{InmemStore: raft.NewInmemStore(), hang: make(chan struct{})}
		l := faultyLog(t, f, func(err error) { fatal <- err })
		done := make(chan error)
		go func() { done <- l.StoreLogs(entries(1, 1, 1)) }()
		start := time.Now()
		if err := <-fatal; !strings.Contains(err.Error(), "disk is stuck") {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d != 10*time.Second {
			t.Errorf("after %v, want 10s", d)
		}
		close(f.hang)
		if err := <-done; err == nil {
			t.Error("the append counts as done")
		}
	})
}

// After a crash between the install of a snapshot and the removal of the old log, the log that the
// snapshot covers, or contradicts, is gone, and the next entry can be appended; one that goes on from
// it stays.
func TestReconcile(t *testing.T) {
	for name, tc := range map[string]struct {
		from, to, term uint64
		want           [2]uint64
	}{
		"covered":     {1, 20, 2, [2]uint64{0, 0}},
		"contradicts": {1, 40, 2, [2]uint64{0, 0}},
		"goes on":     {1, 40, 3, [2]uint64{1, 40}},
		"adjacent":    {31, 40, 3, [2]uint64{31, 40}},
	} {
		for _, backend := range []Backend{WAL, BoltDB} {
			t.Run(name+" "+string(backend), func(t *testing.T) {
				c := files(t.TempDir(), backend)
				s := mustMake(t, c)
				must(t, s.Log.StoreLogs(entries(tc.from, tc.to, tc.term)))
				mustSnapshot(t, s, 30, 3)
				must(t, s.Close())
				s = mustOpen(t, c)
				if got := mustBounds(t, s.Log); got != tc.want {
					t.Errorf("log %v, want %v", got, tc.want)
				}
				next := max(30, tc.want[1]) + 1
				must(t, s.Log.StoreLogs(entries(next, next, 4)))
			})
		}
	}
}

// A log that begins after the newest snapshot, and a newest snapshot that cannot be read, are refused.
func TestRefuseLoss(t *testing.T) {
	c := Config{Disk: NewFiles(t.TempDir(), WAL, nil), Partition: "p7", Fatal: func(error) {}}
	s := mustMake(t, c)
	must(t, s.Log.StoreLogs(entries(50, 60, 3)))
	mustSnapshot(t, s, 30, 3)
	must(t, s.Close())
	if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "what is between is gone") {
		t.Errorf("a gap: %v", err)
	}

	dir := t.TempDir()
	c.Disk = NewFiles(dir, WAL, nil)
	s = mustMake(t, c)
	older := mustSnapshot(t, s, 30, 3)
	newer := mustSnapshot(t, s, 40, 3)
	state := filepath.Join(dir, "snapshots", newer, "state.bin")
	must(t, os.WriteFile(state, []byte("stat!"), 0o600))
	if _, _, err := s.Snapshots.Open(newer); err == nil {
		t.Error("a damaged snapshot was opened")
	}
	if _, _, err := s.Snapshots.Open(older); err == nil || s.Started() == nil {
		t.Error("Raft may start from an older snapshot than the damaged one")
	}
	must(t, s.Close())
	must(t, os.WriteFile(filepath.Join(dir, "snapshots", newer, "meta.json"), []byte("{"), 0o600))
	if _, err := Open(c); err == nil || !strings.Contains(err.Error(), newer) {
		t.Errorf("damaged meta data: %v", err)
	}
}

// A snapshot whose file cannot be written is fatal.
func TestFailStopSnapshot(t *testing.T) {
	fatal := 0
	s := mustMake(t, Config{Disk: NewFiles(t.TempDir(), WAL, nil), Fatal: func(error) { fatal++ }})
	must(t, os.RemoveAll(s.snapshots.name))
	must(t, os.WriteFile(s.snapshots.name, nil, 0o600)) // a file where the folder was
	_, transport := raft.NewInmemTransport("a")
	if _, err := s.Snapshots.Create(1, 9, 1, raft.Configuration{}, 1, transport); err == nil || fatal != 1 {
		t.Errorf("got %v, fatal %d times", err, fatal)
	}
	must(t, transport.Close())
}
