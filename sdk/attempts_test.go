package sdk

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
)

// inOrder answers the attempts, in the order in which they come, with replies; the last one again and again.
func inOrder(replies ...func() reply) func(asked) reply {
	var mu sync.Mutex
	return func(asked) reply {
		mu.Lock()
		defer mu.Unlock()
		r := replies[0]
		if len(replies) > 1 {
			replies = replies[1:]
		}
		return r()
	}
}

func refusing(r quotaerr.Reason, leader string) func() reply {
	return func() reply {
		out := refuse(r)
		if out.refusal.Leader = leader; leader != "" {
			out.refusal.LeaderAddr = addrOf(leader)
		}
		return out
	}
}

func breaking() reply { return reply{breaks: status.Error(codes.Unavailable, "gone")} }

// Shows which nodes are asked after each kind of answer without a decision: always with the same id, counting up, never
// two at once, within the class's timeout, and at most three times.
func TestRetries(t *testing.T) {
	for name, c := range map[string]struct {
		replies []func() reply
		nodes   []string
		allowed bool
		maybe   bool
	}{
		"broken stream":    {[]func() reply{breaking, allow}, []string{"a", "b"}, true, false},
		"twice":            {[]func() reply{breaking, breaking, allow}, []string{"a", "b", "c"}, true, false},
		"three times":      {[]func() reply{breaking}, []string{"a", "b", "c"}, false, true},
		"leader named":     {[]func() reply{refusing("not_leader", "c"), allow}, []string{"a", "c"}, true, false},
		"leader not known": {[]func() reply{refusing("not_leader", ""), allow}, []string{"a", "b"}, true, false},
		"frozen":           {[]func() reply{refusing("frozen", ""), allow}, []string{"a", "a"}, true, false},
		"frozen for long":  {[]func() reply{refusing("frozen", "")}, []string{"a", "a", "a"}, false, false},
		"unknown outcome":  {[]func() reply{refusing("outcome_unknown", ""), allow}, []string{"a", "a"}, true, false},
		"unknown, refused": {[]func() reply{breaking, refusing("overloaded", "")}, []string{"a", "b"}, false, true},
		"policy behind":    {[]func() reply{refusing("policy_behind", ""), allow}, []string{"a", "a"}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, 3, inOrder(c.replies...), func(t *testing.T, cl *cluster, client *Client) {
				before := time.Now()
				d, err := client.Check(bg(), "acme", "deny")
				if d.Allowed != c.allowed || d.Verified() != c.allowed || (err == nil) != c.allowed {
					t.Fatalf("%+v, %v", d, err)
				}
				if took := time.Since(before); took > 100*time.Millisecond {
					t.Errorf("it took %s", took)
				}
				if diff := cmp.Diff(c.nodes, cl.askedNodes()); diff != "" {
					t.Error(diff)
				}
				var e *Error
				if errors.As(err, &e) && (e.MaybeConsumed != c.maybe || e.Attempts != len(c.nodes) || e.ID == "") {
					t.Errorf("%+v", e)
				}
				for i, a := range cl.seen() {
					if a.check.GetDecisionId() != cl.seen()[0].check.GetDecisionId() || int(a.check.GetAttempt()) != i+1 {
						t.Errorf("attempt %d is %v", i+1, a.check)
					}
				}
				if s := client.Stats(); cl.overlap != 0 || s.Sends != 1 || int(s.Retries) != len(c.nodes)-1 {
					t.Errorf("%d overlap, %+v", cl.overlap, s)
				}
			})
		})
	}
}

