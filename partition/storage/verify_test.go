package storage

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// refuse opens a disk that must be refused as damaged, in one line with the given words, and unchanged.
func refuse(t *testing.T, c Config, dir string, want ...string) {
	t.Helper()
	if c.Partition == "" {
		c.Partition = "p7"
	}
	c.Fatal = func(err error) { t.Errorf("fatal: %v", err) }
	before := mustTree(t, dir)
	s, err := Open(c)
	if err == nil {
		must(t, s.Close())
		t.Fatalf("opened, want a refusal with %q", want)
	}
	if !errors.Is(err, ErrDamaged) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is not ErrDamaged in one line", err)
	}
	for _, w := range append(want, "partition p7", "quorate node replace") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
	if diff := cmp.Diff(before, mustTree(t, dir)); diff != "" {
		t.Errorf("the directory changed: %s", diff)
	}
}

// mustStores makes stores with the entries 1 to 20 and a vote, and closes them.
func mustStores(t *testing.T, c Config) {
	t.Helper()
	s := mustMake(t, c)
	must(t, s.Log.StoreLogs(entries(1, 20, 3)))
	must(t, s.Stable.SetUint64(keyTerm, 3))
	must(t, s.Stable.SetUint64(keyVoteTerm, 3))
	must(t, s.Stable.Set(keyVoteCandidate, []byte("n1")))
	must(t, s.Close())
}

// A disk from which something was acknowledged is refused when it is empty or a part is missing; one from
// which nothing was may be empty, or made in part by a start that was cut short.
func TestMissing(t *testing.T) {
	dir := t.TempDir()
	refuse(t, files(dir, WAL), dir, "is empty, but this node has acknowledged entries from it")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("something was made: %v, %v", entries, err)
	}
	for _, backend := range []Backend{WAL, BoltDB} {
		for _, p := range []Part{PartLog, PartStable, PartFloor} {
			t.Run(string(backend)+" "+string(p), func(t *testing.T) {
				dir := t.TempDir()
				c := files(dir, backend)
				mustStores(t, c)
				must(t, os.RemoveAll(c.Disk.Name(p)))
				refuse(t, c, dir, c.Disk.Name(p), "missing")
				c.First = true // the note that the stores are there was not written yet
				refuse(t, c, dir, c.Disk.Name(p), "missing")
			})
		}
	}
}

// A first start that was cut short after any of its steps goes on: every subset of what it makes, with
// a floor that is missing, empty, or cut short, but never other parts missing beside a floor.
func TestFirstStartCutShort(t *testing.T) {
	for _, backend := range []Backend{WAL, BoltDB} {
		whole := t.TempDir()
		must(t, mustMake(t, files(whole, backend)).Close())
		made := readTree(t, whole)
		log := walFolder
		if backend == BoltDB {
			log = boltFile
		}
		for name, keep := range map[string]func(tree){
			"log folder": func(f tree) { clear(f); f["wal/wal-meta.db.tmp"] = []byte("half") },
			"log":        func(f tree) { only(f, log) },
			"stable":     func(f tree) { only(f, log, stableFile) },
			"no floor":   func(f tree) { delete(f, floorFile) },
			"no slot":    func(f tree) { f[floorFile] = nil },
			"torn slot":  func(f tree) { f[floorFile] = f[floorFile][:9] },
			"all":        func(tree) {},
		} {
			if backend == BoltDB && name == "log folder" {
				continue
			}
			t.Run(string(backend)+" "+name, func(t *testing.T) {
				files := readTree(t, whole)
				keep(files)
				dir := t.TempDir()
				files.write(t, dir)
				c := Config{Disk: NewFiles(dir, backend, nil), Partition: "p7"}
				s := mustMake(t, c)
				must(t, s.Log.StoreLogs(entries(1, 3, 1)))
				must(t, s.Close())
				must(t, mustOpen(t, c).Close())
			})
		}
		if len(made) == 0 {
			t.Error("nothing was made")
		}
	}
}

func only(files tree, prefixes ...string) {
	for name := range files {
		if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			delete(files, name)
		}
	}
}

