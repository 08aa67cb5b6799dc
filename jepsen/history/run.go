package history

import "time"

// The files of a run's directory. Each .jsonl file holds one JSON object a line, as it happened; a last line that was
// cut off by the end of a process is left out by whoever reads it. The nodes' logs, *.log there or in logs/, are looked
// through for what a process must not say.
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
	// Least is what the run has to show at the least for its verdict to mean anything; nil: what its duration lets one
	// expect.
	Least *Least `json:"least,omitempty"`
}

// Least are the smallest counts with which a run shows something.
type Least struct {
	Allows  int64 `json:"allows"`
	Denials int64 `json:"denials"`
	Windows int64 `json:"windows"` // that were certainly full
	Leaders int64 `json:"leaders"` // changes of a leader
	Moves   int64 `json:"moves"`   // plans that were done
	Faults  int64 `json:"faults"`  // that were seen to be in effect
}

// Asked is one attempt as a client saw it: a line of AttemptsFile. Each check that anybody sends to the cluster for a
// principal of the run is recorded, whatever came of it: what is decided and was not asked for is a violation. A
// principal's id belongs to one check; only whoever tries out what comes of that uses it again for another class or
// cost.
type Asked struct {
	ID        string `json:"id"` // of the decision, as it was sent
	Principal string `json:"principal"`
	Class     string `json:"class"`
	Cost      int64  `json:"cost"`
	Workload  string `json:"workload"`
	Client    string `json:"client"`
	// Gateway is the identity that asks, where the clients have several.
	Gateway string `json:"gateway,omitempty"`
	Node    string `json:"node,omitempty"`
	// Peek says that only the usage was asked for: nothing is decided, and Answer.Limits says what is left.
	Peek     bool          `json:"peek,omitempty"`
	Sent     time.Duration `json:"sent_ns"`
	Received time.Duration `json:"received_ns"` // Never, without an answer
	Answer   Answer        `json:"answer"`
}

// Event is what was done to a cluster, or seen of it.
type Event struct {
	At    time.Duration `json:"at_ns"`
	Until time.Duration `json:"until_ns,omitempty"` // when what was begun at At was ended; 0 for an instant
	// Kind is one of: fault, heal, calm, operate (an operator's command), plan, policy, leader, epoch, end (of a process),
	// phase (of the run: faults, healed, core), note. A fault's What is its kind. A plan's What is how it ended, done or
	// undone, and its Text what it is for. Of an end, Value is the exit status, and it is one line for each process.
	Kind  string   `json:"kind"`
	What  string   `json:"what"`            // which fault, command, phase
	Nodes []string `json:"nodes,omitempty"` // that it was aimed at
	Group string   `json:"group,omitempty"` // the partition, or control
	Value uint64   `json:"value,omitempty"` // of a leader its term, of an epoch the epoch, of a plan its number
	Text  string   `json:"text,omitempty"`
	// Injected tells of a fault that it was seen to be in effect, rather than only asked for; of the end of a process,
	// that it was asked for, or is what damage that was done must lead to. Any other end is a violation.
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
	ID        string          `json:"id"`
	Gateway   string          `json:"gateway,omitempty"` // that asked; another one's same id is another decision
	Principal string          `json:"principal"`
	Class     string          `json:"class"`
	Cost      int64           `json:"cost"`
	Also      []AppliedCharge `json:"also,omitempty"`
	Reason    string          `json:"reason"`
	Replayed  bool            `json:"replayed,omitempty"`
	Recorded  bool            `json:"recorded,omitempty"`
	Revision  uint64          `json:"revision"`
	Slot      uint32          `json:"slot"`
	Epoch     uint64          `json:"epoch"` // of the slot where it was decided; 0 where it is not owned
}

// AppliedCharge is a further class that a decision charges.
type AppliedCharge struct {
	Class string `json:"class"`
	Cost  int64  `json:"cost"`
}
