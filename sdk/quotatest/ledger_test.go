package quotatest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// basePolicy has every kind of rule. Its variants differ in limits and switches only: with a longer window the real
// machine enforces earlier rules for a while, which the fake does not.
const basePolicy = `
version: base
default: {limits: [{name: default, limit: 4, window: 2s}], replay_horizon: 2s}
classes:
  convert: {limits: [{name: burst, limit: 3, window: 1s}, {name: long, limit: 5, window: 4s}], replay_horizon: 3s}
  export: {limits: [{name: exports, limit: 6, window: 2s}], replay_horizon: 1s}
  closed: {limits: [{name: none, limit: 0, window: 1s}]}
  shut: {limits: [{name: some, limit: 9, window: 1s}], disabled: true}
tiers:
  pro: {convert: {limits: [{name: burst, limit: 7, window: 1s}]}, default: {limits: [{name: more, limit: 8, window: 2s}]}}
principals:
  acme: {export: {limits: [{name: acmes, limit: 2, window: 3s}]}}
groups:
  account: {classes: [convert, export], limits: [{name: account, limit: 8, window: 3s}]}
`

func mustPolicies(t testing.TB) (out []*policy.Policy) {
	t.Helper()
	for _, changes := range [][]string{
		{}, {"exports, limit: 6", "exports, limit: 9"}, {"burst, limit: 3", "burst, limit: 1"},
		{"account, limit: 8", "account, limit: 4"}, {"disabled: true", "disabled: false"}, {"none, limit: 0", "none, limit: 2"},
		// Two limits that are full at the same time, and have room at the same time.
		{"exports, limit: 6, window: 2s", "exports, limit: 4, window: 3s", "account, limit: 8", "account, limit: 4"},
	} {
		changes = append(changes, "version: base", fmt.Sprint("version: v", len(out)))
		p, err := policy.Parse("policy", []byte(strings.NewReplacer(changes...).Replace(basePolicy)))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// both are the fake and the real state machine, at the same instant.
type both struct {
	fake     ledger
	real     *fsm.Machine
	now      time.Duration
	policies []*policy.Policy
}

func newBoth(policies []*policy.Policy) *both {
	b := &both{fake: ledger{accounts: map[string]*account{}}, real: fsm.New(), policies: policies}
	b.fake.install(policies[0])
	b.step(&fsm.Entry{Kind: fsm.KindBirth, Birth: &fsm.Birth{
		Owned:  []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: fsm.NewEpoch(1, 1)}},
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, policies[0]),
	}})
	return b
}

func (b *both) step(e *fsm.Entry) *fsm.Answers {
	e.Term, e.Stamp = 1, fsm.Time(b.now)
	return b.real.Step(1, e)
}

func (b *both) install(p *policy.Policy) {
	b.fake.install(p)
	install := fsm.NewInstall(b.real.Revision()+1, p)
	b.step(&fsm.Entry{Kind: fsm.KindInstall, Install: &install})
}

// answer is what both must agree on.
type answer struct {
	Reason, Limit, Version      string
	Remaining, RetryMs          int64
	Revision                    uint64
	Replayed, Recorded, Allowed bool
	Limits                      []string
}

func (b *both) fakes(req *quoratev1.CheckRequest) answer {
	if e := malformed(req); e != nil {
		return answer{Reason: string(e.Reason)}
	}
	d, e := b.fake.decide(b.fake.begun.Add(b.now), req)
	if e != nil {
		return answer{Reason: string(e.Reason)}
	}
	out := answer{
		Reason: d.GetReason(), Limit: d.GetLimit(), Version: d.GetPolicyVersion(), Remaining: d.GetRemaining(),
		RetryMs: d.GetRetryAfterMs(), Revision: d.GetPolicyRevision(), Replayed: d.GetReplayed(), Recorded: d.GetRecorded(),
		Allowed: d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED,
	}
	for _, l := range d.GetLimits() {
		out.Limits = append(out.Limits, fmt.Sprint(l.GetName(), l.GetLimit(), l.GetWindow().AsDuration(),
			l.GetRemaining(), l.GetResetMs()))
	}
	return out
}