// Shows that for many checks at once, with answers that are late, lost or refused, an id is never sent twice at once, nor
// more than three times, nor outside its timeout.
func TestRetriesNeverOverlap(t *testing.T) {
	var n int
	var mu sync.Mutex
	script := func(a asked) reply {
		mu.Lock()
		n++
		i := n
		mu.Unlock()
		out := []func() reply{allow, refusing("frozen", ""), refusing("not_leader", "b"), allow,
			refusing("outcome_unknown", ""), func() reply { return reply{silent: true} }}[i%6]()
		out.after = time.Duration(i%5) * 7 * time.Millisecond
		return out
	}
	world(t, 3, script, func(t *testing.T, c *cluster, client *Client) {
		var all sync.WaitGroup
		for i := range 60 {
			all.Go(func() {
				for range 10 {
					before := time.Now()
					_, _ = client.Check(bg(), fmt.Sprint(i), "deny")
					if took := time.Since(before); took > 100*time.Millisecond {
						t.Errorf("it took %s", took)
					}
				}
			})
		}
		all.Wait()
		sends := map[string][]time.Time{}
		for _, a := range c.seen() {
			sends[a.check.GetDecisionId()] = append(sends[a.check.GetDecisionId()], a.at)
		}
		retried := 0
		for id, at := range sends {
			if len(at) > router.MaxSends || at[len(at)-1].Sub(at[0]) > 100*time.Millisecond {
				t.Errorf("%s was sent at %v", id, at)
			}
			retried += len(at) - 1
		}
		if retried == 0 || c.overlap != 0 {
			t.Errorf("%d were retried, %d of them while an attempt was under way", retried, c.overlap)
		}
	}, WithRetryBudget(1, 1000))
}

// Shows that a definite answer is never followed by another attempt: each decision, and each reason to fix the request
// or to send less.
func TestDefiniteIsNotRetried(t *testing.T) {
	for _, r := range quotaerr.All() {
		answer := func(asked) reply { return refuse(r) }
		switch {
		case r == quotaerr.Allowed:
			answer = alwaysAllow
		case r.IsDecision():
			answer = func(asked) reply { out := deny(time.Second); out.decision.Reason = string(r); return out }
		case again[r]:
			continue
		}
		world(t, 3, answer, func(t *testing.T, c *cluster, client *Client) {
			d, err := client.Check(bg(), "acme", "deny")
			if n := len(c.seen()); n != 1 || d.Allowed != (r == quotaerr.Allowed) || (err == nil) != r.IsDecision() {
				t.Errorf("%s: sent %d times, %+v, %v", r, n, d, err)
			}
		})
	}
}

// again are the reasons after which the same check may be sent again.
var again = map[quotaerr.Reason]bool{
	quotaerr.PolicyStale: true, quotaerr.PolicyBehind: true, quotaerr.WrongEpoch: true, quotaerr.NotLeader: true,
	quotaerr.Frozen: true, quotaerr.OutcomeUnknown: true,
}

