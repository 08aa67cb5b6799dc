package history

import "time"

// The files of a run's directory. Each .jsonl file holds one JSON object a line, as it happened; a last line that was
// cut off by the end of a process is left out by whoever reads it.
const (
	ConfigFile   = "config.json"     // Config
	PolicyFile   = "policies.jsonl"  // Revision, each when it was known to be active, or at the end
	AttemptsFile = "attempts.jsonl"  // Asked
	EventsFile   = "events.jsonl"    // Event
	AppliedFiles = "applied-*.jsonl" // Applied, one file for each process of a node: applied-n0-1.jsonl
	ResultFile   = "result.json"     // what the checkers say
	PageFile     = "report.html"     // the same for people
	DataDir      = "data"            // the nodes' data directories, of a run that failed
)

// Config is what a run was asked for and what it found.
type Config struct {
	Name     string        `json:"name"` // of the mix of faults and workloads
	Seed     uint64        `json:"seed"`
	Program  string        `json:"program"` // what `quorate version` prints
	Mutant   string        `json:"mutant,omitempty"`
	Nodes    int           `json:"nodes"`
	Duration time.Duration `json:"duration_ns"`
	Began    time.Time     `json:"began"`
	// BeganMonotonic is CLOCK_MONOTONIC, in nanoseconds, at the instant from which the history counts.
	BeganMonotonic int64             `json:"began_monotonic_ns"`
	Available      map[string]bool   `json:"available"`         // what the machine has: namespaces, disks, time namespaces
	Skipped        map[string]string `json:"skipped,omitempty"` // what was left out, and why
	Workloads      []string          `json:"workloads"`
	Faults         []string          `json:"faults"` // kinds that may be drawn
}

// Asked is one attempt as a client saw it: a line of AttemptsFile.
type Asked struct {
	ID        string        `json:"id"`
	Principal string        `json:"principal"`
	Class     string        `json:"class"`
	Cost      int64         `json:"cost"`
	Workload  string        `json:"workload"`
	Client    string        `json:"client"`
	Node      string        `json:"node,omitempty"`
	Sent      time.Duration `json:"sent_ns"`
	Received  time.Duration `json:"received_ns"` // Never, without an answer
	Answer    Answer        `json:"answer"`
}

// Event is what was done to a cluster, or seen of it.
type Event struct {
	At    time.Duration `json:"at_ns"`
	Until time.Duration `json:"until_ns,omitempty"` // when what was begun at At was ended; 0 for an instant
	// Kind is one of: fault, heal, calm, operate (an operator's command), plan, policy, leader, epoch, end (of a process),
	// phase (of the run: faults, healed, core), note.
	Kind  string   `json:"kind"`
	What  string   `json:"what"`            // which fault, command, phase
	Nodes []string `json:"nodes,omitempty"` // that it was aimed at
	Group string   `json:"group,omitempty"` // the partition, or control
	Value uint64   `json:"value,omitempty"` // of a leader its term, of an epoch the epoch, of a plan its number
	Text  string   `json:"text,omitempty"`
	// Injected tells of a fault that it was seen to be in effect, rather than only asked for.
	Injected bool `json:"injected,omitempty"`
}

// Applied is what one entry did on one replica: a line of AppliedFiles, written by the program under test itself. What
// it says is checked against what clients saw, not believed.
type Applied struct {
	// Monotonic is the machine's true CLOCK_MONOTONIC when the entry had been applied, in nanoseconds.
	Monotonic int64  `json:"mono"`
	Node      string `json:"node"`
	Group     string `json:"group"` // the partition's id
	Index     uint64 `json:"index"`
	Term      uint64 `json:"term"`
	Kind      string `json:"kind"`
	Stamp     int64  `json:"stamp"` // that the entry carries; 0 without
	Time      int64  `json:"time"`  // partition time after it
	Revision  uint64 `json:"revision"`
	Refused   string `json:"refused,omitempty"`
	Entry     string `json:"entry"`   // hash of its bytes
	Answers   string `json:"answers"` // hash of what it answered
	State     string `json:"state"`   // digest of the state after it
	// Restored says that this is no entry but a snapshot that took the place of the state: Index and State are its.
	Restored  bool             `json:"restored,omitempty"`
	Decisions []AppliedOutcome `json:"decisions,omitempty"`
}

// AppliedOutcome is one decision of an entry.
type AppliedOutcome struct {
	ID        string `json:"id"`
	Principal string `json:"principal"`
	Class     string `json:"class"`
	Cost      int64  `json:"cost"`
	Reason    string `json:"reason"`
	Replayed  bool   `json:"replayed,omitempty"`
	Recorded  bool   `json:"recorded,omitempty"`
	Revision  uint64 `json:"revision"`
	Slot      uint32 `json:"slot"`
	Epoch     uint64 `json:"epoch"` // of the slot where it was decided
}