func (b *both) reals(req *quoratev1.CheckRequest) answer {
	c := fsm.Check{
		Principal: req.GetPrincipal(), Gateway: "insecure", DecisionID: req.GetDecisionId(),
		PolicyRevision: fsm.Revision(req.GetPolicyRevision()), RouteEpoch: fsm.NewEpoch(1, 1),
	}
	for i, of := range chargesOf(req) {
		charge := fsm.Charge{Class: of.class, Tier: of.tier, Cost: of.cost}
		if i == 0 {
			c.Charge = charge
		} else {
			c.Also = append(c.Also, charge)
		}
	}
	d := b.step(&fsm.Entry{Kind: fsm.KindBatch, Checks: []fsm.Check{c}}).Decisions[0]
	if !d.Allowed() && !d.Reason.Denied() {
		return answer{Reason: d.Reason.String()}
	}
	out := answer{
		Reason: d.Reason.String(), Limit: d.Limit, Version: d.Version, Remaining: d.Remaining, Revision: uint64(d.Revision),
		Replayed: d.Replayed, Recorded: d.Recorded, Allowed: d.Allowed(),
	}
	if d.Reason == fsm.ReasonQuotaExhausted {
		out.RetryMs = millis(max(0, time.Duration(d.RetryAt-d.AsOf)))
	}
	for _, l := range d.Limits {
		out.Limits = append(out.Limits, fmt.Sprint(l.Name, l.Max, time.Duration(l.WindowNanos), l.Remaining,
			millis(time.Duration(l.ResetAt-d.AsOf))))
	}
	return out
}

// Shows that the fake and the real state machine give any sequence of checks, at any instants and under changing
// policies, the same answers in every field.
func TestDecidesAsTheStateMachineDoes(t *testing.T) {
	policies := mustPolicies(t)
	var allowed, denied, replayed, refused int
	rapid.Check(t, func(t *rapid.T) {
		b := newBoth(policies)
		var asked []*quoratev1.CheckRequest
		classes := rapid.SampledFrom([]string{"convert", "export", "closed", "shut", "default", "invented"})
		tiers := rapid.SampledFrom([]string{"", "", "pro", "unknown"})
		costs := rapid.SampledFrom([]int64{1, 1, 1, 2, 3, 7, 0})
		for range rapid.IntRange(1, 60).Draw(t, "checks") {
			// Steps by which admissions expire at the very instant are as likely as odd ones.
			b.now += rapid.OneOf(
				rapid.SampledFrom([]time.Duration{0, 0, 1, time.Second / 2, time.Second, 2*time.Second - 1}),
				rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(rapid.Int64Range(0, 9e8).Draw(t, "ns")) }),
			).Draw(t, "passes")
			if rapid.IntRange(0, 9).Draw(t, "install") == 0 {
				b.install(rapid.SampledFrom(policies).Draw(t, "policy"))
			}
			cost := costs.Draw(t, "cost")
			req := &quoratev1.CheckRequest{
				Principal: rapid.SampledFrom([]string{"acme", "u1"}).Draw(t, "principal"),
				ApiClass:  classes.Draw(t, "class"), Tier: tiers.Draw(t, "tier"), Cost: &cost,
				DecisionId:     fmt.Sprint("d", rapid.IntRange(0, 40).Draw(t, "id")),
				PolicyRevision: rapid.SampledFrom([]uint64{0, 0, 0, b.fake.revision, 1, 99}).Draw(t, "revision"),
			}
			for range rapid.SampledFrom([]int{0, 0, 0, 1, 2, 8}).Draw(t, "also") {
				also := costs.Draw(t, "cost")
				req.Also = append(req.Also, &quoratev1.Charge{ApiClass: classes.Draw(t, "class"), Cost: &also})
			}
			if len(asked) > 0 && rapid.IntRange(0, 3).Draw(t, "again") == 0 {
				req = rapid.SampledFrom(asked).Draw(t, "which")
			}
			asked = append(asked, req)
			got, want := b.fakes(req), b.reals(req)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("at %v the fake answers otherwise than the real machine (-real +fake):\n%s\n%v", b.now, diff, req)
			}
			switch {
			case got.Replayed:
				replayed++
			case got.Allowed:
				allowed++
			case got.Revision > 0:
				denied++
			default:
				refused++
			}
		}
	})
	if min(allowed, denied, replayed, refused) == 0 {
		t.Errorf("%d allowed, %d denied, %d replayed, %d refused: too little to be worth anything",
			allowed, denied, replayed, refused)
	}
}

// Shows that of many denials of one principal only so many are recorded at a time, as in the real state machine.
func TestDenialRecordsAreBounded(t *testing.T) {
	b := newBoth(mustPolicies(t))
	recorded := 0
	for i := range 110 {
		if i == 100 {
			b.now += 3 * time.Second // at this very instant the records have ended
		}
		req := &quoratev1.CheckRequest{Principal: "u1", ApiClass: "convert", DecisionId: fmt.Sprint("d", i)}
		got := b.fakes(req)
		if diff := cmp.Diff(b.reals(req), got); diff != "" {
			t.Fatalf("check %d (-real +fake):\n%s", i, diff)
		}
		if !got.Allowed && got.Recorded {
			recorded++
		}
	}
	// Three were allowed at first, and two at the end.
	if want := maxDenialRecords + 8; recorded != want {
		t.Errorf("%d denials are recorded, want %d", recorded, want)
	}
}
