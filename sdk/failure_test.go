package sdk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// ending is what is to come of a check.
type ending string

const (
	endsAllowed     ending = "allowed by the owner"
	endsDenied      ending = "denied by the owner"
	endsDisabled    ending = "switched off"
	endsBypass      ending = "let through"
	endsLocal       ending = "let through locally"
	endsUnavailable ending = "unavailable"
	endsOverloaded  ending = "overloaded"
	endsRefused     ending = "refused"
	endsMode        ending = "as the failure mode says"
)

// endingOf is what came of a check. It is an error that something was allowed in any other way.
func endingOf(t *testing.T, d Decision, err error) ending {
	t.Helper()
	if d.Allowed && (err != nil || d.Source == SourceHint || d.Source == SourceConfig || d.Source == SourceNone) {
		t.Errorf("allowed by %s, %v", d.Source, err)
	}
	if d.Allowed != d.Verified() && d.Cause == nil {
		t.Errorf("let through without a cause: %+v", d)
	}
	switch {
	case errors.Is(err, ErrUnavailable):
		return endsUnavailable
	case errors.Is(err, ErrOverloaded):
		return endsOverloaded
	case errors.Is(err, ErrRefused):
		return endsRefused
	case err != nil:
		return ending(err.Error())
	case d.Source == SourceBypass && d.Allowed:
		return endsBypass
	case d.Source == SourceLocal && d.Allowed:
		return endsLocal
	case d.Source == SourceConfig:
		return endsDisabled
	case d.Allowed:
		return endsAllowed
	}
	return endsDenied
}

// byMode are the endings of a class of each mode where its mode decides.
var byMode = map[string]ending{"deny": endsUnavailable, "allow": endsBypass, "local": endsLocal}

// endings says of every reason what comes of a check that meets nothing else.
var endings = map[quotaerr.Reason]ending{
	quotaerr.Allowed:            endsAllowed,
	quotaerr.QuotaExhausted:     endsDenied,
	quotaerr.Blocked:            endsDenied,
	quotaerr.EndpointDisabled:   endsDenied,
	quotaerr.InvalidArgument:    endsRefused,
	quotaerr.CostExceedsLimit:   endsRefused,
	quotaerr.DecisionIDConflict: endsRefused,
	quotaerr.Unauthenticated:    endsRefused,
	quotaerr.PermissionDenied:   endsRefused,
	quotaerr.PolicyStale:        endsUnavailable,
	quotaerr.PolicyBehind:       endsUnavailable,
	quotaerr.WrongEpoch:         endsUnavailable,
	quotaerr.NotLeader:          endsMode, // an election that outlasts the check
	quotaerr.Frozen:             endsUnavailable,
	quotaerr.Overloaded:         endsOverloaded,
	quotaerr.Capacity:           endsOverloaded,
	quotaerr.NoQuorum:           endsMode,
	quotaerr.PolicyLeaseExpired: endsMode,
	quotaerr.OutcomeUnknown:     endsMode,
	quotaerr.Internal:           endsUnavailable,
}

// Shows, for every public reason and a class of each failure mode, what comes of a check: the mode decides only where
// nobody else could, also where an attempt that was lost came before.
func TestEveryReasonAndMode(t *testing.T) {
	for _, reason := range quotaerr.All() {
		want, ok := endings[reason]
		if !ok {
			t.Errorf("%s is not in the table", reason)
		}
		answer := refusing(reason, "")
		switch {
		case reason == quotaerr.Allowed:
			answer = allow
		case reason.IsDecision():
			answer = func() reply { r := deny(time.Second); r.decision.Reason = string(reason); return r }
		}
		for class := range byMode {
			for lost, script := range []func(asked) reply{inOrder(answer), inOrder(breaking, answer)} {
				world(t, 3, script, func(t *testing.T, c *cluster, client *Client) {
					want := want
					if want == endsMode {
						want = byMode[class]
					}
					d, err := client.Check(bg(), "acme", class)
					if got := endingOf(t, d, err); got != want {
						t.Errorf("%s, class %s, %d lost before: %s, want %s", reason, class, lost, got, want)
					}
					var e *Error
					if errors.As(err, &e) && !e.Reason.Known() {
						t.Errorf("reason %q is not known", e.Reason)
					}
				})
			}
		}
	}
}

