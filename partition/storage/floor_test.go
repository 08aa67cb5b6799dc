package storage

import (
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// memoryFile is a File that knows what has not been synced.
type memoryFile struct {
	mu       sync.Mutex // guards the fields below
	data     []byte
	unsynced map[int64][]byte // by offset: what was there at the last sync
	broken   error
	syncing  func() // called while a sync is under way
}

func (m *memoryFile) ReadAt(p []byte, at int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at >= int64(len(m.data)) {
		return 0, io.EOF
	}
	n := copy(p, m.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memoryFile) WriteAt(p []byte, at int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return 0, m.broken
	}
	if m.data == nil {
		m.data = make([]byte, floorSlots*slotBytes)
		m.unsynced = map[int64][]byte{}
	}
	if _, ok := m.unsynced[at]; !ok {
		m.unsynced[at] = append([]byte(nil), m.data[at:at+slotBytes]...)
	}
	return copy(m.data[at:], p), nil
}

func (m *memoryFile) Sync() error {
	if m.syncing != nil {
		m.syncing()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return m.broken
	}
	clear(m.unsynced)
	return nil
}

func (m *memoryFile) Close() error { return nil }

// cut is what a power cut may leave: of each block that was written since the last sync the old state, the
// new one, or garbage.
func (m *memoryFile) cut(choose func() int) *memoryFile {
	m.mu.Lock()
	defer m.mu.Unlock()
	after := append([]byte(nil), m.data...)
	for at := int64(0); at < int64(len(after)); at += slotBytes {
		old, ok := m.unsynced[at]
		if !ok {
			continue
		}
		switch choose() {
		case 0:
			copy(after[at:], old)
		case 1:
		default:
			copy(after[at:], strings.Repeat("garbage!", 20))
		}
	}
	return &memoryFile{data: after, unsynced: map[int64][]byte{}}
}

// Through any sequence of notes, syncs and lowerings, a power cut leaves a floor that is true of a disk
// whose log was durable before each note: the log reaches it, with that entry, and term and vote are not
// behind it. After kill -9 it is exactly the last note.
func TestFloorAfterCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stop := &failStop{partition: "p7", fatal: func(err error) { t.Fatalf("fatal: %v", err) }}
		file := &memoryFile{}
		f, err := openFloor(file, "floor", stop, "p7", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }() // the last one that was opened
		var log []chainHash              // the entries 1, 2, …; durable
		var term uint64
		note := func() {
			r := floorRecord{at: Position{Index: uint64(len(log))}}
			if len(log) > 0 {
				r.chain = log[len(log)-1]
			}
			if err := f.note(func(now *floorRecord) { now.at, now.chain, now.term = r.at, r.chain, term }); err != nil {
				t.Fatal(err)
			}
		}
		check := func(file *memoryFile, exactly bool) (*floorRecord, int) {
			r, slot, err := readFloor(file)
			if err != nil {
				t.Fatalf("a good disk is refused: %v", err)
			}
			n := r.at.Index
			if n > uint64(len(log)) || n > 0 && log[n-1] != r.chain || r.term > term {
				t.Fatalf("the floor %+v is not true of %d entries at term %d", r, len(log), term)
			}
			if now := f.now(); exactly && *r != now {
				t.Fatalf("after kill -9: %+v, want %+v", *r, now)
			}
			return r, slot
		}
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				log = append(log, chainHash{byte(rapid.IntRange(1, 255).Draw(t, "entry")), byte(len(log))})
				note()
			},
			"append, then die": func(*rapid.T) { log = append(log, chainHash{1, byte(len(log))}) },
			"term":             func(*rapid.T) { term++; note() },
			"sync": func(*rapid.T) {
				if err := f.flush(); err != nil {
					t.Fatal(err)
				}
			},
			"truncate": func(t *rapid.T) {
				n := rapid.IntRange(0, len(log)).Draw(t, "left")
				at, chain := Position{Index: uint64(n)}, chainHash{}
				if n > 0 {
					chain = log[n-1]
				}
				if err := f.noteDurably(func(r *floorRecord) { r.at, r.chain = at, chain }); err != nil {
					t.Fatal(err)
				}
				check(file.cut(func() int { return rapid.IntRange(0, 2).Draw(t, "kept") }), false)
				log = log[:n]
			},
			"power": func(t *rapid.T) {
				after := file.cut(func() int { return rapid.IntRange(0, 2).Draw(t, "kept") })
				r, slot := check(after, false)
				if !rapid.Bool().Draw(t, "goes on there") {
					return
				}
				if err := f.Close(); err != nil {
					t.Fatal(err)
				}
				file = after
				if f, err = openFloor(file, "floor", stop, "p7", r, slot); err != nil {
					t.Fatal(err)
				}
				note() // as Open settles it
			},
			"": func(t *rapid.T) { check(file, true) },
		})
	})
}

