package sdk

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that identities of one principal are decided as one, where the first of them stands, and the others in order.
func TestCheckAllGroups(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		all, err := client.CheckAll(bg(), []Identity{
			{Principal: "ip", Class: "deny"}, {Principal: "acme", Class: "deny", Cost: 2},
			{Principal: "ip", Class: "allow", Tier: "pro", Cost: 3},
		})
		if err != nil || !all.Allowed || all.Denied != -1 || all.Wasted != 0 || len(all.Decisions) != 3 {
			t.Fatalf("%+v, %v", all, err)
		}
		var got []string
		for _, a := range c.seen() {
			s := fmt.Sprint(a.check.GetPrincipal(), " ", a.check.GetApiClass(), " ", a.check.GetCost())
			for _, m := range a.check.GetAlso() {
				s += fmt.Sprint(" + ", m.GetApiClass(), " ", m.GetTier(), " ", m.GetCost())
			}
			got = append(got, s)
		}
		if diff := cmp.Diff([]string{"ip deny 1 + allow pro 3", "acme deny 2"}, got); diff != "" {
			t.Error(diff)
		}
		if all.Decisions[0].ID != all.Decisions[2].ID || all.Decisions[1].ID == all.Decisions[0].ID {
			t.Errorf("%+v", all.Decisions)
		}
	})
}

// Shows that more identities of a principal than one decision takes are decided in several.
func TestCheckAllManyOfOne(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		many := make([]Identity, 20)
		for i := range many {
			many[i] = Identity{Principal: "acme", Class: fmt.Sprint("c", i)}
		}
		all, err := client.CheckAll(bg(), many)
		if err != nil || !all.Allowed || len(c.seen()) != 3 {
			t.Errorf("%v, sent %d times", err, len(c.seen()))
		}
		for i, d := range all.Decisions {
			if !d.Verified() {
				t.Errorf("%d: %+v", i, d)
			}
		}
	})
}

// Shows that the first denial ends it, that what was consumed before counts as wasted, and that the same request then
// wastes nothing: the denial is known.
func TestCheckAllDenied(t *testing.T) {
	script := func(a asked) reply {
		if a.check.GetPrincipal() == "acme" {
			return deny(time.Minute)
		}
		return allow()
	}
	world(t, 1, script, func(t *testing.T, c *cluster, client *Client) {
		ids := []Identity{
			{Principal: "ip", Class: "deny"}, {Principal: "ip", Class: "x"}, {Principal: "acme", Class: "deny"},
			{Principal: "last", Class: "deny"},
		}
		all, err := client.CheckAll(bg(), ids)
		if err != nil || all.Allowed || all.Denied != 2 || all.Wasted != 2 || all.RetryAfter != time.Minute ||
			all.Decisions[3].Source != SourceNone {
			t.Errorf("%+v, %v", all, err)
		}
		if d := all.Tightest(); d.Allowed || d.Limit != "per-minute" {
			t.Errorf("the tightest is %+v", d)
		}
		sent := len(c.seen())
		all, err = client.CheckAll(bg(), ids)
		if err != nil || all.Allowed || all.Denied != 2 || all.Wasted != 0 || len(c.seen()) != sent ||
			all.Decisions[2].Source != SourceHint {
			t.Errorf("%+v, %v", all, err)
		}
		if s := client.Stats(); s.Wasted != 2 {
			t.Errorf("%d are wasted", s.Wasted)
		}
	})
}

// Shows that each principal's decision has its own timeout: one whose owner says nothing takes no time from the next, whose
// owner answers late.
func TestCheckAllTimeoutsAddUp(t *testing.T) {
	script := func(a asked) reply {
		r := allow()
		r.silent, r.after = a.check.GetPrincipal() == "ip", 90*time.Millisecond
		return r
	}
	world(t, 1, script, func(t *testing.T, c *cluster, client *Client) {
		began := time.Now()
		all, err := client.CheckAll(bg(), []Identity{{Principal: "ip", Class: "allow"}, {Principal: "acme", Class: "deny"}})
		if err != nil || !all.Allowed || all.Decisions[0].Source != SourceBypass || !all.Decisions[1].Verified() {
			t.Errorf("%+v, %v", all, err)
		}
		if took := time.Since(began); took != 190*time.Millisecond {
			t.Errorf("it took %s", took)
		}
	})
}

