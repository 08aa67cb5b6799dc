package quotatest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// maxPrincipals bounds the principals that have admissions or records.
	maxPrincipals = 1 << 18
	// maxAdmissions bounds the admissions that one log holds: a test with more is a load test, and wants a real one.
	maxAdmissions = 1 << 16
	// maxRecords bounds the records of one principal.
	maxRecords = 1 << 16
	// maxDenialRecords bounds the recorded denials of one principal, as the real one does.
	maxDenialRecords = 64
)

// ledger decides. It is not safe for concurrent use. Instants count from its beginning.
type ledger struct {
	begun    time.Time
	policy   *policy.Policy
	revision uint64
	longest  time.Duration // of all windows that there have been
	accounts map[string]*account
}

// account is what one principal has used.
type account struct {
	logs    map[string][]admission // by the class that counts, oldest first
	records map[string]*record     // by decision id
	denials []time.Duration        // when the records of denials end
}

type admission struct {
	at   time.Duration
	cost int64
}

// record is a decision that is repeated for its id.
type record struct {
	payload  string
	decision *quoratev1.Decision
	retryAt  time.Duration // of a denial
	ends     time.Duration // exclusive
}

// applied is a limit, and the classes whose admissions it counts.
type applied struct {
	limit   *policy.Limit
	classes []string
}

// install puts the next revision in force.
func (l *ledger) install(p *policy.Policy) {
	l.policy, l.revision = p, l.revision+1
	for _, class := range append([]string{policy.DefaultClass}, p.ClassNames()...) {
		w := p.Windows(class)
		l.longest = max(l.longest, time.Duration(max(w.Rule, w.Group, w.Retention)))
	}
}

// decide answers a well-formed check whose slot is owned here, at an instant of the test's clock.
func (l *ledger) decide(clock time.Time, req *quoratev1.CheckRequest) (*quoratev1.Decision, *quotaerr.Error) {
	now := clock.Sub(l.begun)
	charges := chargesOf(req)
	payload := payloadOf(charges)
	a := l.accounts[req.GetPrincipal()]
	if a == nil {
		a = &account{logs: map[string][]admission{}, records: map[string]*record{}}
	}
	if rec := a.records[req.GetDecisionId()]; rec != nil && now < rec.ends {
		if rec.payload != payload {
			return nil, quotaerr.New(quotaerr.DecisionIDConflict,
				"this decision id was used with another class, tier, cost or also: use a new id")
		}
		d := proto.CloneOf(rec.decision)
		d.Replayed = true
		remaining := d.GetRemaining()
		l.stand(d, now, a, l.distinct(req.GetPrincipal(), charges))
		d.Remaining = remaining // as it was
		retryIn(d, rec.retryAt-now, clock)
		return d, nil
	}
	switch at := req.GetPolicyRevision(); {
	case at != 0 && at < l.revision:
		return nil, quotaerr.New(quotaerr.PolicyStale, "revision %d is in force", l.revision)
	case at > l.revision:
		return nil, quotaerr.New(quotaerr.PolicyBehind, "revision %d is in force", l.revision)
	}
	d, retryAt, err := l.judge(now, a, req.GetPrincipal(), charges)
	if err != nil {
		return nil, err
	}
	d.DecisionId = req.GetDecisionId()
	switch quotaerr.Reason(d.GetReason()) {
	case quotaerr.Allowed:
		if err := l.admit(now, a, req.GetPrincipal(), charges); err != nil {
			return nil, err
		}
		l.stand(d, now, a, l.distinct(req.GetPrincipal(), charges))
		l.record(now, a, req, record{payload: payload, decision: d})
	case quotaerr.QuotaExhausted:
		if a.mayRecordDenial(now) {
			l.record(now, a, req, record{payload: payload, decision: d, retryAt: retryAt})
		}
		retryIn(d, retryAt-now, clock)
	}
	return d, nil
}

// payloadOf is what a repeated check must have in common with the first.
func payloadOf(charges []charge) string {
	var b []byte
	for _, c := range charges {
		b = fmt.Appendf(b, "%q %q %d\n", c.class, c.tier, c.cost)
	}
	return string(b)
}

// retryIn says when to come again, if it is a denial of a limit that has no room.
func retryIn(d *quoratev1.Decision, wait time.Duration, clock time.Time) {
	if d.GetReason() != string(quotaerr.QuotaExhausted) {
		return
	}
	wait = max(0, wait)
	d.RetryAfterMs, d.RetryAt = millis(wait), timestamppb.New(clock.Add(wait))
}

