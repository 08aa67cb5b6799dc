package fsm

// Reason says why a decision is what it is. Its text is the public name.
type Reason uint8

// The reasons. Their numbers are durable: recorded decisions keep them.
const (
	ReasonUnspecified Reason = iota
	// ReasonAllowed: admitted and counted.
	ReasonAllowed
	// ReasonQuotaExhausted, ReasonBlocked and ReasonEndpointDisabled are denials.
	ReasonQuotaExhausted
	ReasonBlocked
	ReasonEndpointDisabled
	// The others are refusals: the check was not decided and consumed nothing.
	ReasonInvalidArgument
	ReasonCostExceedsLimit
	ReasonDecisionIDConflict
	ReasonPolicyStale
	ReasonPolicyBehind
	ReasonWrongEpoch
	ReasonFrozen
	ReasonCapacity
	// ReasonStaleTerm: the whole entry was drawn by another leadership than the one that logged it.
	ReasonStaleTerm
	// ReasonUnborn: the partition has not been made yet.
	ReasonUnborn
	// ReasonPlanEnded: a step of a plan that has ended changes nothing.
	ReasonPlanEnded
	// ReasonPlanConflict: a step of a plan that does not fit what is here, now or later.
	ReasonPlanConflict
)

var reasonNames = [...]string{
	ReasonUnspecified:        "unspecified",
	ReasonAllowed:            "allowed",
	ReasonQuotaExhausted:     "quota_exhausted",
	ReasonBlocked:            "blocked",
	ReasonEndpointDisabled:   "endpoint_disabled",
	ReasonInvalidArgument:    "invalid_argument",
	ReasonCostExceedsLimit:   "cost_exceeds_limit",
	ReasonDecisionIDConflict: "decision_id_conflict",
	ReasonPolicyStale:        "policy_stale",
	ReasonPolicyBehind:       "policy_behind",
	ReasonWrongEpoch:         "wrong_epoch",
	ReasonFrozen:             "frozen",
	ReasonCapacity:           "capacity",
	ReasonStaleTerm:          "stale_term",
	ReasonUnborn:             "unborn",
	ReasonPlanEnded:          "plan_ended",
	ReasonPlanConflict:       "plan_conflict",
}

// String is the public name of r. An unknown reason has a name that nobody takes for an allow.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "unknown"
}

// Denied reports whether r is a denial: decided, and answered with a result and not with an error.
func (r Reason) Denied() bool {
	return r == ReasonQuotaExhausted || r == ReasonBlocked || r == ReasonEndpointDisabled
}

// Decision is the answer to one check.
type Decision struct {
	Reason Reason
	// Detail explains a refusal to a person: which field, which bound.
	Detail string
	// Limit names the limit that denied; empty unless ReasonQuotaExhausted.
	Limit string
	// Remaining is the smallest room over the limits that applied, after the decision.
	Remaining int64
	// RetryAt is the instant at which the same check fits if nobody else consumes; only with
	// ReasonQuotaExhausted.
	RetryAt Time
	// AsOf is the partition time of the entry that answered. For a replay it is later than the
	// recorded decision.
	AsOf Time
	// Revision and Version are the policy that decided; of a replay, the recorded one.
	Revision Revision
	Version  string
	Replayed bool
	// Recorded says that the same id will get this answer again until the replay horizon has passed.
	Recorded bool
	// Epoch is the slot's epoch where it is owned, for ReasonWrongEpoch; 0 where it is not.
	Epoch Epoch
	// Limits are the limits that applied, as they stand after the decision.
	Limits []LimitState
}

// Allowed reports whether the check was admitted.
func (d *Decision) Allowed() bool { return d.Reason == ReasonAllowed }

// LimitState is one applicable limit as it stands.
type LimitState struct {
	Name        string
	Max         int64
	WindowNanos int64
	// Used is the sum of the admissions that it counts, which is above Max where that was lowered; Remaining is what is
	// left of Max, never below 0.
	Used      int64
	Remaining int64
	// ResetAt is when its oldest admission expires; equal to AsOf when there is none.
	ResetAt Time
	// Carried marks a limit of an earlier revision that stays enforced until a longer one is exact.
	Carried bool
}

// Usage is the answer to a peek: ReasonAllowed when it could be told, else a refusal.
type Usage struct {
	Reason   Reason
	Detail   string
	Class    string // the class that counts: the listed one or default
	AsOf     Time
	Revision Revision
	Version  string
	Epoch    Epoch
	// Disabled: the class is switched off.
	Disabled bool
	// Remaining is the smallest room over Limits.
	Remaining int64
	Limits    []LimitState
}

// Answers are the results of one entry, in the order of its checks and peeks.
type Answers struct {
	// Refused is not ReasonUnspecified when the whole entry was refused, and changed nothing but the time.
	// An install is refused as frozen while a plan holds the policy. A step of a plan is refused as ended or
	// as a conflict for good; as policy_stale or policy_behind until the revision is the one asked for; and as
	// capacity where a bound would be passed.
	Refused   Reason
	Detail    string // explains a refusal to a person; may be empty
	Time      Time   // partition time after the entry
	Decisions []Decision
	Usages    []Usage
	Forgiven  *Forgiven // of a forgive
	Manifest  *Manifest // of a freeze and of a seal that were not refused
}
