package sdk

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Source says who decided.
type Source uint8

// The sources. Only what the owner has decided is verified; the rest is what this gateway knows or was told to do.
const (
	// SourceNone is the zero: nobody decided, and nothing is allowed.
	SourceNone Source = iota
	// SourceOwner is the owner of the principal's partition: an allow is committed on a majority.
	SourceOwner
	// SourceHint is a deny hint: the owner denied the same check a moment ago, and told until when.
	SourceHint
	// SourceConfig is the watched configuration: the class is switched off.
	SourceConfig
	// SourceBypass is the failure mode allow: let through, counted by nobody's limit.
	SourceBypass
	// SourceLocal is the failure mode local: a limit of this gateway's own had room.
	SourceLocal
)

// String is the source in a word.
func (s Source) String() string {
	switch s {
	case SourceOwner:
		return "owner"
	case SourceHint:
		return "hint"
	case SourceConfig:
		return "config"
	case SourceBypass:
		return "bypass"
	case SourceLocal:
		return "local"
	case SourceNone:
	}
	return "none"
}

// Decision is what was decided of one check. The zero Decision allows nothing.
type Decision struct {
	// Allowed: the request may go on.
	Allowed bool
	// Source says who decided. With SourceBypass and SourceLocal the owner could not be reached, and Cause says why.
	Source Source
	// Reason is allowed, quota_exhausted, blocked or endpoint_disabled; empty with SourceBypass and SourceLocal.
	Reason string
	// Limit is the limit that denied; empty unless quota_exhausted.
	Limit string
	// Remaining is the smallest room over the limits that applied, after the decision.
	Remaining int64
	// RetryAfter is how long to wait until the same check fits if nobody else consumes, from when this decision is
	// returned; 0 when no time is known.
	RetryAfter time.Duration
	// RetryAt is the same instant by this machine's wall clock; zero when no time is known.
	RetryAt time.Time
	// PolicyVersion and PolicyRevision are of the policy that decided.
	PolicyVersion  string
	PolicyRevision uint64
	// ID is the decision id, by which the owner knows the check. Empty when the owner was not asked.
	ID string
	// Replayed: it repeats a recorded decision. Recorded: the same id gets the same answer again.
	Replayed, Recorded bool
	// Limits are the limits that applied, as they stand after the decision; of a hint, as they stood at the denial. They
	// are shared between decisions: do not change them.
	Limits []LimitState
	// Attempts is how often the check was sent.
	Attempts int
	// Cause is why the owner did not decide, with SourceBypass and SourceLocal; else nil.
	Cause error
}

// Verified reports whether the owner allowed it: an admission that is committed on a majority and counted.
func (d *Decision) Verified() bool { return d.Allowed && d.Source == SourceOwner }

// LimitState is one applicable limit as it stands.
type LimitState struct {
	Name      string        // in the policy
	Limit     int64         // how much any rolling window admits
	Window    time.Duration // its length
	Remaining int64         // the room left
	Reset     time.Duration // until its oldest admission expires; 0 when it is empty
}

// Proto is the decision as the wire contract has it, for who writes answers. Waits are rounded up to a millisecond.
func (d *Decision) Proto() *quoratev1.Decision {
	p := &quoratev1.Decision{
		Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: d.Reason, Limit: d.Limit, Remaining: d.Remaining,
		RetryAfterMs: ceilMillis(d.RetryAfter), PolicyVersion: d.PolicyVersion, PolicyRevision: d.PolicyRevision,
		DecisionId: d.ID, Replayed: d.Replayed, Recorded: d.Recorded,
	}
	switch {
	case d.Allowed:
		p.Outcome = quoratev1.Outcome_OUTCOME_ALLOWED
	case d.Source == SourceNone:
		p.Outcome = quoratev1.Outcome_OUTCOME_UNSPECIFIED
	}
	if !d.RetryAt.IsZero() {
		p.RetryAt = timestamppb.New(d.RetryAt)
	}
	for _, l := range d.Limits {
		p.Limits = append(p.Limits, &quoratev1.LimitState{
			Name: l.Name, Limit: l.Limit, Window: durationpb.New(l.Window), Remaining: l.Remaining,
			ResetMs: ceilMillis(l.Reset),
		})
	}
	return p
}

// ceilMillis is a wait in milliseconds, rounded up; not below 0.
func ceilMillis(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Millisecond) + 1
}

// Identity is one of the identities of a request, in CheckAll.
type Identity struct {
	Principal string
	Class     string // apiClass
	Tier      string // empty for none
	Cost      int64  // 0 means 1
}

// Charge is a further class of the same principal, decided together with a check.
type Charge struct {
	Class string // apiClass
	Tier  string // empty for none
	Cost  int64  // 0 means 1
}
