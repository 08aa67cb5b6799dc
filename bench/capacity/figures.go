package capacity

// Figure is one number that the arithmetic rests on.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Measured is false for what is a bound, an aim or an assumption.
	Measured bool   `json:"measured"`
	Source   string `json:"source"`
}

// Figures is the table. Each place says what its figure is of.
type Figures struct {
	// OwnerPerS is what one owner decides at most, with replicas that sync, on the machine of the source.
	OwnerPerS Figure
	// LeaderCPU and FollowerCPU are the processors' time per decision at an owner's leader and at each of its followers.
	LeaderCPU, FollowerCPU Figure
	// GatewayCPU is that of the SDK.
	GatewayCPU Figure
	// AskBytes and ReplicateBytes are on the wire per decision: between a gateway and the owner, both ways; and from the
	// leader to one follower, both ways.
	AskBytes, ReplicateBytes Figure
	// LogBytes are written per decision on each replica.
	LogBytes Figure
	// KeyBytes are held per principal and class with an admission, PairBytes per instant with admissions of it, and
	// RecordBytes per decision that may be asked for again.
	KeyBytes, PairBytes, RecordBytes Figure
	// KeyPairs bounds the pairs of a key; OwnerKeys and OwnerRecords bound an owner; NodeOwners are the owners that a
	// node leads at most.
	KeyPairs, OwnerKeys, OwnerRecords, NodeOwners Figure
	// Utilisation is the part of processors and owners that is planned for; MemoryFactor is the memory of a process over
	// what it holds, for the garbage collector and copies while a snapshot is written.
	Utilisation, MemoryFactor Figure
}

const (
	replicas = 3
	bound    = "default bound of a partition"
)

// Default is the table of this version.
func Default() Figures {
	const (
		// All processes, the generator too, shared two cores.
		machine = "2 cores for all: docs/performance.md"
		heap    = "go test ./bench/capacity -run - -bench Memory -benchtime 1x"
	)
	return Figures{
		OwnerPerS:      Figure{"decisions of one owner", 75_000, "per second", true, machine},
		LeaderCPU:      Figure{"CPU at the leader", 9.4, "µs per decision", true, machine},
		FollowerCPU:    Figure{"CPU at a follower", 5.6, "µs per decision", true, machine},
		GatewayCPU:     Figure{"CPU in the SDK", 7, "µs per decision", true, machine},
		AskBytes:       Figure{"gateway to owner and back", 161, "bytes per decision", true, machine},
		ReplicateBytes: Figure{"leader to a follower and back", 68, "bytes per decision", true, machine},
		LogBytes:       Figure{"log of a replica", 80, "bytes per decision", true, machine},
		KeyBytes:       Figure{"a key without admissions", 166, "bytes", true, heap},
		PairBytes:      Figure{"an instant with admissions", 16, "bytes", true, heap},
		RecordBytes:    Figure{"a replay record", 97, "bytes", true, heap},
		KeyPairs:       Figure{"instants per key", 4096, "", false, "bound of the state machine, which rounds older ones"},
		OwnerKeys:      Figure{"keys per owner", 5_000_000, "", false, bound + ", max_keys"},
		OwnerRecords:   Figure{"recorded allows per owner", 8_000_000, "", false, bound + ", max_replay_records"},
		NodeOwners:     Figure{"owners led by a node", 32, "", false, "advice: more groups on a disk make smaller batches"},
		Utilisation:    Figure{"planned utilisation", 0.5, "", false, "room for a lost zone, and for low latencies"},
		MemoryFactor:   Figure{"memory over what is held", 2, "", false, "garbage collector, copies during a snapshot"},
	}
}

// List is the table in its order.
func (f *Figures) List() []Figure {
	return []Figure{
		f.OwnerPerS, f.LeaderCPU, f.FollowerCPU, f.GatewayCPU, f.AskBytes, f.ReplicateBytes, f.LogBytes, f.KeyBytes,
		f.PairBytes, f.RecordBytes, f.KeyPairs, f.OwnerKeys, f.OwnerRecords, f.NodeOwners, f.Utilisation, f.MemoryFactor,
	}
}