// A power cut in the middle of a sync, with a note that came meanwhile, leaves what the sync before it had
// made durable, even if every block that was being written is garbage.
func TestFloorCutInSync(t *testing.T) {
	stop := &failStop{partition: "p7", fatal: func(err error) { t.Errorf("fatal: %v", err) }, bound: DefaultWriteTimeout}
	file := &memoryFile{}
	f, err := openFloor(file, "floor", stop, "p7", nil, 0)
	must(t, err)
	for round := uint64(1); round < 20; round++ {
		must(t, f.note(func(r *floorRecord) { r.term = 2 * round }))
		file.syncing = func() {
			must(t, f.note(func(r *floorRecord) { r.term = 2*round + 1 }))
			r, _, err := readFloor(file.cut(func() int { return 2 }))
			must(t, err)
			if r.term < 2*(round-1) {
				t.Errorf("round %d: term %d is left", round, r.term)
			}
		}
		must(t, f.flush())
		file.syncing = nil
	}
	must(t, f.Close())
}

// A record is read as it was written; with any single bit flipped, or cut short, it is not valid.
func TestFloorSlot(t *testing.T) {
	want := floorRecord{
		number: 7, at: Position{Term: 3, Index: 812}, chain: chainHash{1, 2, 3}, term: 4, voteTerm: 4,
		candidate: "n2@i", partition: "p7", condemned: "it disagrees",
	}
	b := want.encode()
	got, err := decodeSlot(b)
	must(t, err)
	if diff := cmp.Diff(want, *got, cmp.AllowUnexported(floorRecord{})); diff != "" {
		t.Error(diff)
	}
	for bit := range 8 * len(b) {
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := decodeSlot(b); err == nil {
			t.Errorf("bit %d flipped: it is valid", bit)
		}
		b[bit/8] ^= 1 << (bit % 8)
	}
	for n := range len(b) {
		if _, err := decodeSlot(b[:n]); err == nil {
			t.Errorf("cut to %d bytes it is valid", n)
		}
	}
}

// A slot decodes or is refused, whatever it holds, and what decodes is what would be written.
func FuzzFloorSlot(f *testing.F) {
	r := floorRecord{number: 1, partition: "p7", candidate: "n1@i"}
	f.Add(r.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeSlot(b)
		if err != nil {
			return
		}
		if again := r.encode(); string(again) != string(b[:len(again)]) {
			t.Errorf("%q is read as %+v, which is written as %q", b, r, again)
		}
	})
}

// A changed floor is synced in the background without being asked, and one that cannot be is fatal.
func TestFloorBackgroundSync(t *testing.T) {
	broken := errors.New("input/output error")
	for name, err := range map[string]error{"good": nil, "broken": broken} {
		t.Run(name, func(t *testing.T) {
			fatal := make(chan error, 1)
			stop := &failStop{partition: "p7", fatal: func(err error) { fatal <- err }, bound: DefaultWriteTimeout}
			file := &memoryFile{}
			f, openErr := openFloor(file, "floor", stop, "p7", nil, 0)
			must(t, openErr)
			must(t, f.note(func(r *floorRecord) { r.term = 9 }))
			if f.timer == nil {
				t.Fatal("no sync is due")
			}
			f.timer.Stop()
			file.broken = err
			f.background()
			select {
			case got := <-fatal:
				if !errors.Is(got, broken) || err == nil {
					t.Errorf("fatal: %v", got)
				}
			default:
				if err != nil {
					t.Error("the failure is not fatal")
				}
				r, _, readErr := readFloor(file.cut(func() int { return 0 }))
				must(t, readErr)
				if r.term != 9 {
					t.Errorf("term %d, want 9", r.term)
				}
			}
			_ = f.Close() // fails when broken
		})
	}
}
