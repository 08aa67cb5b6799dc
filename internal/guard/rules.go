package guard

// The rules of the state machine and of what feeds it, each as a guard: the exact cap, one result for each decision
// id, one owner, and partition time, which is never faster than real time, rest on them.
const (
	// AnswerAfterCommit: a decision is answered when its entry has been committed and applied. Else an allow was
	// told that no log holds.
	AnswerAfterCommit Guard = "answer-after-commit"
	// OwnershipEpoch: a slot is decided for only where it is owned, under its present epoch. Else an owner of
	// old goes on deciding.
	OwnershipEpoch Guard = "ownership-epoch"
	// ReplayAtRestart: what a process starts from holds the recorded decisions. Else an id is decided twice.
	ReplayAtRestart Guard = "replay-at-restart"
	// ReplayInSnapshot: a snapshot holds the recorded decisions. Else a replica that was sent one decides an id
	// twice.
	ReplayInSnapshot Guard = "replay-in-snapshot"
	// ReplayInHandoff: recorded decisions move with their slots. Else the next owner decides an id twice.
	ReplayInHandoff Guard = "replay-in-handoff"
	// WholeWindow: an admission counts for the whole window. Else a limit lets more in than it says.
	WholeWindow Guard = "whole-window"
	// WindowEdge: an admission counts until exactly a window has passed. Else it ends a nanosecond early.
	WindowEdge Guard = "window-edge"
	// AnchoredStamp: stamps go on from the partition time of the log; no wall clock has a say. Else a leader whose
	// wall clock is ahead lets everything expire.
	AnchoredStamp Guard = "anchored-stamp"
	// MonotoneTime: a stamp is not below the last one, nor an entry's time below that of the entry before. Else
	// time runs backwards in the log when a clock does.
	MonotoneTime Guard = "monotone-time"
	// ExactLimit: a limit of L lets in L. Else one more.
	ExactLimit Guard = "exact-limit"
	// PolicyInLog: a policy takes effect at one entry of the log, the same on all replicas. Else replicas decide
	// under different ones.
	PolicyInLog Guard = "policy-in-log"
	// SortedWalk: maps are walked in order where the order can be seen. Else replicas differ.
	SortedWalk Guard = "sorted-walk"
	// NewestInSnapshot: a snapshot holds all admissions up to its entry. Else who starts from it forgets the
	// newest.
	NewestInSnapshot Guard = "newest-in-snapshot"
	// FreezeStops: from the freeze on nothing is decided for slots that move. Else both ends of a split decide.
	FreezeStops Guard = "freeze-stops"
	// UsageInHandoff: admissions move with their slots. Else a split or a move hands out everything again.
	UsageInHandoff Guard = "usage-in-handoff"
	// SealedImport: an import is activated when it was found to be whole. Else what came last is missing.
	SealedImport Guard = "sealed-import"
	// WholeHorizon: a decision is repeated for the whole replay horizon. Else a late retry is decided again.
	WholeHorizon Guard = "whole-horizon"
	// CheckedAtApply: owner and policy revision are looked at where an entry is applied. Else what was queued
	// before a move or an install is decided after it.
	CheckedAtApply Guard = "checked-at-apply"
	// EndsInTime: an admission stops counting when its window has passed. Else callers are denied for ever.
	EndsInTime Guard = "ends-in-time"
	// Forgetting: what has ended is forgotten. Else the state grows without end.
	Forgetting Guard = "ended-is-forgotten"
	// FreeDenial: a denial consumes nothing. Else who is denied is denied the longer.
	FreeDenial Guard = "free-denial"
	// AllOrNothing: a check of several charges consumes all or none. Else the first ones are charged though the last
	// has no room.
	AllOrNothing Guard = "all-or-nothing"
	// CarriedRules: while a limit's history is not known, the rule before is enforced beside it. Else a name that
	// becomes listed has everything again.
	CarriedRules Guard = "carried-rules"
	// LatestDeadline: a denial names the instant at which all limits have room. Else who comes back then is denied
	// again.
	LatestDeadline Guard = "latest-deadline"

	// TermOfStamp (T1): an entry whose stamp was drawn in another term than it is logged in is refused whole. Else
	// the stamp of an earlier leadership sets the time of a later one.
	TermOfStamp Guard = "term-of-stamp"
	// FreshLeadership (T2): a leadership uses nothing that an earlier one of its node had drawn. Else it goes on
	// from a stamp that no entry carries. That it begins after an entry of its own is OwnTermBarrier.
	FreshLeadership Guard = "fresh-leadership"
	// Anchor (T3): each entry that others stamped, and each snapshot, is the new anchor. Else a leader goes by a
	// timeline that is faster than the log's.
	Anchor Guard = "newest-anchor"
	// StampAfterClose (T4): a batch is closed before its stamp is drawn. Else a check is stamped earlier than it
	// was asked.
	StampAfterClose Guard = "stamp-after-close"
	// SlowerClock (T5): of the machine's two clocks the slower counts. Else partition time is as fast as the time
	// service may slew.
	SlowerClock Guard = "slower-clock"
	// DriftSlowdown (T5): partition time is slowed by the drift bound. Else it is fast where the hardware is.
	DriftSlowdown Guard = "drift-slowdown"
	// AgesTravel (T6): the times of an import are moved by the difference of the two partitions' times. Else an
	// admission is older at the destination than it is.
	AgesTravel Guard = "ages-travel"
	// FrozenStill (T7): nothing in a frozen slot ends. Else what is copied is not what was frozen.
	FrozenStill Guard = "frozen-still"
)
