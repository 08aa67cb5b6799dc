package router

import "slices"

// The reasons of the wire contract that a route hangs on. An attempt that got no answer of the service at
// all, because a connection broke or a deadline passed, has the empty reason.
const (
	ReasonNotLeader      = "not_leader"
	ReasonWrongEpoch     = "wrong_epoch"
	ReasonFrozen         = "frozen"
	ReasonPolicyStale    = "policy_stale"
	ReasonPolicyBehind   = "policy_behind"
	ReasonOutcomeUnknown = "outcome_unknown"
)

const (
	// MaxSends is how often one decision is sent: once, and retried twice.
	MaxSends = 3
	// baseWaitNanos is the wait before a retry at an owner that is not ready, when it names none: 5 ms. It
	// doubles with each send.
	baseWaitNanos = int64(5_000_000)
	// mostDoublings bounds that wait: 160 ms.
	mostDoublings = 5
	// unsentWaitNanos bounds the wait while no node can be reached: 50 ms, so that one that is back is found soon.
	unsentWaitNanos = int64(50_000_000)
)

// Failure is an attempt that got no decision.
type Failure struct {
	Reason          string // of google.rpc.ErrorInfo; empty when there was no answer
	Epoch           uint64 // where the reason names one
	Leader          string // node id, where the reason names one
	LeaderAddr      string
	RetryAfterNanos int64 // as the answer asks for; 0 when it does not
	// Unsent: the request did not leave this process, so nothing can have been consumed.
	Unsent bool
}

// Attempts is what is known of one decision after an attempt failed.
type Attempts struct {
	Route Route    // of the failed attempt
	Asked []string // node ids, in the order of the attempts; the last one failed
	// SinceFirstNanos has passed since the first send, LeftNanos is left of the class's timeout.
	SinceFirstNanos int64
	LeftNanos       int64
	HorizonNanos    int64 // replay horizon of the class
	MaybeConsumed   bool  // as an earlier Step said
	Planned         bool  // as an earlier Step said
	// Unsent is how many of the attempts did not leave this process, as an earlier Step said.
	Unsent int
}

// Action is what to do next.
type Action uint8

// The actions. Give up is the zero.
const (
	GiveUp  Action = 0 // the class's failure mode decides, where the step says so, else the error goes to the caller
	Send    Action = 1 // to Node, with the same decision id, after WaitNanos
	Refresh Action = 2 // get a newer map or policy, look up again, then send, all within LeftNanos
)

// String is the action in words.
func (a Action) String() string {
	switch a {
	case GiveUp:
		return "give up"
	case Send:
		return "send"
	case Refresh:
		return "refresh"
	}
	return "unknown"
}

// Step is what to do after a failed attempt.
type Step struct {
	Action    Action
	Node      Node
	WaitNanos int64
	// MaybeConsumed: an attempt so far may have consumed. It never goes back.
	MaybeConsumed bool
	// Planned: an attempt so far met a move of slots or a change of policies. It never goes back.
	Planned bool
	// Unsent is how many attempts so far did not leave this process. They do not count against MaxSends.
	Unsent int
	// FailureMode: with GiveUp, the class's failure mode decides, because the owner could not be reached: the last
	// word is that nobody decides, or that nobody leads. It does not where an owner has answered that it is there:
	// while slots are moved, policies change or there is too much load, no gateway admits by itself. Nor does it where
	// the request is at fault, or where the answer is not understood.
	FailureMode bool
}

// Next is what to do after an attempt failed. An attempt that did not leave this process is no send: it is followed by
// one at another replica, at once while there is one that was not asked, and then after growing waits until there is no
// time left.
func Next(a Attempts, f Failure) Step {
	// An outcome that is not known may be an admission; no answer at all is the same. Other reasons are
	// definite noes for this attempt, but take back nothing of an earlier one.
	unknown := f.Reason == ReasonOutcomeUnknown || f.Reason == "" && !f.Unsent || !definite[f.Reason] && f.Reason != ""
	step := Step{MaybeConsumed: a.MaybeConsumed || unknown, Planned: a.Planned || planned[f.Reason], Unsent: a.Unsent}
	if f.Unsent {
		step.Unsent++
	}
	step.FailureMode = !step.Planned && (unanswered[f.Reason] || f.Reason == ReasonNotLeader && a.leaderless(f))
	if len(a.Asked)-step.Unsent >= MaxSends || a.LeftNanos <= 0 {
		return step
	}
	switch f.Reason {
	case ReasonNotLeader:
		step.Action = Send
		step.Node, step.WaitNanos = a.afterNotLeader(f)
	case ReasonWrongEpoch:
		step.Action, step.Node = Send, a.other()
		if f.Epoch == 0 || f.Epoch > a.Route.Epoch {
			step.Action, step.Node = Refresh, Node{}
		} else {
			step.WaitNanos = a.wait(f) // the node that was asked is behind the map
		}
	case ReasonFrozen, ReasonPolicyBehind:
		step.Action, step.Node, step.WaitNanos = Send, a.same(), a.wait(f)
	case ReasonPolicyStale:
		step.Action = Refresh
	case ReasonOutcomeUnknown:
		step.Action, step.Node, step.WaitNanos = Send, a.same(), f.RetryAfterNanos
	case "":
		step.Action, step.Node = Send, a.other()
		if f.Unsent && slices.Contains(a.Asked, step.Node.ID) {
			step.WaitNanos = a.unsentWait(step.Unsent) // no replica can be reached at present
		}
	default:
		return step // to be fixed, or for the failure mode: sending again would not help
	}
	if step.Action == Send && step.Node.ID == "" {
		step.Action = Refresh
	}
	return a.bounded(step)
}