// Shows that a leader which an answer names is asked first from then on.
func TestLeaderIsLearned(t *testing.T) {
	world(t, 3, func(asked) reply { r := allow(); r.leader = "c"; return r },
		func(t *testing.T, c *cluster, client *Client) {
			for range 3 {
				if _, err := client.Check(bg(), "acme", "deny"); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff([]string{"a", "c", "c"}, c.askedNodes()); diff != "" {
				t.Error(diff)
			}
		})
}

// Shows that after wrong_epoch a check goes on by the new map, if it comes in time, and else lets the node fill in the
// epoch that it knows.
func TestRefresh(t *testing.T) {
	script := func(a asked) reply {
		if a.check.GetRouteEpoch() == 7 {
			r := refuse(quotaerr.WrongEpoch)
			r.refusal.Epoch = 9
			return r
		}
		return allow()
	}
	for _, published := range []bool{true, false} {
		world(t, 3, script, func(t *testing.T, c *cluster, client *Client) {
			if published {
				time.AfterFunc(10*time.Millisecond, func() {
					c.publish(func(m *quoratev1.WatchConfigResponse) {
						m.Map.Version, m.Map.Ranges[0].Slots.Epoch, m.Map.Partitions[0].Leader = 2, 9, "b"
					})
				})
			}
			d, err := client.Check(bg(), "acme", "deny")
			if err != nil || !d.Verified() || d.Attempts != 2 {
				t.Fatalf("%+v, %v", d, err)
			}
			last := c.seen()[1]
			if want := map[bool]uint64{true: 9, false: 0}[published]; last.check.GetRouteEpoch() != want {
				t.Errorf("published %t: node %s was asked with epoch %d", published, last.node, last.check.GetRouteEpoch())
			}
			if published && last.node != "b" {
				t.Errorf("node %s was asked", last.node)
			}
			// Until the map has come the next check does not carry an epoch that is known to be old.
			if d, err := client.Check(bg(), "acme", "deny"); err != nil || d.Attempts != 1 {
				t.Errorf("published %t: the next one: %+v, %v", published, d, err)
			}
		})
	}
}

// Shows that a node that is not there costs its checks nothing but a look: the next replica is asked at once, and first
// from then on.
func TestNodeIsDown(t *testing.T) {
	world(t, 3, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		c.stop("a")
		for range 3 {
			before := time.Now()
			d, err := client.Check(bg(), "acme", "deny")
			if err != nil || d.Attempts != 1 || time.Since(before) != 0 {
				t.Errorf("%+v, %v after %s", d, err, time.Since(before))
			}
		}
		if diff := cmp.Diff([]string{"b", "b", "b"}, c.askedNodes()); diff != "" {
			t.Error(diff)
		}
		if s := client.Stats(); s.Retries != 0 {
			t.Errorf("what was not sent counts as %d retries", s.Retries)
		}
	})
}

// Shows that a node whose answers and questions are lost is given up after a second, that another replica then decides,
// and that until then a check ends within its class's timeout.
func TestBlackHole(t *testing.T) {
	world(t, 3, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		if _, err := client.Check(bg(), "acme", "deny"); err != nil {
			t.Fatal(err)
		}
		c.node("a").hole.Store(true)
		began := time.Now()
		for {
			before := time.Now()
			d, err := client.Check(bg(), "acme", "deny")
			if took := time.Since(before); took > 100*time.Millisecond {
				t.Fatalf("it took %s", took)
			}
			if err == nil {
				if !d.Verified() {
					t.Errorf("%+v", d)
				}
				break
			}
			if !errors.Is(err, ErrUnavailable) || time.Since(began) > 2*time.Second {
				t.Fatalf("%v after %s", err, time.Since(began))
			}
		}
		if took := time.Since(began); took > 1200*time.Millisecond {
			t.Errorf("another replica was asked after %s", took)
		}
		if last := c.askedNodes(); last[len(last)-1] != "b" || client.Stats().NodesGivenUp != 1 {
			t.Errorf("asked were %v, given up %d times", last, client.Stats().NodesGivenUp)
		}
	})
}

// Shows that a node which falls silent while hardly anything is asked is given up as well: the next check, seconds later,
// goes to another replica first.
func TestSilentBetweenChecks(t *testing.T) {
	world(t, 3, func(a asked) reply { r := allow(); r.silent = a.node == "a"; return r },
		func(t *testing.T, c *cluster, client *Client) {
			if _, err := client.Check(bg(), "acme", "deny"); !errors.Is(err, ErrUnavailable) {
				t.Error(err)
			}
			elapse(2 * time.Second)
			if d, err := client.Check(bg(), "acme", "deny"); err != nil || d.Attempts != 1 || c.askedNodes()[1] != "b" {
				t.Errorf("%+v, %v, asked %v", d, err, c.askedNodes())
			}
		})
}

// Shows that a node without a majority ends its check, and that the next one asks another replica, which may be among
// those that have one.
func TestCutOffNodeIsLeft(t *testing.T) {
	for _, reason := range []quotaerr.Reason{quotaerr.NoQuorum, quotaerr.PolicyLeaseExpired} {
		world(t, 3, inOrder(refusing(reason, ""), allow), func(t *testing.T, c *cluster, client *Client) {
			_, first := client.Check(bg(), "acme", "deny")
			_, second := client.Check(bg(), "acme", "deny")
			if !errors.Is(first, ErrUnavailable) || second != nil || !slices.Equal(c.askedNodes(), []string{"a", "b"}) {
				t.Errorf("%v, %v, asked %v", first, second, c.askedNodes())
			}
		})
	}
}