// millis rounds up.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// judge decides the charges in order, each counting what the earlier ones would take, and consumes nothing.
func (l *ledger) judge(
	now time.Duration, a *account, principal string, charges []charge,
) (d *quoratev1.Decision, retryAt time.Duration, err *quotaerr.Error) {
	for i, c := range charges {
		if _, settings := l.policy.ClassOf(c.class); settings.Disabled {
			return l.said(quoratev1.Outcome_OUTCOME_DENIED, quotaerr.EndpointDisabled), 0, nil
		}
		limits := l.applicable(principal, c)
		for _, limit := range limits {
			if limit.limit.Max == 0 {
				return l.said(quoratev1.Outcome_OUTCOME_DENIED, quotaerr.Blocked), 0, nil
			}
		}
		denied := ""
		for _, limit := range limits {
			most := c.cost + l.taken(limit, charges[:i])
			if most > limit.limit.Max {
				return nil, 0, quotaerr.New(quotaerr.CostExceedsLimit,
					"the cost is above limit %q of %d: it can never be allowed", limit.limit.Name, limit.limit.Max)
			}
			if at, full := a.roomAt(now, limit, most); full && (denied == "" || at > retryAt) {
				denied, retryAt = limit.limit.Name, at
			}
		}
		if denied != "" {
			d := l.said(quoratev1.Outcome_OUTCOME_DENIED, quotaerr.QuotaExhausted)
			d.Limit = denied
			l.stand(d, now, a, limits)
			return d, retryAt, nil
		}
	}
	return l.said(quoratev1.Outcome_OUTCOME_ALLOWED, quotaerr.Allowed), 0, nil
}

func (l *ledger) said(outcome quoratev1.Outcome, reason quotaerr.Reason) *quoratev1.Decision {
	return &quoratev1.Decision{
		Outcome: outcome, Reason: string(reason), PolicyVersion: l.policy.Version, PolicyRevision: l.revision,
	}
}

// applicable are the limits of a charge: those of its rule, then those of its class's group.
func (l *ledger) applicable(principal string, c charge) (out []applied) {
	class, _ := l.policy.ClassOf(c.class)
	rule := l.policy.RuleFor(principal, class, c.tier)
	for i := range rule {
		out = append(out, applied{&rule[i], []string{class}})
	}
	if g := l.policy.GroupOf(class); g != nil {
		for i := range g.Limits {
			out = append(out, applied{&g.Limits[i], g.Classes})
		}
	}
	return out
}

// distinct are the limits of all charges, each once.
func (l *ledger) distinct(principal string, charges []charge) (out []applied) {
	for _, c := range charges {
		for _, limit := range l.applicable(principal, c) {
			if !slices.ContainsFunc(out, func(o applied) bool { return o.limit == limit.limit }) {
				out = append(out, limit)
			}
		}
	}
	return out
}

// taken is what earlier charges of the same check would take from a limit.
func (l *ledger) taken(limit applied, earlier []charge) (sum int64) {
	for _, c := range earlier {
		if class, _ := l.policy.ClassOf(c.class); slices.Contains(limit.classes, class) {
			sum += c.cost
		}
	}
	return sum
}

// counted are the admissions that a limit counts now, oldest first: those after now - window.
func (a *account) counted(now time.Duration, limit applied) (out []admission) {
	for _, class := range limit.classes {
		for _, one := range a.logs[class] {
			if one.at > now-time.Duration(limit.limit.WindowNanos) {
				out = append(out, one)
			}
		}
	}
	slices.SortStableFunc(out, func(x, y admission) int { return cmp.Compare(x.at, y.at) })
	return out
}

// roomAt is when so much of what a limit counts has expired that most fits; full is whether that is not now.
func (a *account) roomAt(now time.Duration, limit applied, most int64) (at time.Duration, full bool) {
	counted := a.counted(now, limit)
	used := int64(0)
	for _, one := range counted {
		used += one.cost
	}
	for _, oldest := range counted {
		if used+most <= limit.limit.Max {
			break
		}
		used -= oldest.cost
		at, full = oldest.at+time.Duration(limit.limit.WindowNanos), true
	}
	return at, full
}

