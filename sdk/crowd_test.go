package sdk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/sdk/internal/link"
)

// Shows that of a thousand checks of one principal at once no more than its bound are sent, so that no more than those
// can end in the failure mode, that the others are overloaded at once, that another principal is not touched, and that
// there is room again when they are over.
func TestBurstOfOnePrincipal(t *testing.T) {
	slow := func(a asked) reply {
		r := allow()
		r.silent = a.check.GetPrincipal() == "burst"
		return r
	}
	world(t, 1, slow, func(t *testing.T, c *cluster, client *Client) {
		var mu sync.Mutex
		ends := map[ending]int{}
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() {
				before := time.Now()
				d, err := client.Check(bg(), "burst", "allow")
				got := endingOf(t, d, err)
				if took := time.Since(before); got == endsOverloaded && took != 0 {
					t.Errorf("it was refused after %s", took)
				}
				mu.Lock()
				defer mu.Unlock()
				ends[got]++
			})
		}
		if d, err := client.Check(bg(), "other", "allow"); endingOf(t, d, err) != endsAllowed {
			t.Errorf("another: %+v, %v", d, err)
		}
		all.Wait()
		if ends[endsBypass] != DefaultPrincipalInFlight || ends[endsOverloaded] != 1000-DefaultPrincipalInFlight {
			t.Errorf("%v", ends)
		}
		elapse(time.Second) // the ceiling's
		if d, err := client.Check(bg(), "burst", "allow"); endingOf(t, d, err) != endsBypass {
			t.Errorf("afterwards: %+v, %v", d, err)
		}
		if n := len(c.seen()); n != DefaultPrincipalInFlight+2 {
			t.Errorf("%d were sent", n)
		}
	})
}

// Shows that the bound for one principal can be set, and be left out.
func TestPrincipalInFlight(t *testing.T) {
	for most, want := range map[int]int{0: 200, 3: 3} {
		slow := func(asked) reply { r := allow(); r.after = 10 * time.Millisecond; return r }
		world(t, 1, slow, func(t *testing.T, c *cluster, client *Client) {
			var all sync.WaitGroup
			for range 200 {
				all.Go(func() { _, _ = client.Check(bg(), "acme", "deny") })
			}
			all.Wait()
			if n := len(c.seen()); n != want {
				t.Errorf("at a bound of %d %d were sent", most, n)
			}
		}, WithPrincipalInFlight(most))
	}
}

// Shows that a check whose time is over while it still waits to be sent, to a node that has answered a moment ago, is
// overloaded and no case for a failure mode; only what was sent may be one.
func TestQueuedToALivingNode(t *testing.T) {
	script := func(a asked) reply { r := allow(); r.silent = a.check.GetPrincipal() != "first"; return r }
	world(t, 1, script, func(t *testing.T, c *cluster, client *Client) {
		if d, err := client.Check(bg(), "first", "allow"); endingOf(t, d, err) != endsAllowed {
			t.Fatalf("%+v, %v", d, err)
		}
		c.node("a").deaf.Store(true)
		for class, sent := range byMode {
			var mu sync.Mutex
			ends := map[ending]int{}
			var all sync.WaitGroup
			for i := range 4000 {
				all.Go(func() {
					d, err := client.Check(bg(), class+fmt.Sprintf("%0480d", i), class)
					got := endingOf(t, d, err)
					var e *Error
					if errors.As(d.Cause, &e) && e.Attempts == 0 || errors.As(err, &e) && got == endsOverloaded && e.MaybeConsumed {
						t.Errorf("%+v", e)
					}
					mu.Lock()
					defer mu.Unlock()
					ends[got]++
				})
			}
			all.Wait()
			if ends[endsOverloaded] < 500 || ends[endsOverloaded]+ends[sent] != 4000 {
				t.Errorf("%s: %v", class, ends)
			}
		}
	})
}

// Shows that a last attempt which had no time to be sent is overload only if no attempt before it went unanswered: an
// owner that was away is away, and an owner that has refused is there.
func TestCrowdAfterAnAttempt(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		if _, err := client.Check(bg(), "acme", "allow"); err != nil {
			t.Fatal(err)
		}
		route, _ := client.table.Lookup("acme")
		crowded := link.Result{Err: link.ErrTimeout, Unsent: true, Crowded: true}
		for _, tt := range []struct {
			name   string
			before *link.Result
			reason quotaerr.Reason
			mode   bool
		}{
			{"the first", nil, quotaerr.Overloaded, false},
			{"after a refused connection", &link.Result{Err: errors.New("refused"), Unsent: true}, quotaerr.NoQuorum, true},
			{"after one that was lost", &link.Result{Err: errors.New("broken")}, quotaerr.NoQuorum, true},
			{"after a refusal", &link.Result{Refusal: &quoratev1.Refusal{Reason: string(quotaerr.NotLeader)}},
				quotaerr.Overloaded, false},
		} {
			r := client.newRun(&check{principal: "acme", class: "allow"}, client.now(), math.MaxInt64)
			r.attempts.Route, r.node = route, route.Node
			if tt.before != nil {
				r.attempts.Asked = append(r.attempts.Asked, route.Node.ID)
				_, _ = r.next(tt.before)
			}
			r.attempts.Asked = append(r.attempts.Asked, route.Node.ID)
			r.deadlineNanos = client.now()
			step, why := r.next(&crowded)
			if step.Action != router.GiveUp || step.FailureMode != tt.mode || why.Reason != tt.reason {
				t.Errorf("%s: %+v, %v", tt.name, step, why)
			}
			r.end()
		}
	})
}

// Shows that CheckAll takes no more identities than it says, and that the error says how many.
func TestIdentitiesAreBounded(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		identities := make([]Identity, MaxIdentities+1)
		for i := range identities {
			identities[i] = Identity{Principal: "acme", Class: "deny"}
		}
		ds, err := client.CheckAll(bg(), identities)
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "64") || ds.Allowed || ds.Denied != -1 {
			t.Errorf("%+v, %v", ds, err)
		}
		if n := len(c.seen()); n != 0 {
			t.Errorf("%d were sent", n)
		}
		if ds, err := client.CheckAll(bg(), identities[1:]); err != nil || !ds.Allowed {
			t.Errorf("%+v, %v", ds, err)
		}
	})
}

// Shows that a nil context is refused with a word on what to give, and does not panic.
func TestNilContext(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		var none context.Context
		_, check := client.Check(none, "acme", "deny")
		_, all := client.CheckAll(none, []Identity{{Principal: "acme", Class: "deny"}})
		_, peek := client.Peek(none, "acme", "deny", "")
		for what, err := range map[string]error{"Check": check, "CheckAll": all, "Peek": peek, "Ready": client.Ready(none)} {
			var e *Error
			if !errors.Is(err, ErrRefused) || !errors.As(err, &e) || e.Reason != quotaerr.InvalidArgument ||
				!strings.Contains(err.Error(), "context") {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