// Shows that one outage is one to the user: whether the leader refuses connections or breaks them off, and whether the
// others say that they do not lead or that there is no majority, the failure mode decides; but not where a move was seen.
func TestElection(t *testing.T) {
	noLeader, noQuorum, frozen := refusing("not_leader", ""), refusing("no_quorum", ""), refusing("frozen", "")
	for name, c := range map[string]struct {
		down    bool
		replies []func() reply
		moved   bool
	}{
		"refused":            {true, []func() reply{noLeader}, false},
		"refused, no quorum": {true, []func() reply{noLeader, noQuorum}, false},
		"broken off":         {false, []func() reply{breaking, noLeader}, false},
		"all there":          {false, []func() reply{noLeader}, false},
		"all there, waning":  {false, []func() reply{noLeader, noQuorum}, false},
		"pointing about":     {false, []func() reply{refusing("not_leader", "b"), refusing("not_leader", "c")}, false},
		"a move":             {false, []func() reply{frozen, noLeader}, true},
		"refused, a move":    {true, []func() reply{noLeader, frozen}, true},
	} {
		for class, want := range byMode {
			if c.moved {
				want = endsUnavailable
			}
			world(t, 3, inOrder(c.replies...), func(t *testing.T, cl *cluster, client *Client) {
				if c.down {
					cl.stop("a")
				}
				d, err := client.Check(bg(), "acme", class)
				if got := endingOf(t, d, err); got != want {
					t.Errorf("%s, class %s: %s, want %s: %v", name, class, got, want, err)
				}
			})
		}
	}
}

// Shows what is not understood is never an allow, nor a case for the failure mode: outcomes and reasons that are not
// known or contradict each other, an answer that says nothing, and one to another check.
func TestNotUnderstoodIsNoAllow(t *testing.T) {
	answers := map[string]func() reply{
		"unspecified":        func() reply { r := allow(); r.decision.Outcome = 0; return r },
		"unknown outcome":    func() reply { r := allow(); r.decision.Outcome = 17; return r },
		"unknown reason":     func() reply { r := allow(); r.decision.Reason = "granted"; return r },
		"no reason":          func() reply { r := allow(); r.decision.Reason = ""; return r },
		"allowed, exhausted": func() reply { r := allow(); r.decision.Reason = "quota_exhausted"; return r },
		"denied, allowed":    func() reply { r := deny(1); r.decision.Reason = "allowed"; return r },
		"denied, unknown":    func() reply { r := deny(1); r.decision.Reason = "moon"; return r },
		"denied, an error":   func() reply { r := deny(1); r.decision.Reason = "overloaded"; return r },
		"says nothing":       func() reply { return reply{empty: true} },
		"refused, unknown":   func() reply { return refuse("bogus") },
		"refused, no reason": func() reply { return refuse("") },
		"refused, allowed":   func() reply { return refuse(quotaerr.Allowed) },
		"another's":          func() reply { r := allow(); r.otherID = true; return r },
	}
	for name, answer := range answers {
		for class := range byMode {
			world(t, 1, inOrder(answer), func(t *testing.T, c *cluster, client *Client) {
				d, err := client.Check(bg(), "acme", class)
				var e *Error
				if endingOf(t, d, err) != endsUnavailable || !errors.As(err, &e) || e.Reason != quotaerr.Internal ||
					!e.MaybeConsumed || len(c.seen()) != 1 {
					t.Errorf("%s, class %s: %+v, %v, sent %d times", name, class, d, err, len(c.seen()))
				}
			})
		}
	}
}

// Shows what comes of a check of each mode where nobody is there to answer, and that it comes within the timeout; and
// that all of it ends when the nodes are back.
func TestNobodyAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		harm, mend func(*cluster)
	}{
		"all down": {
			func(c *cluster) { c.stop("a"); c.stop("b"); c.stop("c") },
			func(c *cluster) { c.start("a"); c.start("b"); c.start("c") },
		},
		"all silent": {
			func(c *cluster) { c.dumb.Store(true) }, func(c *cluster) { c.dumb.Store(false) },
		},
		"nobody owns the slot": {
			func(c *cluster) {
				c.publish(func(m *quoratev1.WatchConfigResponse) { m.Map.Version, m.Map.Ranges = 2, nil })
			},
			func(c *cluster) {
				c.publish(func(m *quoratev1.WatchConfigResponse) {
					m.Map.Version, m.Map.Ranges = 3, []*quoratev1.RoutingRange{{
						Slots: &quoratev1.SlotRange{LastSlot: 16383, Epoch: 9}, Partition: "p1",
					}}
				})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, 3, alwaysAllow, func(t *testing.T, cl *cluster, client *Client) {
				c.harm(cl)
				synctest.Wait()
				for class, want := range byMode {
					for i := range 3 {
						before := time.Now()
						d, err := client.Check(bg(), "acme", class)
						if took := time.Since(before); took > 100*time.Millisecond {
							t.Errorf("%s took %s", class, took)
						}
						if class == "local" && i == 2 {
							want = endsUnavailable // the local limit is 2
						}
						if got := endingOf(t, d, err); got != want {
							t.Errorf("%s: %s, want %s: %v", class, got, want, err)
						}
					}
				}
				if s := client.Stats(); s.Classes["allow"].Bypassed != 3 || s.Classes["local"].Local != 2 ||
					s.Classes["local"].LocalDenied != 1 || s.Classes["deny"].Unavailable != 3 {
					t.Errorf("%+v", s)
				}
				c.mend(cl)
				elapse(2 * time.Second)
				for class := range byMode {
					d, err := client.Check(bg(), "acme", class)
					if got := endingOf(t, d, err); got != endsAllowed {
						t.Errorf("two seconds later %s is %s: %v", class, got, err)
					}
				}
			})
		})
	}
}