// Shows that an error ends it too, with what was consumed before, and that malformed identities are refused before
// anything is consumed.
func TestCheckAllFails(t *testing.T) {
	script := func(a asked) reply {
		if a.check.GetPrincipal() == "acme" {
			return refuse(quotaerr.Capacity)
		}
		return allow()
	}
	world(t, 1, script, func(t *testing.T, c *cluster, client *Client) {
		all, err := client.CheckAll(bg(), []Identity{{Principal: "ip", Class: "allow"}, {Principal: "acme", Class: "allow"}})
		if !errors.Is(err, ErrOverloaded) || all.Allowed || all.Denied != -1 || all.Wasted != 1 {
			t.Errorf("%+v, %v", all, err)
		}
		sent := len(c.seen())
		for _, ids := range [][]Identity{nil, {{Principal: "ip", Class: "allow"}, {Principal: "", Class: "allow"}}} {
			if all, err := client.CheckAll(bg(), ids); !errors.Is(err, ErrRefused) || all.Allowed || len(c.seen()) != sent {
				t.Errorf("%+v, %v, sent %d", all, err, len(c.seen())-sent)
			}
		}
	})
}

// Shows which decision is the tightest: the smallest room of those that the owner has decided.
func TestTightest(t *testing.T) {
	owner := func(remaining int64) Decision {
		return Decision{Allowed: true, Source: SourceOwner, Remaining: remaining}
	}
	bypass := Decision{Allowed: true, Source: SourceBypass}
	for _, c := range []struct {
		in   []Decision
		want int
	}{{[]Decision{owner(3), owner(1), owner(2)}, 1}, {[]Decision{bypass, owner(2)}, 1}, {[]Decision{bypass}, 0}} {
		d := Decisions{Decisions: c.in, Allowed: true, Denied: -1}
		if diff := cmp.Diff(c.in[c.want], d.Tightest()); diff != "" {
			t.Error(diff)
		}
	}
	if d := (&Decisions{Denied: -1}).Tightest(); d.Allowed {
		t.Errorf("%+v", d)
	}
}

// Shows that a look asks the owner, another replica when that is down, and tells the answer or why there is none.
func TestPeek(t *testing.T) {
	world(t, 2, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		for range 2 {
			out, err := client.Peek(bg(), "acme", "deny", "pro")
			if err != nil || out.GetRemaining() != 5 || out.GetApiClass() != "deny" {
				t.Fatalf("%v, %v", out, err)
			}
			c.stop("a")
		}
		if _, err := client.Peek(bg(), "", "deny", ""); !errors.Is(err, ErrRefused) {
			t.Error(err)
		}
		c.stop("b")
		if _, err := client.Peek(bg(), "acme", "allow", ""); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
	})
}

// Shows that a decision can be written as the wire contract has it, with waits rounded up, and that none is an allow by
// chance.
func TestDecisionAsProto(t *testing.T) {
	now := time.Unix(100, 0)
	d := Decision{
		Source: SourceOwner, Reason: "quota_exhausted", Limit: "m", RetryAfter: time.Second + 1, RetryAt: now, ID: "x",
		PolicyRevision: 7, Limits: []LimitState{{Name: "m", Limit: 3, Window: time.Minute, Reset: time.Millisecond + 1}},
	}
	p := d.Proto()
	if p.GetOutcome() != quoratev1.Outcome_OUTCOME_DENIED || p.GetRetryAfterMs() != 1001 || p.GetLimits()[0].GetResetMs() != 2 ||
		!p.GetRetryAt().AsTime().Equal(now) || p.GetLimits()[0].GetWindow().AsDuration() != time.Minute {
		t.Errorf("%v", p)
	}
	for source := SourceNone; source <= SourceLocal; source++ {
		d := Decision{Source: source}
		if d.Proto().GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED || d.Verified() || source.String() == "" {
			t.Errorf("%s: %v", source, d.Proto())
		}
		d.Allowed = true
		if d.Verified() != (source == SourceOwner) {
			t.Errorf("%s is verified", source)
		}
	}
}
