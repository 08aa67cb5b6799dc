package sdk

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// mustCheck checks and wants a decision of a source.
func mustCheck(t *testing.T, c *Client, want Source, options ...CheckOption) Decision {
	t.Helper()
	d, err := c.Check(bg(), "acme", "deny", options...)
	if err != nil || d.Source != want {
		t.Fatalf("%+v, %v: want it from the %s", d, err, want)
	}
	return d
}

// Shows that a hint denies from the answer until one millisecond before the owner would admit, measured from the send,
// that it tells the rest of the wait measured from the answer, and that who comes when told is admitted.
func TestHintRunsFromTheSend(t *testing.T) {
	const transit, retry = 30 * time.Millisecond, 1000 * time.Millisecond
	var decided time.Time
	script := func(asked) reply {
		if decided.IsZero() {
			// The owner decides at once, and its answer takes its time.
			decided = time.Now()
			r := deny(retry)
			r.after = transit
			return r
		}
		if time.Now().Before(decided.Add(retry)) {
			return deny(time.Until(decided.Add(retry)) + time.Millisecond - 1)
		}
		return allow()
	}
	world(t, 1, script, func(t *testing.T, c *cluster, client *Client) {
		began := time.Now()
		first := mustCheck(t, client, SourceOwner)
		if first.RetryAfter != retry || first.Limit != "per-minute" || first.Allowed {
			t.Errorf("%+v", first)
		}
		elapse(100 * time.Millisecond)
		hint := mustCheck(t, client, SourceHint)
		if hint.Allowed || hint.Recorded || hint.ID != "" || hint.Reason != "quota_exhausted" || hint.Limit != "per-minute" ||
			hint.RetryAfter != 900*time.Millisecond || !hint.RetryAt.Equal(time.Now().Add(hint.RetryAfter)) || hint.Attempts != 0 {
			t.Errorf("%+v", hint)
		}
		told := time.Now().Add(hint.RetryAfter)
		elapse(time.Until(began.Add(retry - time.Millisecond - 1)))
		mustCheck(t, client, SourceHint)
		elapse(1)
		if d := mustCheck(t, client, SourceOwner); d.Allowed {
			t.Error("the owner has admitted too early")
		}
		elapse(time.Until(told))
		if d := mustCheck(t, client, SourceOwner); !d.Allowed {
			t.Errorf("who comes when told is denied: %+v", d)
		}
		if s := client.Stats().Classes["deny"]; s.Hinted != 2 || s.Denied != 2 || s.Allowed != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Shows that a hint denies the very same check only: not one of another principal, class, tier, cost or further charge,
// smaller or larger.
func TestHintIsOfOneCheck(t *testing.T) {
	world(t, 1, func(asked) reply { return deny(time.Minute) }, func(t *testing.T, c *cluster, client *Client) {
		also := WithAlso(Charge{Class: "a", Tier: "b"}, Charge{Class: "c", Cost: 2})
		mustCheck(t, client, SourceOwner, WithCost(2), WithTier("pro"), also)
		mustCheck(t, client, SourceHint, WithCost(2), WithTier("pro"), also)
		for name, options := range map[string][]CheckOption{
			"smaller": {WithCost(1), WithTier("pro"), also}, "larger": {WithCost(3), WithTier("pro"), also},
			"tier": {WithCost(2), also}, "none also": {WithCost(2), WithTier("pro")},
			"also of another cost":  {WithCost(2), WithTier("pro"), WithAlso(Charge{Class: "a", Tier: "b"}, Charge{Class: "c"})},
			"also with moved edges": {WithCost(2), WithTier("pro"), WithAlso(Charge{Class: "ab"}, Charge{Class: "c", Cost: 2})},
		} {
			if d, err := client.Check(bg(), "acme", "deny", options...); err != nil || d.Source != SourceOwner {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
		}
		for _, other := range [][2]string{{"acm", "edeny"}, {"acme", "allow"}, {"other", "deny"}} {
			d, err := client.Check(bg(), other[0], other[1], WithCost(2), WithTier("pro"), also)
			if err != nil || d.Source != SourceOwner {
				t.Errorf("%v: %+v, %v", other, d, err)
			}
		}
	})
}

// Shows that a hint ends with the first sight of another policy revision: a watched one, and one in an answer.
func TestHintEndsWithTheRevision(t *testing.T) {
	for _, way := range []string{"watched", "answered"} {
		var mu sync.Mutex
		revision := uint64(1)
		script := func(asked) reply {
			mu.Lock()
			defer mu.Unlock()
			r := deny(time.Minute)
			r.decision.PolicyRevision = revision
			return r
		}
		world(t, 1, script, func(t *testing.T, c *cluster, client *Client) {
			mustCheck(t, client, SourceOwner)
			mustCheck(t, client, SourceHint)
			mu.Lock()
			revision = 2
			mu.Unlock()
			if way == "watched" {
				c.publish(func(m *quoratev1.WatchConfigResponse) { m.Policy = settingsOf(2, modes()...) })
				synctest.Wait()
			} else if _, err := client.Check(bg(), "other", "allow"); err != nil {
				t.Fatal(err)
			}
			mustCheck(t, client, SourceOwner)
			mustCheck(t, client, SourceHint)
			// An older answer, of a partition that is behind, makes no hint.
			mu.Lock()
			revision = 1
			mu.Unlock()
			for range 2 {
				if d, err := client.Check(bg(), "third", "deny"); err != nil || d.Source != SourceOwner {
					t.Errorf("%s: %+v, %v", way, d, err)
				}
			}
		})
	}
}

// Shows that a denial which was on its way when the revision came makes no hint.
func TestNoHintAcrossARevision(t *testing.T) {
	slow := func(asked) reply { r := deny(time.Minute); r.after = 50 * time.Millisecond; return r }
	world(t, 1, slow, func(t *testing.T, c *cluster, client *Client) {
		time.AfterFunc(10*time.Millisecond, func() {
			c.publish(func(m *quoratev1.WatchConfigResponse) { m.Policy = settingsOf(2, modes()...) })
		})
		mustCheck(t, client, SourceOwner)
		mustCheck(t, client, SourceOwner)
	})
}

// Shows that hints are kept and used only while the watch is live: they end when it breaks off, also when another node is
// watched at once, and when it falls silent.
func TestHintEndsWithTheWatch(t *testing.T) {
	for _, way := range []string{"broken", "silent"} {
		world(t, 3, func(asked) reply { return deny(time.Minute) }, func(t *testing.T, c *cluster, client *Client) {
			mustCheck(t, client, SourceOwner)
			mustCheck(t, client, SourceHint)
			if way == "broken" {
				c.publish(func(m *quoratev1.WatchConfigResponse) { m.ClusterId = "" })
				synctest.Wait()
				if client.Stats().WatchLive {
					t.Error("the watch is live")
				}
				mustCheck(t, client, SourceOwner) // which makes no hint
				c.publish(func(m *quoratev1.WatchConfigResponse) { m.ClusterId = "test" })
				elapse(time.Second)
				if !client.Stats().WatchLive {
					t.Error("no node is watched again")
				}
				mustCheck(t, client, SourceOwner)
				mustCheck(t, client, SourceHint)
				return
			}
			c.mu.Lock()
			c.mute = true
			c.mu.Unlock()
			elapse(4 * time.Second)
			if !client.Stats().WatchLive {
				t.Error("the watch is not live after 4 seconds without a message")
			}
			elapse(2 * time.Second)
			mustCheck(t, client, SourceOwner)
			if client.Stats().WatchLive {
				t.Error("the watch is live")
			}
			mustCheck(t, client, SourceOwner)
			c.mu.Lock()
			c.mute = false
			c.mu.Unlock()
			elapse(5 * time.Second)
			mustCheck(t, client, SourceOwner)
			mustCheck(t, client, SourceHint)
		})
	}
}

// Shows that a hint is neither made by a retry nor consulted for one, nor by or for a check whose id is given, nor made by
// a replayed denial.
func TestHintsAreForFirstAttempts(t *testing.T) {
	gone := func() reply { return reply{breaks: status.Error(codes.Unavailable, "gone")} }
	denied := func() reply { return deny(time.Minute) }
	world(t, 3, inOrder(gone, denied), func(t *testing.T, c *cluster, client *Client) {
		if d := mustCheck(t, client, SourceOwner); d.Attempts != 2 {
			t.Errorf("%+v", d)
		}
		mustCheck(t, client, SourceOwner, WithID("x"))
		mustCheck(t, client, SourceOwner)
		mustCheck(t, client, SourceHint)
		mustCheck(t, client, SourceOwner, WithID("x"))
	})
	// The hint comes up while the first attempt of another check is on its way: its retry is sent all the same.
	var n int
	var mu sync.Mutex
	script := func(asked) reply {
		mu.Lock()
		defer mu.Unlock()
		if n++; n == 1 {
			r := refuse(quotaerr.Frozen)
			r.after = 20 * time.Millisecond
			return r
		}
		return deny(time.Minute)
	}
	world(t, 1, script, func(t *testing.T, c *cluster, client *Client) {
		var late sync.WaitGroup
		late.Go(func() {
			if d, err := client.Check(bg(), "acme", "deny"); err != nil || d.Source != SourceOwner || d.Attempts != 2 {
				t.Errorf("%+v, %v", d, err)
			}
		})
		elapse(10 * time.Millisecond)
		mustCheck(t, client, SourceOwner)
		mustCheck(t, client, SourceHint)
		late.Wait()
	})
	replayed := func(asked) reply { r := deny(time.Minute); r.decision.Replayed = true; return r }
	world(t, 1, replayed, func(t *testing.T, c *cluster, client *Client) {
		mustCheck(t, client, SourceOwner)
		mustCheck(t, client, SourceOwner)
	})
}

// Shows that a later denial of the same check does not make a hint longer, and an earlier end makes it shorter.
func TestHintIsNotExtended(t *testing.T) {
	for _, c := range []struct{ first, second, until time.Duration }{
		{time.Second, 3 * time.Second, time.Second}, {3 * time.Second, time.Second, time.Second},
	} {
		var n int
		var mu sync.Mutex
		script := func(asked) reply {
			mu.Lock()
			defer mu.Unlock()
			n++
			r := deny(c.first)
			if n > 1 {
				r = deny(c.second)
			}
			r.after = 10 * time.Millisecond
			return r
		}
		world(t, 1, script, func(t *testing.T, cl *cluster, client *Client) {
			began := time.Now()
			var both sync.WaitGroup
			both.Go(func() { mustCheck(t, client, SourceOwner) })
			synctest.Wait()
			both.Go(func() { mustCheck(t, client, SourceOwner) })
			both.Wait()
			elapse(time.Until(began.Add(c.until - time.Millisecond - 1)))
			mustCheck(t, client, SourceHint)
			elapse(1)
			mustCheck(t, client, SourceOwner)
		})
	}
}

// Shows that a hint ends after five seconds, however long the wait is, since usage can be forgiven; one second after, for
// who is blocked; and that a switched off class and a wait of a millisecond make none.
func TestHintIsShort(t *testing.T) {
	reason := func(r quotaerr.Reason) func(asked) reply {
		return func(asked) reply {
			out := deny(time.Hour)
			out.decision.Reason, out.decision.RetryAt, out.decision.RetryAfterMs = string(r), nil, 0
			return out
		}
	}
	for name, c := range map[string]struct {
		script func(asked) reply
		lasts  time.Duration
	}{
		"an hour":       {func(asked) reply { return deny(time.Hour) }, 5 * time.Second},
		"six seconds":   {func(asked) reply { return deny(6 * time.Second) }, 5 * time.Second},
		"two seconds":   {func(asked) reply { return deny(2 * time.Second) }, 2*time.Second - time.Millisecond},
		"a millisecond": {func(asked) reply { return deny(time.Millisecond) }, 0},
		"no time":       {reason(quotaerr.QuotaExhausted), 0},
		"blocked":       {reason(quotaerr.Blocked), time.Second},
		"disabled":      {reason(quotaerr.EndpointDisabled), 0},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, 1, c.script, func(t *testing.T, cl *cluster, client *Client) {
				first := mustCheck(t, client, SourceOwner)
				if c.lasts > 0 {
					elapse(c.lasts - 1)
					if d := mustCheck(t, client, SourceHint); d.RetryAfter != max(0, first.RetryAfter-c.lasts+1) {
						t.Errorf("%+v", d)
					}
					elapse(1)
				}
				mustCheck(t, client, SourceOwner)
			})
		})
	}
}

// Shows that hints are bounded in number, and can be left out.
func TestHintsAreBounded(t *testing.T) {
	for _, capacity := range []int{64, 0} {
		world(t, 1, func(asked) reply { return deny(time.Minute) }, func(t *testing.T, c *cluster, client *Client) {
			for i := range 500 {
				if _, err := client.Check(bg(), fmt.Sprint(i), "deny"); err != nil {
					t.Fatal(err)
				}
			}
			if n := client.Stats().Hints; n > capacity {
				t.Errorf("%d hints are kept, at a bound of %d", n, capacity)
			}
			d, err := client.Check(bg(), "499", "deny")
			if want := map[bool]Source{true: SourceHint, false: SourceOwner}[capacity > 0]; err != nil || d.Source != want {
				t.Errorf("%+v, %v", d, err)
			}
		}, WithHintCapacity(capacity))
	}
}

// Shows that with 100 denied checks per allowed one nearly all denials come from hints, and that none comes at or after
// the instant at which the owner would have admitted.
func TestDenialLoad(t *testing.T) {
	const limit, window = 3, 2 * time.Second
	var mu sync.Mutex
	var log []time.Time
	owner := func(asked) reply { // an exact rolling log
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		log = slices.DeleteFunc(log, func(at time.Time) bool { return !at.Add(window).After(now) })
		if len(log) < limit {
			log = append(log, now)
			return allow()
		}
		return deny((log[0].Add(window).Sub(now) + time.Millisecond - 1).Truncate(time.Millisecond))
	}
	world(t, 1, owner, func(t *testing.T, c *cluster, client *Client) {
		allowed, hinted, denied := 0, 0, 0
		for range 6000 {
			d := mustDecide(t, client)
			mu.Lock()
			full := len(log) == limit && log[0].Add(window).After(time.Now())
			mu.Unlock()
			switch {
			case d.Source == SourceHint:
				if hinted++; !full {
					t.Fatal("a hint denies what the owner would admit")
				}
			case d.Allowed:
				allowed++
			default:
				denied++
			}
			elapse(7 * time.Millisecond)
		}
		if part := float64(hinted) / float64(hinted+denied); part <= 0.95 || allowed < 60 {
			t.Errorf("%.3f of %d denials came from hints, %d were allowed", part, hinted+denied, allowed)
		}
	})
}

func mustDecide(t *testing.T, c *Client) Decision {
	t.Helper()
	d, err := c.Check(bg(), "acme", "deny")
	if err != nil {
		var e *Error
		t.Fatalf("%v (%t)", err, errors.As(err, &e))
	}
	return d
}

// BenchmarkHint is a denial from a hint: no allocation, and well under a microsecond.
func BenchmarkHint(b *testing.B) {
	c := mustCluster(b, 1, func(asked) reply { return deny(time.Hour) }, unhurried()...)
	defer c.close()
	client := c.mustClient(WithPrincipalCeiling(0))
	defer mustClose(b, client)
	mustReady(b, client)
	b.ReportAllocs()
	for b.Loop() {
		if d, err := client.Check(bg(), "acme", "deny", WithCost(1)); err != nil || d.Allowed {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(client.Stats().Sends), "sends")
}

// Shows that a denial from a hint allocates nothing.
func TestHintAllocatesNothing(t *testing.T) {
	c := mustCluster(t, 1, func(asked) reply { return deny(time.Hour) }, unhurried()...)
	defer c.close()
	client := c.mustClient()
	defer mustClose(t, client)
	mustReady(t, client)
	mustCheck(t, client, SourceOwner)
	if n := testing.AllocsPerRun(1000, func() { mustCheck(t, client, SourceHint) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