// Shows that the local limit is kept over its rolling window, and that the error of who has no room says to wait until
// there is some, or as long as that of the mode deny if that is shorter: the owner may be back by then.
func TestLocalLimit(t *testing.T) {
	world(t, 1, func(asked) reply { return refuse(quotaerr.NoQuorum) }, func(t *testing.T, c *cluster, client *Client) {
		check := func(principal string, want ending) error {
			t.Helper()
			d, err := client.Check(bg(), principal, "local")
			if got := endingOf(t, d, err); got != want {
				t.Errorf("%s: %s, want %s", principal, got, want)
			}
			return err
		}
		denied := new(Error)
		if _, err := client.Check(bg(), "acme", "deny"); !errors.As(err, &denied) || denied.RetryAfter <= 0 {
			t.Errorf("%+v", err)
		}
		_ = check("acme", endsLocal)
		elapse(20 * time.Second)
		_ = check("acme", endsLocal)
		var e *Error
		if err := check("acme", endsUnavailable); !errors.As(err, &e) || e.RetryAfter != denied.RetryAfter ||
			e.Reason != quotaerr.NoQuorum || strings.ContainsAny(e.Error(), "\n") {
			t.Errorf("%+v", err)
		}
		_ = check("other", endsLocal)
		elapse(40*time.Second - 1)
		if err := check("acme", endsUnavailable); !errors.As(err, &e) || e.RetryAfter != 1 {
			t.Errorf("%+v", err)
		}
		elapse(1)
		_ = check("acme", endsLocal)
		if d, err := client.Check(bg(), "big", "local", WithCost(3)); endingOf(t, d, err) != endsUnavailable {
			t.Errorf("a cost above the limit: %+v", d)
		}
	})
}

// Shows that a check of several classes is let through only if each class's mode does.
func TestStrictestModeCounts(t *testing.T) {
	world(t, 1, func(asked) reply { return refuse(quotaerr.NoQuorum) }, func(t *testing.T, c *cluster, client *Client) {
		for _, k := range []struct {
			class, also string
			want        ending
		}{{"allow", "allow", endsBypass}, {"allow", "deny", endsUnavailable}, {"deny", "allow", endsUnavailable},
			{"allow", "unlisted", endsUnavailable}, {"local", "deny", endsUnavailable}, {"allow", "local", endsLocal},
			{"local", "allow", endsLocal}, {"allow", "local", endsUnavailable}} {
			d, err := client.Check(bg(), "acme", k.class, WithAlso(Charge{Class: k.also}))
			if got := endingOf(t, d, err); got != k.want {
				t.Errorf("%s and %s: %s, want %s", k.class, k.also, got, k.want)
			}
		}
	})
}

func disabled(name string, mode quoratev1.FailureMode) *quoratev1.ClassSettings {
	c := classOf(name, mode)
	c.Disabled = true
	return c
}

// Shows that a class that is switched off is refused here while the watch is live, by the owner while it is not, and here
// again where the owner is away too, whatever its mode.
func TestDisabledClass(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		c.publish(func(m *quoratev1.WatchConfigResponse) {
			m.Policy = settingsOf(2, append(modes(), disabled("off", modeAllow))...)
		})
		synctest.Wait()
		for _, also := range [][2]string{{"off", "allow"}, {"allow", "off"}} {
			d, err := client.Check(bg(), "acme", also[0], WithAlso(Charge{Class: also[1]}))
			if got := endingOf(t, d, err); got != endsDisabled || d.Reason != "endpoint_disabled" || d.PolicyRevision != 2 {
				t.Errorf("%v: %s, %+v", also, got, d)
			}
		}
		if n := len(c.seen()); n != 0 {
			t.Errorf("%d checks were sent", n)
		}
		c.mu.Lock()
		c.mute = true
		c.mu.Unlock()
		elapse(6 * time.Second)
		if d, err := client.Check(bg(), "acme", "off"); endingOf(t, d, err) != endsAllowed {
			t.Errorf("with no live watch the owner is to be asked: %+v, %v", d, err)
		}
		c.stop("a")
		if d, err := client.Check(bg(), "acme", "off"); endingOf(t, d, err) != endsDisabled {
			t.Errorf("without the owner: %+v, %v", d, err)
		}
	})
}