// A log that ends before what was acknowledged, or says something else there, is refused; one that goes on
// beyond is not: a crash came between the append and the floor.
func TestFloorAgainstLog(t *testing.T) {
	for _, backend := range []Backend{WAL, BoltDB} {
		change := func(name string, change func(l *log), want ...string) {
			t.Run(string(backend)+" "+name, func(t *testing.T) {
				dir := t.TempDir()
				c := files(dir, backend)
				mustStores(t, c)
				floor, err := os.ReadFile(c.Disk.Name(PartFloor))
				must(t, err)
				s := mustOpen(t, c)
				change(s.log)
				must(t, s.Close())
				must(t, os.WriteFile(c.Disk.Name(PartFloor), floor, 0o600))
				if len(want) > 0 {
					refuse(t, c, dir, append(want, c.Disk.Name(PartLog))...)
					return
				}
				s = mustOpen(t, c)
				last, err := s.Last()
				must(t, err)
				if now := s.floor.now(); now.at != last || now.chain != s.log.tail {
					t.Errorf("the floor is at %v, want %v", now.at, last)
				}
			})
		}
		change("shorter", func(l *log) { must(t, l.DeleteRange(18, 20)) },
			"ends at entry 17", "acknowledged entries up to 20")
		change("empty", func(l *log) { must(t, l.DeleteRange(1, 20)) }, "acknowledged entries up to 20")
		change("another", func(l *log) {
			must(t, l.DeleteRange(20, 20))
			must(t, l.StoreLogs(entries(20, 22, 4)))
		}, "another entry 20")
		change("longer", func(l *log) { must(t, l.StoreLogs(entries(21, 22, 3))) })
		change("same", func(*log) {})
	}
}

// An installed snapshot counts as acknowledged: when it is gone, the one before it does not take its place.
func TestFloorAgainstSnapshot(t *testing.T) {
	dir := t.TempDir()
	c := files(dir, WAL)
	s := mustMake(t, c)
	must(t, s.Log.StoreLogs(entries(1, 20, 3)))
	mustSnapshot(t, s, 15, 3)
	if at := s.floor.now().at; at != (Position{3, 20}) {
		t.Errorf("after a snapshot of its own the floor is at %v", at)
	}
	newer := mustSnapshot(t, s, 100, 4)
	if at := s.floor.now().at; at != (Position{4, 100}) {
		t.Errorf("after an installed snapshot the floor is at %v", at)
	}
	must(t, s.Log.DeleteRange(1, 20))
	must(t, s.Close())
	must(t, mustOpen(t, c).Close())
	must(t, os.RemoveAll(filepath.Join(dir, "snapshots", newer)))
	refuse(t, c, dir, "newest snapshot at 15", "acknowledged entries up to 100")
}

// The floor is lowered before a truncation, durably: a crash on either side of it is no damage, and what
// is gone is no longer asked for.
func TestTruncationLowersFloor(t *testing.T) {
	for name, tc := range map[string]struct {
		lowest uint64
		want   Position
	}{
		"tail": {18, Position{3, 17}}, "all": {1, Position{3, 5}}, "into the snapshot": {4, Position{3, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			f := &faulty{InmemStore: raft.NewInmemStore()}
			l := faultyLog(t, f, func(err error) { t.Errorf("fatal: %v", err) })
			must(t, l.StoreLogs(entries(1, 20, 3)))
			l.snapshots.newest.Store(&Position{3, 5})
			file := l.floor.file.(*memoryFile)
			f.truncating = func() {
				r, _, err := readFloor(file.cut(func() int { return 2 })) // what is not synced is lost
				must(t, err)
				if r.at != tc.want || tc.want.Index == 17 && r.chain == (chainHash{}) {
					t.Errorf("when the entries go the floor is durable at %v, want %v", r.at, tc.want)
				}
			}
			must(t, l.DeleteRange(tc.lowest, 20))
			if f.truncated != 1 {
				t.Error("nothing was truncated")
			}
		})
	}
}