// admit appends the charges to the logs of their classes.
func (l *ledger) admit(now time.Duration, a *account, principal string, charges []charge) *quotaerr.Error {
	if _, known := l.accounts[principal]; !known && len(l.accounts) >= maxPrincipals {
		return quotaerr.New(quotaerr.Capacity, "the fake holds as many principals as it may")
	}
	for _, c := range charges {
		class, _ := l.policy.ClassOf(c.class)
		if len(a.logs[class]) >= maxAdmissions {
			a.logs[class] = slices.DeleteFunc(a.logs[class], func(o admission) bool { return o.at <= now-l.longest })
		}
		if len(a.logs[class]) >= maxAdmissions {
			return quotaerr.New(quotaerr.Capacity, "the fake holds as many admissions of a principal as it may")
		}
		a.logs[class] = append(a.logs[class], admission{now, c.cost})
	}
	l.accounts[principal] = a
	return nil
}

// stand fills in how limits stand.
func (l *ledger) stand(d *quoratev1.Decision, now time.Duration, a *account, limits []applied) {
	d.Limits, d.Remaining = nil, math.MaxInt64
	for _, limit := range limits {
		_, remaining, reset := a.standing(now, limit)
		d.Remaining = min(d.GetRemaining(), remaining)
		d.Limits = append(d.Limits, &quoratev1.LimitState{
			Name: limit.limit.Name, Limit: limit.limit.Max,
			Window: durationpb.New(time.Duration(limit.limit.WindowNanos)), Remaining: remaining, ResetMs: millis(reset),
		})
	}
}

// standing is what of a limit is used, what is left, and how long until its oldest admission expires.
func (a *account) standing(now time.Duration, limit applied) (used, remaining int64, reset time.Duration) {
	counted := a.counted(now, limit)
	for _, one := range counted {
		used += one.cost
	}
	if len(counted) > 0 {
		reset = counted[0].at + time.Duration(limit.limit.WindowNanos) - now
	}
	return used, max(0, limit.limit.Max-used), reset
}

// mayRecordDenial reports whether there is room for one more record of a denial, now.
func (a *account) mayRecordDenial(now time.Duration) bool {
	a.denials = slices.DeleteFunc(a.denials, func(ends time.Duration) bool { return ends <= now })
	return len(a.denials) < maxDenialRecords
}

// record keeps a decision for its id, if there is room, and says so in it.
func (l *ledger) record(now time.Duration, a *account, req *quoratev1.CheckRequest, rec record) {
	if len(a.records) >= maxRecords {
		for id, old := range a.records {
			if old.ends <= now {
				delete(a.records, id)
			}
		}
	}
	_, known := l.accounts[req.GetPrincipal()]
	if len(a.records) >= maxRecords || !known && len(l.accounts) >= maxPrincipals {
		return
	}
	rec.decision.Recorded = true
	_, settings := l.policy.ClassOf(req.GetApiClass())
	rec.ends = now + time.Duration(settings.ReplayHorizonNanos)
	if rec.decision.GetOutcome() == quoratev1.Outcome_OUTCOME_DENIED {
		a.denials = append(a.denials, rec.ends)
	}
	rec.decision = proto.CloneOf(rec.decision)
	a.records[req.GetDecisionId()] = &rec
	l.accounts[req.GetPrincipal()] = a
}

// peek tells how a principal stands in a class.
func (l *ledger) peek(clock time.Time, req *quoratev1.PeekRequest) *quoratev1.PeekResponse {
	now := clock.Sub(l.begun)
	class, settings := l.policy.ClassOf(req.GetApiClass())
	out := &quoratev1.PeekResponse{
		ApiClass: class, Remaining: math.MaxInt64, AsOf: timestamppb.New(clock),
		PolicyVersion: l.policy.Version, PolicyRevision: l.revision, Disabled: settings.Disabled,
	}
	a := l.accounts[req.GetPrincipal()]
	if a == nil {
		a = &account{}
	}
	for _, limit := range l.applicable(req.GetPrincipal(), charge{class: req.GetApiClass(), tier: req.GetTier()}) {
		used, remaining, reset := a.standing(now, limit)
		out.Remaining = min(out.GetRemaining(), remaining)
		out.Limits = append(out.Limits, &quoratev1.LimitUsage{
			Name: limit.limit.Name, Limit: limit.limit.Max,
			Window: durationpb.New(time.Duration(limit.limit.WindowNanos)),
			Used:   min(used, limit.limit.Max), Remaining: remaining, ResetMs: millis(reset),
		})
	}
	return out
}

// forgive drops what a principal has used, and keeps the records.
func (l *ledger) forgive(principal string) {
	if a := l.accounts[principal]; a != nil {
		clear(a.logs)
	}
}
