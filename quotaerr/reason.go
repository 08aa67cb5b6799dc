package quotaerr

// Reason is the public name of why an answer is what it is.
type Reason string

// The reasons of a decision. A denial is an answer, not an error.
const (
	// Allowed: admitted and counted, on a majority of replicas.
	Allowed Reason = "allowed"
	// QuotaExhausted: a limit has no room at present.
	QuotaExhausted Reason = "quota_exhausted"
	// Blocked: a limit is 0; there is no time at which it would fit.
	Blocked Reason = "blocked"
	// EndpointDisabled: the class is switched off.
	EndpointDisabled Reason = "endpoint_disabled"
)

// The reasons of an error. All but OutcomeUnknown and Internal say that nothing was consumed.
const (
	// InvalidArgument: the request is malformed; Message names the field and the bound.
	InvalidArgument Reason = "invalid_argument"
	// CostExceedsLimit: the cost is above a limit and will never fit.
	CostExceedsLimit Reason = "cost_exceeds_limit"
	// DecisionIDConflict: the id is recorded with another class, tier or cost.
	DecisionIDConflict Reason = "decision_id_conflict"
	// Unauthenticated: the caller showed no identity that is accepted.
	Unauthenticated Reason = "unauthenticated"
	// PermissionDenied: the caller's identity may not do this.
	PermissionDenied Reason = "permission_denied"
	// PolicyStale: the request names an older policy revision than the partition's.
	PolicyStale Reason = "policy_stale"
	// PolicyBehind: the request names a newer policy revision than the partition's.
	PolicyBehind Reason = "policy_behind"
	// WrongEpoch: the principal's slot is not owned here under the epoch that the request names.
	WrongEpoch Reason = "wrong_epoch"
	// NotLeader: the node does not lead the principal's partition; Leader names who does, if known.
	NotLeader Reason = "not_leader"
	// Frozen: the principal's slot is about to move.
	Frozen Reason = "frozen"
	// Overloaded: a queue is full. Unavailable to the public caller whatever the failure mode.
	Overloaded Reason = "overloaded"
	// Capacity: a bound on keys or replay records is reached, and this check would add one.
	Capacity Reason = "capacity"
	// NoQuorum: no leader that a majority follows could be found in time.
	NoQuorum Reason = "no_quorum"
	// PolicyLeaseExpired: the leader cannot prove that its policy is the present one.
	PolicyLeaseExpired Reason = "policy_lease_expired"
	// OutcomeUnknown: the check was handed to the log, or sent to a node that may have done so, and
	// its fate is not known. A retry with the same decision id is safe.
	OutcomeUnknown Reason = "outcome_unknown"
	// Internal: a defect of the program. Nothing is known about what was consumed.
	Internal Reason = "internal"
)

var all = [...]Reason{
	Allowed, QuotaExhausted, Blocked, EndpointDisabled,
	InvalidArgument, CostExceedsLimit, DecisionIDConflict, Unauthenticated, PermissionDenied,
	PolicyStale, PolicyBehind, WrongEpoch, NotLeader, Frozen, Overloaded, Capacity, NoQuorum,
	PolicyLeaseExpired, OutcomeUnknown, Internal,
}

// All returns every reason, decisions first, in the order of their declaration.
func All() []Reason { return append([]Reason(nil), all[:]...) }

// Known reports whether r is one of the declared reasons.
func (r Reason) Known() bool {
	for _, k := range all {
		if r == k {
			return true
		}
	}
	return false
}

// IsDecision reports whether r is the reason of a decision rather than that of an error.
func (r Reason) IsDecision() bool {
	switch r {
	case Allowed, QuotaExhausted, Blocked, EndpointDisabled:
		return true
	default:
		return false
	}
}