// A table of term and vote that has gone back, or says another candidate, is refused; one that is ahead of
// the floor is not: a crash came between the two.
func TestFloorAgainstVotes(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(t *testing.T, s raft.StableStore)
		want   string
	}{
		"older term":        {func(t *testing.T, s raft.StableStore) { must(t, s.SetUint64(keyTerm, 2)) }, "at term 2, but this node has been at term 3"},
		"older vote":        {func(t *testing.T, s raft.StableStore) { mustVoteFor(t, s, 2, "n1") }, `voted for "n1" in term 2`},
		"another candidate": {func(t *testing.T, s raft.StableStore) { mustVoteFor(t, s, 3, "n2") }, `it voted for "n1" in term 3`},
		"no candidate":      {func(t *testing.T, s raft.StableStore) { mustVoteFor(t, s, 4, "") }, "not for whom"},
		"newer": {func(t *testing.T, s raft.StableStore) {
			must(t, s.SetUint64(keyTerm, 4))
			mustVoteFor(t, s, 4, "n2")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := files(dir, WAL)
			mustStores(t, c)
			floor, err := os.ReadFile(c.Disk.Name(PartFloor))
			must(t, err)
			s := mustOpen(t, c)
			tc.change(t, s.Stable)
			must(t, s.Close())
			must(t, os.WriteFile(c.Disk.Name(PartFloor), floor, 0o600))
			if tc.want != "" {
				refuse(t, c, dir, tc.want, c.Disk.Name(PartStable))
				return
			}
			s = mustOpen(t, c)
			now := s.floor.now()
			if now.ballot() != (ballot{4, 4, "n2"}) {
				t.Errorf("the floor says %v", now)
			}
		})
	}
}

func mustVoteFor(t *testing.T, s raft.StableStore, term uint64, candidate string) {
	t.Helper()
	must(t, s.SetUint64(keyVoteTerm, term))
	must(t, s.Set(keyVoteCandidate, []byte(candidate)))
}

// A value in the table of term and vote with one bit changed is refused, though it would be a later term.
func TestStableValue(t *testing.T) {
	dir := t.TempDir()
	c := files(dir, WAL)
	mustStores(t, c)
	db, err := bbolt.Open(c.Disk.Name(PartStable), 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(stableBucket)
		value := slices.Clone(b.Get(keyTerm))
		value[3] ^= 1
		return b.Put(keyTerm, value)
	}))
	must(t, db.Close())
	refuse(t, c, dir, `the checksum of "CurrentTerm" is wrong`)
}

// Files of bbolt are checked before bbolt maps them: a page that is not what it should be is named.
func TestBoltFilesAreChecked(t *testing.T) {
	for _, name := range []string{stableFile, boltFile} {
		dir := t.TempDir()
		c := files(dir, BoltDB)
		mustStores(t, c)
		data, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		for at := 2 * 4096; at < len(data); at += 4096 {
			data[at+1] ^= 0x40
		}
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
		refuse(t, c, dir, filepath.Join(dir, name), "says that it is page")
	}
}

// Stores that were condemned are refused with the reason from then on, also when one slot of the floor is
// damaged, and the reason is kept to one line and a bound.
func TestCondemn(t *testing.T) {
	dir := t.TempDir()
	c := files(dir, WAL)
	s := mustMake(t, c)
	must(t, s.Log.StoreLogs(entries(1, 5, 1)))
	must(t, s.Condemn("its state\ndisagrees "+strings.Repeat("x", 5000)))
	must(t, s.Close())
	refuse(t, c, dir, "its state disagrees xxx", "not to be used again")
	good, err := os.ReadFile(c.Disk.Name(PartFloor))
	must(t, err)
	for slot := range floorSlots {
		bad := slices.Clone(good)
		clear(bad[slot*slotBytes : min((slot+1)*slotBytes, len(bad))])
		must(t, os.WriteFile(c.Disk.Name(PartFloor), bad, 0o600))
		refuse(t, c, dir, "its state disagrees")
	}
}

// The floor of one group does not stand for another's stores.
func TestFloorOfAnotherGroup(t *testing.T) {
	dir := t.TempDir()
	c := files(dir, WAL)
	c.Partition = "p8"
	mustStores(t, c)
	refuse(t, files(dir, WAL), dir, `that of partition "p8"`)
}

// What could not be looked at is not called damage: replacing the replica would not help.
func TestNotDamage(t *testing.T) {
	dir := t.TempDir()
	c := Config{Disk: NewFiles(dir, BoltDB, nil), Partition: "p7", Fatal: func(error) {}}
	mustStores(t, files(dir, BoltDB))
	held, err := bbolt.Open(c.Disk.Name(PartStable), 0o600, nil)
	must(t, err)
	if _, err := Open(c); err == nil || errors.Is(err, ErrDamaged) {
		t.Errorf("a file that another process holds: %v", err)
	}
	must(t, held.Close())
	for _, err := range []error{fs.ErrPermission} {
		if errors.Is(damaged(err), ErrDamaged) {
			t.Errorf("%v is called damage", err)
		}
	}
	must(t, mustOpen(t, files(dir, BoltDB)).Close())
}

