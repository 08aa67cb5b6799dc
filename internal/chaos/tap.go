//go:build chaos && linux

package chaos

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/quorate/quorate/fsm"
)

// tapEnvironment names the variable with the folder, which must exist, that taps write to.
const tapEnvironment = "QUORATE_TAP"

// tapWaiting bounds the entries that are waiting to be written: when the file is as far behind, applying waits.
const tapWaiting = 256

// Tap tells what the entries of a log do to one replica. What it is told is kept in memory and written at once by
// somebody else; a process that is killed takes along what was told within the last instants.
type Tap struct {
	node, group string
	file        *tapFile // of all taps of the node; nil: nobody wants to know
}

// NewTap is the tap of a node's replica of a group.
func NewTap(node, group string) Tap {
	dir := os.Getenv(tapEnvironment)
	if dir == "" {
		return Tap{}
	}
	return Tap{node: node, group: group, file: tapFileOf(dir, node)}
}

// Line is what one entry did to a replica, or that a snapshot took the place of its state: a line of the file. Its
// form is the chaos suite's.
type Line struct {
	Monotonic int64     `json:"mono"` // the machine's CLOCK_MONOTONIC, undisturbed, in nanoseconds
	Node      string    `json:"node"`
	Group     string    `json:"group"`
	Index     uint64    `json:"index"`
	Term      uint64    `json:"term"`
	Kind      string    `json:"kind"`
	Stamp     int64     `json:"stamp"`
	Time      int64     `json:"time"`
	Revision  uint64    `json:"revision"`
	Refused   string    `json:"refused,omitempty"`
	Entry     string    `json:"entry"`
	Answers   string    `json:"answers"`
	State     string    `json:"state"`
	Restored  bool      `json:"restored,omitempty"`
	Decisions []Outcome `json:"decisions,omitempty"`
}

// Outcome is one decision of an entry, whatever it came to.
type Outcome struct {
	ID        string   `json:"id"`
	Gateway   string   `json:"gateway,omitempty"`
	Principal string   `json:"principal"`
	Class     string   `json:"class"`
	Cost      int64    `json:"cost"`
	Also      []Charge `json:"also,omitempty"`
	Reason    string   `json:"reason"`
	Replayed  bool     `json:"replayed,omitempty"`
	Recorded  bool     `json:"recorded,omitempty"`
	Revision  uint64   `json:"revision"`
	Slot      uint32   `json:"slot"`
	Epoch     uint64   `json:"epoch"` // of the slot, where it was decided; 0 where it is not owned
}

// Charge is a further class that a check asks to be charged.
type Charge struct {
	Class string `json:"class"`
	Cost  int64  `json:"cost"`
}

// told is a line that is still to be written: what only the machine knows at the moment, and the rest as it came.
type told struct {
	line    Line
	entry   *fsm.Entry
	answers *fsm.Answers
	places  []place // of the principals of the entry's checks
	written chan<- struct{}
}

type place struct {
	slot  fsm.Slot
	epoch fsm.Epoch
}

// Applied tells of an entry that has just been applied, the machine being as it left it. Nobody may change the entry
// and the answers any more.
func (t Tap) Applied(index, term uint64, data []byte, e *fsm.Entry, answers *fsm.Answers, m *fsm.Machine) {
	if t.file == nil {
		return
	}
	next := told{line: t.line(index, m), entry: e, answers: answers, places: make([]place, len(e.Checks))}
	next.line.Term, next.line.Kind, next.line.Stamp = term, e.Kind.String(), int64(e.Stamp)
	next.line.Time, next.line.Entry = int64(answers.Time), hashOf(data) // the log may use the bytes again
	for i := range e.Checks {
		p := &next.places[i]
		p.slot = m.SlotOf(e.Checks[i].Principal)
		p.epoch, _ = m.EpochOf(p.slot)
	}
	t.file.waiting <- next
}

