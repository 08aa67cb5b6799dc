package mutants

import (
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/jepsen/model"
)

// Layer is where a mutant is played.
type Layer string

// The layers.
const (
	Model   Layer = "model"   // the state machine alone, package model
	Sim     Layer = "sim"     // a simulated cluster, package sim
	Process Layer = "process" // real processes, package process
)

// Mutant is the product without one of its rules, and where it is found out.
type Mutant struct {
	// ID is m01 to m28, t1 to t7 for the rules of time, or r and a number for another rule of the decision, or g
	// and a number for a measure against what lies beneath; with a letter where a rule has several halves.
	ID    string
	Guard guard.Guard // that is off
	Rule  string      // what is then the case
	Layer Layer
	// Scenario is a profile of package model or sim, or a scenario of package process.
	Scenario string
	Checker  string // the invariant that has to break
}

// name is of the model's invariants.
func name(i model.Invariant) string { return string(i) }

// Catalogue are all mutants, in order of their ids. One rule may be found out in several places.
var Catalogue = []Mutant{
	{"m01", guard.SyncedWrite, "writes are not synced", Process, "power-cut", "durability"},
	{"m02", guard.AnswerAfterCommit, "answers come before the commit", Sim, "early-answers", "allow-kept"},
	{"m02", guard.AnswerAfterCommit, "answers come before the commit", Process, "cut-leader", "durability"},
	{"m03", guard.OwnershipEpoch, "epochs are ignored", Model, "moving", name(model.OneOwner)},
	{"m03", guard.OwnershipEpoch, "epochs are ignored", Process, "moves-under-load", "owner"},
	{"m04", guard.ReplayAtRestart, "a restart drops the replay records", Model, "restarts", name(model.OncePerID)},
	{"m04", guard.ReplayAtRestart, "a restart drops the replay records", Sim, "restarted-whole", "once-per-id"},
	{"m05a", guard.ReplayInSnapshot, "snapshots lack the replay records", Model, "restarts", name(model.OncePerID)},
	{"m05a", guard.ReplayInSnapshot, "snapshots lack the replay records", Sim, "sent-snapshot", "equal-states"},
	{"m05b", guard.ReplayInHandoff, "moves and splits lack the replay records", Model, "moving", name(model.OncePerID)},
	{"m06a", guard.WholeWindow, "admissions end 1 % early", Model, "steady", name(model.ExactCap)},
	{"m06a", guard.WholeWindow, "admissions end 1 % early", Sim, "mixed", "exact-cap"},
	{"m06b", guard.WindowEdge, "admissions end a nanosecond early", Model, "steady", name(model.CapInStamps)},
	{"m07", guard.AnchoredStamp, "a new leader goes by its wall clock", Model, "leaders", name(model.SlowTime)},
	{"m07", guard.AnchoredStamp, "a new leader goes by its wall clock", Sim, "mixed", "exact-cap"},
	{"m07", guard.AnchoredStamp, "a new leader goes by its wall clock", Process, "wall-ahead", "cap-log"},
	{"m08", guard.MonotoneTime, "stamps go back with a clock", Model, "leaders", name(model.MonotoneTime)},
	{"m09", guard.ExactLimit, "a limit of L lets in L+1", Model, "steady", name(model.ExactCap)},
	{"m09", guard.ExactLimit, "a limit of L lets in L+1", Sim, "mixed", "exact-cap"},
	{"m10a", guard.PolicyInLog, "a policy takes effect on one node", Sim, "unconfirmed", "equal-states"},
	{"m10b", guard.PolicyLease, "an old leader goes by an old policy", Sim, "unconfirmed", "policy-in-force"},
	{"m11", guard.SortedWalk, "maps are walked in any order", Model, "mixed", name(model.EqualStates)},
	{"m12", guard.NewestInSnapshot, "snapshots lack the newest admissions", Model, "restarts", name(model.UsageKept)},
	{"m12", guard.NewestInSnapshot, "snapshots lack the newest admissions", Sim, "sent-snapshot", "equal-states"},
	{"m13a", guard.FreezeStops, "both ends of a split accept", Model, "moving", name(model.OneOwner)},
	{"m13b", guard.UsageInHandoff, "the child of a split starts empty", Model, "moving", name(model.ExactCap)},
	{"m14", guard.SealedImport, "the target opens before the final tail", Model, "moving", name(model.UsageKept)},
	{"m15", guard.UnknownIsTold, "what is unknown is denied", Process, "held-replies", "definite"},
	{"m16", guard.OneID, "a retry has a new id", Process, "lost-answers", "replay"},
	{"m17", guard.FailStop, "errors of writes are ignored", Sim, "failing-disks", "live-after-heal"},
	{"m17", guard.FailStop, "errors of writes are ignored", Process, "disk-error", "process"},
	{"m18", guard.EntryChecksum, "checksums are not looked at", Sim, "flipped-under-way", "live-after-heal"},
	{"m19", guard.Instance, "a blank directory rejoins", Sim, "blank-disk", "equal-states"},
	{"m20", guard.HeartbeatQueue, "heartbeats take the fast path", Sim, "deposed-quietly", "equal-states"},
	{"m21", guard.VoteInOneWrite, "a vote is two writes", Sim, "half-vote", "vote-up-to-date"},
	{"m22", guard.LoggedPeek, "a replica tells what it knows itself", Process, "cut-follower", "sums"},
	{"m23", guard.OwnReadings, "readings of clocks outlive their process", Process, "longer-up", "cap-log"},
	{"m24", guard.WholeHorizon, "replay records end 1 % early", Model, "steady", name(model.OncePerID)},
	{"m25", guard.CheckedAtApply, "what was queued is not looked at again", Model, "moving", name(model.OneOwner)},
	{"m25", guard.CheckedAtApply, "what was queued is not looked at again", Model, "mixed", name(model.PolicyInOrder)},
	{"m26a", guard.EndsInTime, "admissions count for ever", Model, "steady", name(model.JustifiedDenial)},
	{"m26b", guard.Forgetting, "nothing is forgotten", Model, "steady", name(model.AllExpires)},
	{"m27", guard.FreeDenial, "a denial is charged", Model, "steady", name(model.JustifiedDenial)},
	{"m28", guard.EndedByLog, "what no state lists is deleted", Process, "restart-of-all", "cap-blackbox"},

	{"t1", guard.TermOfStamp, "a stamp of an earlier term counts", Model, "leaders", name(model.SlowTime)},
	{"t2a", guard.OwnTermBarrier, "stamps before an entry of the own term", Sim, "late-machine", "exact-cap"},
	{"t2b", guard.FreshLeadership, "an earlier leadership's stamp lives on", Model, "leaders", name(model.SlowTime)},
	{"t3", guard.Anchor, "the anchor is never replaced", Model, "leaders", name(model.SlowTime)},
	{"t3", guard.Anchor, "the anchor is never replaced", Model, "leaders", name(model.ExactCap)},
	{"t3", guard.Anchor, "the anchor is never replaced", Sim, "mixed", "exact-cap"},
	{"t4", guard.StampAfterClose, "stamps are drawn before the batch closes", Sim, "held-batches", "exact-cap"},
	{"t5a", guard.SlowerClock, "the faster clock counts", Model, "leaders", name(model.ExactCap)},
	{"t5a", guard.SlowerClock, "the faster clock counts", Sim, "mixed", "exact-cap"},
	{"t5b", guard.DriftSlowdown, "time is not slowed by the drift bound", Model, "leaders", name(model.SlowTime)},
	{"t6", guard.AgesTravel, "timestamps travel, not ages", Model, "moving", name(model.ExactCap)},
	{"t6", guard.AgesTravel, "timestamps travel, not ages", Model, "moving", name(model.Lives)},
	{"t7", guard.FrozenStill, "what is frozen goes on ending", Model, "moving", name(model.FrozenStill)},

	{"r1", guard.CarriedRules, "no rule is carried", Model, "policies", name(model.ExactCap)},
	{"r2", guard.AllOrNothing, "a check is charged in part", Model, "steady", name(model.JustifiedDenial)},
	{"r3", guard.LatestDeadline, "the first deadline is named", Model, "steady", name(model.RightWait)},

	{"g1", guard.CommitClamp, "what was not compared is committed", Sim, "rewound", "equal-states"},
	{"g2", guard.ProposalDeadline, "proposals have no deadline of their own", Sim, "slow-machine", "all-ends"},
	{"g3", guard.WriteWatchdog, "a write that hangs is waited for", Sim, "stuck-disk", "live-after-heal"},
	{"g4", guard.StuckTransfer, "a stuck transfer is waited for", Sim, "interrupted-transfers", "live-after-heal"},
	{"g5", guard.InstallCheck, "memory is not compared after installs", Sim, "conflicting-install", "live-after-heal"},
	{"g6", guard.ChainHash, "entries do not name the ones before", Sim, "lost-writes", "equal-states"},
	{"g7", guard.DurableFloor, "a cut log is not noticed", Sim, "cut-log", "equal-states"},
	{"g8", guard.Agreement, "a replica that went astray goes on", Sim, "wrong-state", "diverged-stops"},
}