// Shows that a wait before a retry is that which was asked for, or up to half as much longer, and never shorter; and that
// not all are the same.
func TestJitterOnlyAdds(t *testing.T) {
	frozen := func() reply { r := refuse(quotaerr.Frozen); r.refusal.RetryAfterMs = 20; return r }
	waits := map[time.Duration]bool{}
	for range 20 {
		world(t, 1, inOrder(frozen, allow), func(t *testing.T, c *cluster, client *Client) {
			if _, err := client.Check(bg(), "acme", "deny"); err != nil {
				t.Fatal(err)
			}
			wait := c.seen()[1].at.Sub(c.seen()[0].at)
			if wait < 20*time.Millisecond || wait > 30*time.Millisecond {
				t.Errorf("it waited %s", wait)
			}
			waits[wait] = true
		})
	}
	if len(waits) < 10 {
		t.Errorf("only %d different waits", len(waits))
	}
}

// Shows that a check ends at half its class's replay horizon, should that be before its timeout: a later attempt could
// consume a second time.
func TestEndsWithinHalfTheHorizon(t *testing.T) {
	world(t, 1, func(asked) reply { return refuse(quotaerr.Frozen) }, func(t *testing.T, c *cluster, client *Client) {
		short := classOf("short", modeDeny)
		short.Timeout, short.ReplayHorizon = durationpb.New(time.Second), durationpb.New(16*time.Millisecond)
		c.publish(func(m *quoratev1.WatchConfigResponse) { m.Policy = settingsOf(2, short) })
		synctest.Wait()
		began := time.Now()
		if _, err := client.Check(bg(), "acme", "short"); !errors.Is(err, ErrUnavailable) || time.Since(began) > 8*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		if n := len(c.seen()); n > 2 {
			t.Errorf("it was sent %d times", n)
		}
		short.ReplayHorizon = durationpb.New(400 * time.Millisecond)
		c.publish(func(m *quoratev1.WatchConfigResponse) { m.Policy = settingsOf(3, short) })
		c.dumb.Store(true)
		synctest.Wait()
		began = time.Now()
		if _, err := client.Check(bg(), "acme", "short"); !errors.Is(err, ErrUnavailable) || time.Since(began) != 200*time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// Shows that retries are bounded by a share of the first sends, and that what is withheld is counted.
func TestRetryBudget(t *testing.T) {
	world(t, 1, func(asked) reply { return refuse(quotaerr.Frozen) }, func(t *testing.T, c *cluster, client *Client) {
		for i := range 200 {
			if _, err := client.Check(bg(), fmt.Sprint(i), "deny"); !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
		}
		s := client.Stats()
		if s.Sends != 200 || s.Retries == 0 || s.Retries > 20 || s.RetriesWithheld == 0 {
			t.Errorf("%d sends, %d retries, %d withheld", s.Sends, s.Retries, s.RetriesWithheld)
		}
	}, WithRetryBudget(0.1, 0))
}

// Shows that an owner that takes 200 ms, but is not dead, makes no check late, is not given up and not asked again, and
// that nothing piles up: classes with less time end at their timeout, those with more get their answers.
func TestSlowOwner(t *testing.T) {
	slow := func(asked) reply { r := allow(); r.after = 200 * time.Millisecond; return r }
	world(t, 3, slow, func(t *testing.T, c *cluster, client *Client) {
		patient := classOf("patient", modeDeny)
		patient.Timeout = durationpb.New(time.Second)
		c.publish(func(m *quoratev1.WatchConfigResponse) { m.Policy = settingsOf(2, append(modes(), patient)...) })
		synctest.Wait()
		var all sync.WaitGroup
		most := 0
		for i := range 200 {
			for class, timeout := range map[string]time.Duration{"deny": 100 * time.Millisecond, "patient": time.Second} {
				all.Go(func() {
					before := time.Now()
					d, err := client.Check(bg(), fmt.Sprint(i), class)
					if took := time.Since(before); took > timeout || d.Allowed != (class == "patient") || d.Allowed != (err == nil) {
						t.Errorf("%s: %+v, %v after %s", class, d, err, took)
					}
				})
			}
			elapse(10 * time.Millisecond)
			most = max(most, runtime.NumGoroutine())
		}
		all.Wait()
		s := client.Stats()
		if s.Sends != 400 || float64(s.Sends+s.Retries) >= 1.1*400 || s.NodesGivenUp != 0 || s.InFlight != 0 {
			t.Errorf("%d sends, %d retries, %d nodes given up, %d in flight", s.Sends, s.Retries, s.NodesGivenUp, s.InFlight)
		}
		// 10 and 20 checks wait at a time, in the client and in the node; the rest are the connections'.
		if most > 150 {
			t.Errorf("%d goroutines at a time", most)
		}
	})
}

// Shows that what a node says to a whole stream is an answer to its checks: who may not ask, or too much, is told so, and
// that is no reason for the failure mode.
func TestRefusedAtTheDoor(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.Unauthenticated: ErrRefused, codes.PermissionDenied: ErrRefused,
		codes.ResourceExhausted: ErrOverloaded,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := mustCluster(t, 1, alwaysAllow, modes()...)
			defer c.close()
			c.node("a").door = status.Error(code, "no")
			client := c.mustClient()
			defer mustClose(t, client)
			d, err := client.Check(bg(), "acme", "allow")
			if !errors.Is(err, want) || d.Allowed {
				t.Errorf("%s: %+v, %v", code, d, err)
			}
		})
	}
}

