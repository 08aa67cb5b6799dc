package group

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/raftlog"
	"github.com/quorate/quorate/partition/storage"
)

// Timing is how long the group waits for what. The zero value means the defaults, which are for
// production; only tests have reason to go below a second with Heartbeat.
type Timing struct {
	// Heartbeat is how long a follower hears nothing of a leader before it asks for an election: 1 s.
	// Heartbeats wait for the disk here, so it must exceed the pauses that the disk makes.
	Heartbeat time.Duration
	// Election is how long a candidate waits for votes: Heartbeat. Not below Heartbeat.
	Election time.Duration
	// Lease is how long a leader goes on without a majority: half of Heartbeat. Not above Heartbeat.
	Lease time.Duration
	// Commit is how late an idle follower may learn of a commit: 50 ms.
	Commit time.Duration
	// Request is the deadline of one request to a peer: 2 s.
	Request time.Duration
	// Enqueue is how long Propose waits for Raft's main loop: 1 s.
	Enqueue time.Duration
	// Proposal is when a proposal without an outcome becomes ErrUnknown: 10 s.
	Proposal time.Duration
	// Write is how long a write may take before the disk counts as stuck: 10 s.
	Write time.Duration
	// Ready is how long a leader may be unable to apply an entry of its term before it hands over: 30 s.
	Ready time.Duration
	// Close bounds how long Close waits for Raft: 10 s.
	Close time.Duration
}

func (t *Timing) setDefaults() {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&t.Heartbeat, time.Second},
		{&t.Commit, 50 * time.Millisecond},
		{&t.Request, 2 * time.Second},
		{&t.Enqueue, time.Second},
		{&t.Proposal, 10 * time.Second},
		{&t.Write, storage.DefaultWriteTimeout},
		{&t.Ready, 30 * time.Second},
		{&t.Close, 10 * time.Second},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if t.Election == 0 {
		t.Election = t.Heartbeat
	}
	if t.Lease == 0 {
		t.Lease = t.Heartbeat / 2
	}
}

// Compaction says when the log is replaced by a snapshot. Sizes are bytes of entries, not entries: an
// entry is a batch. The zero value means the defaults.
type Compaction struct {
	// LogBytes since the last snapshot cause the next one: 64 MiB.
	LogBytes uint64
	// TrailingBytes of the newest entries stay, so that a follower that was away for a moment needs no
	// snapshot: 16 MiB.
	TrailingBytes uint64
}

const (
	defaultLogBytes      = 64 << 20
	defaultTrailingBytes = 16 << 20
	// minTrailing entries stay at least: one full AppendEntries, and far more than are ever in flight,
	// so that no follower needs a snapshot that ends inside what it still has to unlearn.
	minTrailing = maxAppendEntries
	// maxAppendEntries bounds a group commit and an AppendEntries request, 16 MiB at 256 KiB each.
	maxAppendEntries = 64
	// defaultMaxProposals bounds the proposals in flight.
	defaultMaxProposals = 256
)

// Config is what Open needs to open a group.
type Config struct {
	Group   string       // the group's id, unique in the cluster and never reused
	Network Network      // how the other replicas are reached
	Disk    storage.Disk // in a data directory that storage.Claim has claimed
	Self    Member       // this replica; Addr is what the others dial
	// First says that nothing was ever acknowledged from Disk for this group, so that it may be empty.
	First bool
	// Bootstrap is the first members, given on one replica when the group is made, and never again: unused
	// once the stores are not empty. A replica that a leader is going to reach has none.
	Bootstrap []Member
	// Admit, if set, is called when Disk has been read and found whole, and nothing changed on it yet, with
	// where it ends and the members as they are there. BeforeStart, if set, is called when the stores are
	// there and Raft has not started. An error of either ends the opening.
	Admit        func(last Position, members []Member) error
	BeforeStart  func() error
	Applier      Applier
	Timing       Timing
	Compaction   Compaction
	MaxProposals int // proposals in flight; 0 means 256
	// SnapshotSlots, if set, is shared by the groups of a node: its capacity is how many of them write
	// a snapshot at the same time.
	SnapshotSlots chan struct{}
	// Fatal ends the process with a message. It is called, from any goroutine and at most a few times,
	// when this replica must not go on and only a fresh start mends it.
	Fatal  func(error)
	Logger *slog.Logger // nil discards
}