// bounded gives up where the next send would come too late.
func (a Attempts) bounded(s Step) Step {
	late := a.HorizonNanos > 0 && a.SinceFirstNanos+s.WaitNanos > a.HorizonNanos/2
	if s.WaitNanos >= a.LeftNanos || late {
		s.Action, s.Node, s.WaitNanos = GiveUp, Node{}, 0
	}
	return s
}

// leaderless reports whether a not_leader says that nobody leads, as in an election. A first one that names another
// node says no more than that the map is behind. One that names nobody, or who denies it, says it. And so does any
// after another attempt: that one met a node which did not answer or did not lead, or it met a move, which counts
// as Planned, or it would have been the last.
func (a Attempts) leaderless(f Failure) bool {
	return f.Leader == "" || len(a.Asked) > 1 || slices.Contains(a.Asked, f.Leader)
}

// afterNotLeader is the leader that the error names, unless it has just denied to be one; else another
// replica.
func (a Attempts) afterNotLeader(f Failure) (Node, int64) {
	named := Node{ID: f.Leader, GRPC: f.LeaderAddr}
	for _, n := range a.Route.Replicas {
		if n.ID == f.Leader {
			named = n
		}
	}
	switch {
	case named.ID == "" || named.GRPC == "":
		return a.other(), a.wait(f) // an election may be on
	case slices.Contains(a.Asked, named.ID):
		return named, a.wait(f) // two nodes point at each other
	}
	return named, 0
}

// same is the node that was asked last.
func (a Attempts) same() Node {
	if len(a.Asked) == 0 {
		return a.Route.Node
	}
	last := a.Asked[len(a.Asked)-1]
	for _, n := range append([]Node{a.Route.Node}, a.Route.Replicas...) {
		if n.ID == last {
			return n
		}
	}
	return a.Route.Node
}

// other is a replica that has not been asked, or the one asked longest ago.
func (a Attempts) other() Node {
	best, bestAt := Node{}, len(a.Asked)
	for _, n := range append([]Node{a.Route.Node}, a.Route.Replicas...) {
		at := -1
		for i, id := range a.Asked {
			if id == n.ID {
				at = i
			}
		}
		if n.ID != "" && (best.ID == "" || at < bestAt) {
			best, bestAt = n, at
		}
	}
	return best
}

// wait is what the error asks for, or the own wait, which doubles.
func (a Attempts) wait(f Failure) int64 {
	return max(f.RetryAfterNanos, baseWaitNanos<<min(max(0, len(a.Asked)-1), mostDoublings))
}

// unsentWait is the wait before an attempt at a node that was asked before, after so many that did not leave this
// process: it doubles with each that was more than one a replica, and is half of what is left at most, so that the time
// is used to its end.
func (a Attempts) unsentWait(unsent int) int64 {
	more := max(0, unsent-max(1, len(a.Route.Replicas)))
	wait := min(baseWaitNanos<<min(more, mostDoublings), unsentWaitNanos)
	return min(wait, max(a.LeftNanos/2, baseWaitNanos))
}

// unanswered are the reasons for which nobody could decide: there was no answer, or one that says so.
var unanswered = map[string]bool{
	"": true, ReasonOutcomeUnknown: true, "no_quorum": true, "policy_lease_expired": true,
}

// planned are the reasons of an owner that is there, and in the middle of something that ends.
var planned = map[string]bool{
	ReasonFrozen: true, ReasonWrongEpoch: true, ReasonPolicyStale: true, ReasonPolicyBehind: true,
}

// definite are the reasons that say that nothing was consumed by the attempt.
var definite = map[string]bool{
	"invalid_argument": true, "cost_exceeds_limit": true, "decision_id_conflict": true,
	"unauthenticated": true, "permission_denied": true, ReasonPolicyStale: true, ReasonPolicyBehind: true,
	ReasonWrongEpoch: true, ReasonNotLeader: true, ReasonFrozen: true, "overloaded": true, "capacity": true,
	"no_quorum": true, "policy_lease_expired": true,
}