// Shows that where CheckStream is not known, as behind a wrong address, nobody has read the check: another node is asked,
// and if there is none the owner cannot be reached.
func TestUnknownCallIsNoRefusal(t *testing.T) {
	for nodes, want := range map[int]ending{3: endsAllowed, 1: endsBypass} {
		synctest.Test(t, func(t *testing.T) {
			c := mustCluster(t, nodes, alwaysAllow, modes()...)
			defer c.close()
			c.node("a").door = status.Error(codes.Unimplemented, "unknown method")
			client := c.mustClient()
			defer mustClose(t, client)
			for range 2 {
				d, err := client.Check(bg(), "acme", "allow")
				if got := endingOf(t, d, err); got != want || d.Allowed && d.Verified() && d.Attempts != 1 {
					t.Errorf("%d nodes: %s, want %s: %+v, %v, asked %v", nodes, got, want, d, err, c.askedNodes())
				}
			}
			_, err := client.Check(bg(), "acme", "deny")
			var e *Error
			if nodes == 1 && (!errors.As(err, &e) || e.Reason != quotaerr.NoQuorum || e.MaybeConsumed || errors.Is(err, ErrRefused)) {
				t.Errorf("%+v", err)
			}
		})
	}
}

// Shows that nodes which are no longer in the map are let go.
func TestNodesLeave(t *testing.T) {
	world(t, 3, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		if _, err := client.Check(bg(), "acme", "deny"); err != nil {
			t.Fatal(err)
		}
		c.publish(func(m *quoratev1.WatchConfigResponse) {
			m.Map.Version, m.Map.Partitions[0].Leader, m.Map.Partitions[0].Replicas = 2, "b", []string{"b", "c"}
			m.Map.Nodes = slices.Delete(m.Map.Nodes, 0, 1)
		})
		synctest.Wait()
		if n := client.Stats().Nodes; n != 0 {
			t.Errorf("%d nodes are connected", n)
		}
		if _, err := client.Check(bg(), "acme", "deny"); err != nil || c.askedNodes()[1] != "b" {
			t.Errorf("%v, asked %v", err, c.askedNodes())
		}
	})
}
