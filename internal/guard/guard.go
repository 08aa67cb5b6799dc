package guard

// Guard is one safety measure.
type Guard string

// The guards. Each constant says what is done; without it, what its comment says can happen.
const (
	// HeartbeatQueue: heartbeats queue with all other requests. Else a deposed leader stamps entries with
	// a term that it does not lead (hashicorp/raft#695).
	HeartbeatQueue Guard = "heartbeat-queue"
	// CommitClamp: a request commits no entry that it has not verified. Else a stale suffix is applied.
	CommitClamp Guard = "commit-clamp"
	// VoteInOneWrite: term and candidate of a vote are one write. Else a crash between the two grants a
	// vote without a look at the candidate's log (hashicorp/raft#661).
	VoteInOneWrite Guard = "vote-in-one-write"
	// ProposalDeadline: a proposal ends by a deadline of its own. Else it may never (hashicorp/raft#498).
	ProposalDeadline Guard = "proposal-deadline"
	// WriteWatchdog: a write that does not come back ends the process. Else a leader whose disk hangs
	// keeps the place and serves nobody (hashicorp/raft#503).
	WriteWatchdog Guard = "write-watchdog"
	// StuckTransfer: leadership is handed only to a replica that follows, and a transfer that does not end all the
	// same ends the process. Else the leader refuses every entry for ever (hashicorp/raft#696).
	StuckTransfer Guard = "stuck-transfer"
	// OwnTermBarrier: a leader stamps after an entry of its own term has been applied here. Else it stamps
	// from a timeline that is not the newest.
	OwnTermBarrier Guard = "own-term-barrier"
	// InstallCheck: memory and disk are compared after a snapshot install. Else a replica may refuse what
	// follows for ever (hashicorp/raft#697).
	InstallCheck Guard = "install-check"
	// FailStop: the first failed write ends the process. Else what is taken for durable is not.
	FailStop Guard = "fail-stop"
	// SyncedWrite: a write is synced before it counts as done. Else a power cut takes back what was
	// acknowledged.
	SyncedWrite Guard = "synced-write"
	// EntryChecksum: an entry is checked each time it is read. Else a flipped bit is applied.
	EntryChecksum Guard = "entry-checksum"
	// ChainHash: an entry names its predecessor by a hash. Else a lost or exchanged entry goes unnoticed.
	ChainHash Guard = "chain-hash"
	// DurableFloor: a start compares the log with how far this node has acknowledged. Else a cut log
	// forgets what was acknowledged.
	DurableFloor Guard = "durable-floor"
	// Instance: a replica is known by the data directory it has, not only by its node. Else a blank
	// directory votes in place of the lost one.
	Instance Guard = "instance"
	// Agreement: replicas compare their states' digests at equal indexes. Else a replica that computed
	// something else serves on.
	Agreement Guard = "agreement"
	// PolicyLease: a leader decides only while a lease proves that its policy is the present one. Else one
	// that is cut off from the control group decides under a policy that everybody takes for replaced.
	PolicyLease Guard = "policy-lease"
)

// All are the guards that the simulations and the real processes switch off, in the order above, and then those
// of rules.go and of services.go.
var All = []Guard{
	HeartbeatQueue, CommitClamp, VoteInOneWrite, ProposalDeadline, WriteWatchdog, StuckTransfer,
	OwnTermBarrier, InstallCheck, FailStop, SyncedWrite, EntryChecksum, ChainHash, DurableFloor, Instance, Agreement,
	PolicyLease,

	AnswerAfterCommit, OwnershipEpoch, ReplayAtRestart, ReplayInSnapshot, ReplayInHandoff, WholeWindow, WindowEdge,
	AnchoredStamp, MonotoneTime, ExactLimit, PolicyInLog, SortedWalk, NewestInSnapshot, FreezeStops, UsageInHandoff,
	SealedImport, WholeHorizon, CheckedAtApply, EndsInTime, Forgetting, FreeDenial,
	AllOrNothing, CarriedRules, LatestDeadline,
	TermOfStamp, FreshLeadership, Anchor, StampAfterClose, SlowerClock, DriftSlowdown, AgesTravel, FrozenStill,

	UnknownIsTold, OneID, LoggedPeek, OwnReadings, EndedByLog,
}