func (c *Config) setDefaults() {
	c.Timing.setDefaults()
	if c.Compaction.LogBytes == 0 {
		c.Compaction.LogBytes = defaultLogBytes
	}
	if c.Compaction.TrailingBytes == 0 {
		c.Compaction.TrailingBytes = defaultTrailingBytes
	}
	if c.MaxProposals == 0 {
		c.MaxProposals = defaultMaxProposals
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// validate reports all problems at once.
func (c *Config) validate() error {
	var errs []error
	problem := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	problem(c.Group == "" || len(c.Group) > maxIDBytes, "Group must have 1 to %d bytes", maxIDBytes)
	problem(c.Disk == nil, "Disk must be set")
	problem(c.Network == nil, "Network must be set")
	problem(c.Applier == nil, "Applier must be set")
	problem(c.Fatal == nil, "Fatal must be set")
	if err := c.Self.validate(); err != nil {
		errs = append(errs, fmt.Errorf("config Self: %w", err))
	}
	problem(c.MaxProposals < 0, "MaxProposals must not be negative")
	problem(c.Compaction.TrailingBytes > c.Compaction.LogBytes,
		"Compaction.TrailingBytes must not exceed LogBytes")
	problem(c.Timing.Lease > c.Timing.Heartbeat, "Timing.Lease must not exceed Heartbeat")
	problem(c.Timing.Election < c.Timing.Heartbeat, "Timing.Election must not be below Heartbeat")
	self := len(c.Bootstrap) == 0
	for _, m := range c.Bootstrap {
		if err := m.validate(); err != nil {
			errs = append(errs, fmt.Errorf("config Bootstrap: %w", err))
		}
		problem(m.ID == c.Self.ID && m.Addr != c.Self.Addr, "Bootstrap and Self give %q different addresses", m.ID)
		self = self || m.ID == c.Self.ID
	}
	problem(!self, "Bootstrap does not list Self: leave it empty on a node that is to be added")
	if len(errs) > 0 {
		return fmt.Errorf("group %q: %w", c.Group, errors.Join(errs...))
	}
	return nil
}

// raftConfig is hashicorp/raft's part of the configuration.
func (c *Config) raftConfig() *raft.Config {
	r := raft.DefaultConfig()
	r.LocalID = c.Self.replicaID()
	r.HeartbeatTimeout = c.Timing.Heartbeat
	r.ElectionTimeout = c.Timing.Election
	r.LeaderLeaseTimeout = c.Timing.Lease
	r.CommitTimeout = c.Timing.Commit
	r.MaxAppendEntries = maxAppendEntries
	r.BatchApplyCh = false // the owner batches
	// A group that Raft shut down by itself could not be waited for before its files are closed. It need
	// not: a leader does not remove itself here, and who is not a member does not campaign.
	r.ShutdownOnRemove = false
	r.NotifyCh = nil // a full one would hold the main loop while a deposed leader still stamps
	// Compaction decides when to take a snapshot: Raft's own triggers count entries.
	r.SnapshotInterval = 24 * time.Hour
	r.SnapshotThreshold = math.MaxUint64
	r.TrailingLogs = minTrailing
	r.NoLegacyTelemetry = true
	r.Logger = raftlog.New(c.Logger, "raft")
	return r
}

func (c *Config) bootstrap() raft.Configuration {
	var out raft.Configuration
	for _, m := range c.Bootstrap {
		s := raft.Server{ID: m.replicaID(), Address: raft.ServerAddress(m.Addr), Suffrage: raft.Voter}
		if m.Learner {
			s.Suffrage = raft.Nonvoter
		}
		out.Servers = append(out.Servers, s)
	}
	return out
}