// Shows that the last configuration holds for the grace after it was confirmed last, and that every class is denied
// then, until it is confirmed again.
func TestConfigGrace(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		c.stop("a")
		synctest.Wait()
		check := func(want ending) {
			t.Helper()
			d, err := client.Check(bg(), "acme", "allow")
			if got := endingOf(t, d, err); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		check(endsBypass)
		elapse(time.Minute - 300*time.Millisecond) // each check takes up to its timeout of 100 ms
		check(endsBypass)
		elapse(200 * time.Millisecond)
		check(endsUnavailable)
		c.start("a")
		elapse(2 * time.Second)
		check(endsAllowed)
		c.stop("a")
		check(endsBypass)
	}, WithConfigGrace(time.Minute))
}

// Shows that before the cluster was reached once the policy file says what to do, timeouts and switched off classes
// included; that without one everything is denied; and that the cluster's own settings count from when they are there.
func TestBeforeFirstContact(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	const text = `version: p1
default: {limits: [{name: default, limit: 10, window: 60s}]}
classes:
  open: {limits: [{name: m, limit: 3, window: 60s}], on_unavailable: allow, timeout: 30ms}
  few: {limits: [{name: m, limit: 3, window: 60s}], on_unavailable: local, local_limit: {limit: 1, window: 60s}}
  shut: {limits: [{name: m, limit: 3, window: 60s}], on_unavailable: allow, disabled: true}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		options []Option
		want    map[string]ending
	}{
		{nil, map[string]ending{"open": endsUnavailable, "few": endsUnavailable, "shut": endsUnavailable, "x": endsUnavailable}},
		{[]Option{WithPolicyFile(file)}, map[string]ending{
			"open": endsBypass, "few": endsLocal, "shut": endsDisabled, "x": endsUnavailable,
		}},
	} {
		for _, way := range []string{"down", "silent"} {
			synctest.Test(t, func(t *testing.T) {
				cl := mustCluster(t, 1, alwaysAllow, classOf("default", modeDeny), classOf("open", modeDeny))
				defer cl.close()
				if cl.mute = way == "silent"; way == "down" {
					cl.stop("a")
				}
				client := cl.mustClient(c.options...)
				defer mustClose(t, client)
				for class, want := range c.want {
					before := time.Now()
					d, err := client.Check(bg(), "acme", class)
					if got := endingOf(t, d, err); got != want {
						t.Errorf("%s: %s, want %s", class, got, want)
					}
					took, most := time.Since(before), 100*time.Millisecond
					if class == "open" && c.options != nil {
						most = 30 * time.Millisecond
					}
					if took > most {
						t.Errorf("%s took %s", class, took)
					}
				}
				cl.mu.Lock()
				cl.mute = false
				cl.mu.Unlock()
				if way == "down" {
					cl.start("a")
				}
				elapse(5 * time.Second)
				if d, err := client.Check(bg(), "acme", "open"); endingOf(t, d, err) != endsAllowed {
					t.Errorf("%+v, %v", d, err)
				}
				cl.stop("a")
				if d, err := client.Check(bg(), "acme", "open"); endingOf(t, d, err) != endsUnavailable {
					t.Errorf("the file still counts: %+v, %v", d, err)
				}
			})
		}
	}
}

// Shows that the first check waits for the configuration and is then decided by the class's own timeout.
func TestFirstCheckWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		patient := classOf("patient", modeAllow)
		patient.Timeout = durationpb.New(time.Second)
		slow := func(asked) reply { r := allow(); r.after = 300 * time.Millisecond; return r }
		c := mustCluster(t, 1, slow, append(modes(), patient)...)
		defer c.close()
		c.dialDelay = 50 * time.Millisecond
		client := c.mustClient()
		defer mustClose(t, client)
		if d, err := client.Check(bg(), "acme", "patient"); endingOf(t, d, err) != endsAllowed {
			t.Errorf("%+v, %v", d, err)
		}
	})
}