// faulting is a log whose reads touch memory that is mapped to a file which is gone, while they hold a
// lock that Close needs, as in bbolt.
type faulting struct {
	*faulty
	mapped []byte
	mu     sync.Mutex
}

func (f *faulting) GetLog(index uint64, l *raft.Log) error {
	f.mu.Lock()
	l.Index = uint64(f.mapped[0])
	f.mu.Unlock()
	return f.faulty.GetLog(index, l)
}

func (f *faulting) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return nil
}

// A fault in a mapped file is fatal, with a message, and not the end of the process without one; the log
// can be closed after it, although the fault left its locks held.
func TestSurviveFault(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mapped")
	must(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	file, err := os.Open(path)
	must(t, err)
	mapped, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	must(t, file.Close())
	var fatal []error
	f := &faulty{InmemStore: raft.NewInmemStore()}
	l := faultyLog(t, f, func(err error) { fatal = append(fatal, err) })
	must(t, l.StoreLogs(entries(1, 3, 1)))
	l.LogBackend = &faulting{faulty: f, mapped: mapped}
	must(t, os.Truncate(path, 0))
	if err := l.GetLog(2, new(raft.Log)); !errors.Is(err, ErrDamaged) || len(fatal) != 1 {
		t.Errorf("got %v, fatal %v", err, fatal)
	}
	must(t, l.Close())
	must(t, unix.Munmap(mapped))
}

// checkBolt passes what bbolt writes, large and small, with and without a list of free pages, and refuses
// every change to a page's header, whichever page of a tree it is.
func TestCheckBolt(t *testing.T) {
	for name, noFreelist := range map[string]bool{"freelist": false, "no freelist": true} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.db")
			db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: noFreelist, NoSync: true})
			must(t, err)
			for round := range 15 {
				must(t, db.Update(func(tx *bbolt.Tx) error {
					b, err := tx.CreateBucketIfNotExists([]byte("b"))
					if err != nil {
						return err
					}
					for i := range 40 {
						key := []byte{byte(i), byte(round * i)}
						if round%5 == 4 {
							err = b.Delete([]byte{byte(i), byte((round - 1) * i)})
						} else {
							err = b.Put(key, make([]byte, 100*i))
						}
						if err != nil {
							return err
						}
					}
					return nil
				}))
				if err := checkBolt(path); err != nil {
					t.Fatalf("round %d: a good file: %v", round, err)
				}
			}
			must(t, db.Close())
			data, err := os.ReadFile(path)
			must(t, err)
			check := &boltCheck{used: map[uint64]bool{}}
			check.file, err = os.Open(path)
			must(t, err)
			check.size = int64(len(data))
			must(t, check.meta())
			must(t, check.free())
			must(t, check.tree(check.root, nil, nil, 0))
			must(t, check.file.Close())
			heads := 0
			for id := range check.used {
				at := int(id) * int(check.pageSize)
				if binary.LittleEndian.Uint64(data[at:]) != id {
					continue // the rest of a page that is longer than one
				}
				if heads++; heads > 12 {
					break
				}
				for _, offset := range []int{0, 8} {
					bad := slices.Clone(data)
					bad[at+offset] ^= 0x40
					must(t, os.WriteFile(path, bad, 0o600))
					if err := checkBolt(path); err == nil {
						t.Errorf("page %d with byte %d of its header changed is taken for good", id, offset)
					}
				}
			}
			if heads < 5 {
				t.Errorf("only %d pages", heads)
			}
		})
	}
}

// The free space of a file system is asked for; a folder that is not there is an error that names it.
func TestFreeBytes(t *testing.T) {
	if n, err := FreeBytes(t.TempDir()); err != nil || n == 0 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := FreeBytes("/no/such/folder"); err == nil || !strings.Contains(err.Error(), "/no/such/folder") {
		t.Errorf("got %v", err)
	}
}