// Restored tells of a snapshot that has just taken the place of the state.
func (t Tap) Restored(index uint64, m *fsm.Machine) {
	if t.file == nil {
		return
	}
	next := told{line: t.line(index, m)}
	next.line.Kind, next.line.Restored = "restore", true
	t.file.waiting <- next
}

// Flush returns when everything told is in the file.
func (t Tap) Flush() {
	if t.file == nil {
		return
	}
	written := make(chan struct{})
	t.file.waiting <- told{written: written}
	<-written
}

// line is what is to be told of any state.
func (t Tap) line(index uint64, m *fsm.Machine) Line {
	digest := m.Digest()
	return Line{
		Monotonic: monotonic(), Node: t.node, Group: t.group, Index: index,
		Time: int64(m.Now()), Revision: uint64(m.Revision()), State: hex.EncodeToString(digest[:]),
	}
}

// complete fills in what takes time.
func (n *told) complete() {
	if n.entry == nil {
		return
	}
	answers, err := json.Marshal(n.answers)
	if err != nil {
		panic(fmt.Sprintf("answers cannot be told: %v", err))
	}
	n.line.Answers = hashOf(answers)
	if n.answers.Refused != fsm.ReasonUnspecified {
		n.line.Refused = n.answers.Refused.String()
		return
	}
	n.line.Decisions = make([]Outcome, len(n.answers.Decisions))
	for i := range n.answers.Decisions {
		n.line.Decisions[i] = outcomeOf(&n.entry.Checks[i], &n.answers.Decisions[i], n.places[i])
	}
}

func outcomeOf(c *fsm.Check, d *fsm.Decision, p place) Outcome {
	o := Outcome{
		ID: c.DecisionID, Gateway: c.Gateway, Principal: c.Principal, Class: c.Class, Cost: c.Cost,
		Reason: d.Reason.String(), Replayed: d.Replayed, Recorded: d.Recorded, Revision: uint64(d.Revision),
		Slot: uint32(p.slot), Epoch: uint64(p.epoch),
	}
	for _, also := range c.Also {
		o.Also = append(o.Also, Charge{also.Class, also.Cost})
	}
	return o
}

// hashOf is a hash that is the same in every process.
func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// tapFile is the file of a node in this process.
type tapFile struct {
	waiting chan told
	file    *os.File
}

var (
	tapFilesMu sync.Mutex
	tapFiles   = map[string]*tapFile{} // by folder and node
)

// tapFileOf is the node's file in dir, which is made with the first free number.
func tapFileOf(dir, node string) *tapFile {
	tapFilesMu.Lock()
	defer tapFilesMu.Unlock()
	key := filepath.Join(dir, node)
	if f := tapFiles[key]; f != nil {
		return f
	}
	f := &tapFile{waiting: make(chan told, tapWaiting), file: createNext(dir, node)}
	tapFiles[key] = f
	go f.write()
	return f
}

func createNext(dir, node string) *os.File {
	for k := 1; ; k++ {
		name := filepath.Join(dir, fmt.Sprintf("applied-%s-%d.jsonl", node, k))
		file, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if os.IsExist(err) {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("%s=%s: %v", tapEnvironment, dir, err))
		}
		return file
	}
}

// tapChunk is how much is gathered for one write while more is waiting.
const tapChunk = 64 << 10

// write writes what is told, for as long as the process lives: at once when nothing more is waiting.
func (f *tapFile) write() {
	var chunk []byte
	for next := range f.waiting {
		if next.written == nil {
			next.complete()
			line, err := json.Marshal(&next.line)
			if err != nil {
				panic(fmt.Sprintf("%s: %v", f.file.Name(), err))
			}
			chunk = append(append(chunk, line...), '\n')
			if len(f.waiting) > 0 && len(chunk) < tapChunk {
				continue
			}
		}
		if _, err := f.file.Write(chunk); err != nil {
			panic(fmt.Sprintf("what was applied cannot be told: %v", err))
		}
		chunk = chunk[:0]
		if next.written != nil {
			close(next.written)
		}
	}
}
