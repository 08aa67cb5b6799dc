package sdk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/bound"
)

// world runs f in virtual time against n nodes; whatever they and the client have started must have ended with it.
func world(
	t *testing.T, n int, script func(asked) reply, f func(t *testing.T, c *cluster, client *Client), options ...Option,
) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := mustCluster(t, n, script, modes()...)
		defer c.close()
		client := c.mustClient(options...)
		defer mustClose(t, client)
		mustReady(t, client)
		f(t, c, client)
	})
}

// Shows that a check is decided by the owner, what it is asked and what the decision says.
func TestCheck(t *testing.T) {
	world(t, 3, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		d, err := client.Check(bg(), "acme", "deny", WithCost(2), WithTier("pro"), WithAlso(Charge{Class: "export"}))
		if err != nil || !d.Verified() || d.Attempts != 1 || d.ID == "" || d.Remaining != 2 {
			t.Fatalf("%+v, %v", d, err)
		}
		got := c.seen()[0]
		if got.node != "a" || got.check.GetCost() != 2 || got.check.GetTier() != "pro" || got.check.GetRouteEpoch() != 7 ||
			got.check.GetAttempt() != 1 || got.check.GetPolicyRevision() != 0 || got.check.GetAlso()[0].GetCost() != 1 {
			t.Errorf("node %s got %v", got.node, got.check)
		}
		if _, err := client.Check(bg(), "acme", "deny", WithID("mine")); err != nil {
			t.Fatal(err)
		}
		if got := c.seen()[1].check.GetDecisionId(); got != "mine" {
			t.Errorf("the id is %q", got)
		}
		if s := client.Stats(); s.Sends != 2 || s.Classes["deny"].Allowed != 2 || s.InFlight != 0 || !s.WatchLive {
			t.Errorf("%+v", s)
		}
		c.publish(func(m *quoratev1.WatchConfigResponse) { m.Policy = settingsOf(2, classOf("deny", modeAllow)) })
		synctest.Wait()
		if s := client.Stats(); s.Classes["deny"].Allowed != 2 || len(s.Classes) != 2 || s.PolicyRevision != 2 {
			t.Errorf("under the next revision: %+v", s)
		}
	})
}

// Shows that ids differ between checks, the runs that make them and clients, also where a run takes its next numbers, and
// are no longer than the contract has them.
func TestIDsAreUnique(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		other := c.mustClient()
		defer mustClose(t, other)
		ids := map[string]bool{}
		k := checkOf("acme", "deny", nil)
		runs := []*run{client.newRun(&k, 1, math.MaxInt64), client.newRun(&k, 1, math.MaxInt64), other.newRun(&k, 1, math.MaxInt64)}
		for range 3 * idsOfARun {
			for _, r := range runs {
				id := r.nextID()
				if ids[id] || len(id) > bound.DecisionIDBytes {
					t.Fatalf("id %q came twice, or is too long", id)
				}
				ids[id] = true
			}
		}
	})
}

// Shows that a decision that is asked for costs its id alone, of memory, beside what is sent and answered.
func TestRunAllocates(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		k := checkOf("acme", "deny", nil)
		if n := testing.AllocsPerRun(1000, func() {
			if err := client.admit(&k, 1); err != nil {
				t.Fatal(err)
			}
			r := client.newRun(&k, 1, math.MaxInt64)
			if f := r.firstRoute(); f != nil {
				t.Fatal(f.err)
			}
			r.end()
			client.leave(&k)
		}); n > 1 {
			t.Errorf("%v allocations", n)
		}
	}, WithPrincipalCeiling(0))
}

// Shows that what the owner would call malformed is refused here, and not sent.
func TestMalformedIsNotSent(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		long := strings.Repeat("x", 513)
		for name, ask := range map[string]func() (Decision, error){
			"no principal":   func() (Decision, error) { return client.Check(bg(), "", "allow") },
			"long principal": func() (Decision, error) { return client.Check(bg(), long, "allow") },
			"NUL":            func() (Decision, error) { return client.Check(bg(), "a\x00", "allow") },
			"not UTF-8":      func() (Decision, error) { return client.Check(bg(), "a\xff", "allow") },
			"no class":       func() (Decision, error) { return client.Check(bg(), "a", "") },
			"long class":     func() (Decision, error) { return client.Check(bg(), "a", long[:129]) },
			"long tier":      func() (Decision, error) { return client.Check(bg(), "a", "allow", WithTier(long[:65])) },
			"cost 0":         func() (Decision, error) { return client.Check(bg(), "a", "allow", WithCost(0)) },
			"cost below 0":   func() (Decision, error) { return client.Check(bg(), "a", "allow", WithCost(-1)) },
			"cost too large": func() (Decision, error) { return client.Check(bg(), "a", "allow", WithCost(1<<53+1)) },
			"no id":          func() (Decision, error) { return client.Check(bg(), "a", "allow", WithID("")) },
			"long id":        func() (Decision, error) { return client.Check(bg(), "a", "allow", WithID(long[:129])) },
			"8 more": func() (Decision, error) {
				return client.Check(bg(), "a", "allow", WithAlso(make([]Charge, 8)...))
			},
			"more of cost -1": func() (Decision, error) {
				return client.Check(bg(), "a", "allow", WithAlso(Charge{Class: "b", Cost: -1}))
			},
		} {
			d, err := ask()
			var e *Error
			if d.Allowed || !errors.Is(err, ErrRefused) || !errors.As(err, &e) || e.Reason != quotaerr.InvalidArgument {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
		}
		if n := len(c.seen()); n != 0 {
			t.Errorf("%d checks were sent", n)
		}
	})
}

// Shows that checks which queue while a connection is made leave together, in as few frames as their bounds allow.
func TestConcurrentChecksShareFrames(t *testing.T) {
	for name, c := range map[string]struct{ checks, principal, frames int }{
		"few": {200, 5, 1}, "more than 1024": {1500, 5, 2}, "more than 256 KiB": {700, 500, 2},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, 1, alwaysAllow, func(t *testing.T, cl *cluster, client *Client) {
				cl.mu.Lock()
				cl.dialDelay = 20 * time.Millisecond
				cl.mu.Unlock()
				var all sync.WaitGroup
				for i := range c.checks {
					all.Go(func() {
						if d, err := client.Check(bg(), fmt.Sprintf("%0*d", c.principal, i), "deny"); err != nil || !d.Verified() {
							t.Errorf("%+v, %v", d, err)
						}
					})
				}
				all.Wait()
				if cl.frames != c.frames || client.Stats().Frames != uint64(c.frames) {
					t.Errorf("%d checks left in %d frames, want %d", c.checks, cl.frames, c.frames)
				}
			})
		})
	}
}

// Shows that more checks than may be in flight are refused at once, and that there is room again afterwards.
func TestInFlightIsBounded(t *testing.T) {
	slow := func(asked) reply { r := allow(); r.after = 50 * time.Millisecond; return r }
	world(t, 1, slow, func(t *testing.T, c *cluster, client *Client) {
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				if _, err := client.Check(bg(), fmt.Sprint(i), "allow"); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		before := time.Now()
		d, err := client.Check(bg(), "one more", "allow")
		var e *Error
		if d.Allowed || !errors.Is(err, ErrOverloaded) || !errors.As(err, &e) || e.RetryAfter <= 0 || time.Since(before) != 0 {
			t.Errorf("%+v, %v after %s", d, err, time.Since(before))
		}
		all.Wait()
		if _, err := client.Check(bg(), "one more", "allow"); err != nil {
			t.Error(err)
		}
	}, WithMaxInFlight(10))
}

// Shows that a principal that hammers is kept from its owner at its ceiling, that others are not, and that it may go on
// in the next second.
func TestPrincipalCeiling(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		refused := 0
		for range 30 {
			if _, err := client.Check(bg(), "hammer", "allow"); errors.Is(err, ErrOverloaded) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if refused != 20 {
			t.Errorf("%d of 30 were refused, at a ceiling of 10", refused)
		}
		if _, err := client.Check(bg(), "other", "allow"); err != nil {
			t.Error(err)
		}
		elapse(time.Second)
		if _, err := client.Check(bg(), "hammer", "allow"); err != nil {
			t.Error(err)
		}
	}, WithPrincipalCeiling(10))
}

// Shows that a context that is canceled ends the check with its error, whatever the failure mode, and that a deadline
// before the class's timeout counts as the timeout; one that has passed before the check does not.
func TestContext(t *testing.T) {
	silent := func(asked) reply { return reply{silent: true} }
	world(t, 1, silent, func(t *testing.T, c *cluster, client *Client) {
		ctx, cancel := context.WithCancel(bg())
		time.AfterFunc(10*time.Millisecond, cancel)
		before := time.Now()
		if d, err := client.Check(ctx, "acme", "allow"); !errors.Is(err, context.Canceled) || d.Allowed {
			t.Errorf("canceled: %+v, %v", d, err)
		}
		if took := time.Since(before); took != 10*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		if d, err := client.Check(ctx, "acme", "allow"); !errors.Is(err, context.Canceled) || d.Allowed {
			t.Errorf("canceled before: %+v, %v", d, err)
		}
		ctx, cancel = context.WithTimeout(bg(), 20*time.Millisecond)
		defer cancel()
		before = time.Now()
		if d, err := client.Check(ctx, "acme", "allow"); err != nil || d.Source != SourceBypass {
			t.Errorf("deadline: %+v, %v", d, err)
		}
		if took := time.Since(before); took != 20*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		if d, err := client.Check(ctx, "acme", "allow"); !errors.Is(err, context.DeadlineExceeded) || d.Allowed {
			t.Errorf("deadline before: %+v, %v", d, err)
		}
		if s := client.Stats(); s.InFlight != 0 || s.Classes["allow"].Canceled != 3 || s.Classes["allow"].Bypassed != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// Shows that Close ends the checks that wait, and those that come later, with ErrClosed and no failure mode; that it can
// be called twice; and, with goleak, that it leaves nothing behind.
func TestClose(t *testing.T) {
	silent := func(asked) reply { return reply{silent: true} }
	world(t, 2, silent, func(t *testing.T, c *cluster, client *Client) {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if d, err := client.Check(bg(), "acme", "allow"); !errors.Is(err, ErrClosed) || d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			})
		}
		elapse(10 * time.Millisecond)
		mustClose(t, client)
		all.Wait()
		if d, err := client.Check(bg(), "acme", "allow"); !errors.Is(err, ErrClosed) || d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		if err := client.Ready(bg()); !errors.Is(err, ErrClosed) {
			t.Errorf("Ready: %v", err)
		}
		if _, err := client.Peek(bg(), "acme", "allow", ""); !errors.Is(err, ErrClosed) {
			t.Errorf("Peek: %v", err)
		}
	})
}

// Shows, with the race detector, that checks, Close and Stats may go on at once: each check is decided or ends with
// ErrClosed.
func TestCloseRaces(t *testing.T) {
	for range 20 {
		c := mustCluster(t, 2, alwaysAllow, unhurried()...)
		client := c.mustClient()
		mustReady(t, client)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 50 {
					if d, err := client.Check(bg(), "acme", "allow"); !errors.Is(err, ErrClosed) && (err != nil || !d.Verified()) {
						t.Errorf("%+v, %v", d, err)
					}
					_ = client.Stats()
				}
			})
		}
		mustClose(t, client)
		all.Wait()
		c.close()
	}
}

// Shows that a program with the SDK links nothing of the server: no state machine, Raft, storage or gossip.
func TestImportsNothingOfTheServer(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 100 {
		t.Fatalf("only %d dependencies are listed", len(deps))
	}
	const module = "github.com/quorate/quorate/"
	for _, banned := range []string{
		module + "fsm", module + "partition", module + "control", module + "node", module + "rpc", module + "clock",
		module + "backup", "github.com/hashicorp/raft", "github.com/hashicorp/raft-wal", "github.com/hashicorp/memberlist",
		"go.etcd.io/bbolt", "github.com/hashicorp/raft-boltdb",
	} {
		for _, d := range deps {
			if d == banned || strings.HasPrefix(d, banned+"/") {
				t.Errorf("%s is linked", d)
			}
		}
	}
}

// Shows that plaintext to a name under .invalid is accepted, as only a dialer of the caller's can lead it anywhere, and
// that to a name which only looks like one is not.
func TestInvalidNames(t *testing.T) {
	client, err := New([]string{"n0.test.invalid:7070"})
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, client)
	for _, addr := range []string{"invalid.example:1", "xinvalid:1", "a.invalid.:1"} {
		if client, err := New([]string{addr}); err == nil {
			mustClose(t, client)
			t.Errorf("%s is accepted", addr)
		}
	}
}

// Shows that New refuses what cannot be meant, all of it at once, and plaintext to another machine.
func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		addrs   []string
		options []Option
		want    []string
	}{
		"nothing": {nil, nil, []string{"0 addresses"}},
		"no port": {[]string{"localhost"}, nil, []string{"host:port"}},
		"remote":  {[]string{"10.0.0.1:7070", "example.com:1"}, nil, []string{"10.0.0.1", "example.com", "plaintext"}},
		"no file": {[]string{"localhost:1"}, []Option{WithPolicyFile("missing.yaml")}, []string{"missing.yaml"}},
		"no TLS":  {[]string{"x:1"}, []Option{WithTLSFiles("ca.pem", "", "")}, []string{"all three"}},
		"no such": {[]string{"x:1"}, []Option{WithTLSFiles("ca.pem", "c.pem", "k.pem")}, []string{"ca.pem", "k.pem"}},
		"negatives": {[]string{"localhost:1"}, []Option{WithMaxInFlight(0), WithConfigGrace(-1), WithPrincipalInFlight(-1)},
			[]string{"flight", "grace", "principal"}},
		"short grace": {[]string{"localhost:1"}, []Option{WithConfigGrace(5*time.Second - 1)}, []string{"at least 5s"}},
		"ports": {[]string{"localhost:0", "localhost:99999", "localhost:http"}, nil,
			[]string{"localhost:0", "localhost:99999", "localhost:http", "1 to 65535"}},
		"nil option": {[]string{"localhost:1"}, []Option{WithMaxInFlight(1), nil}, []string{"option 2 is nil"}},
		"nil TLS":    {[]string{"localhost:1"}, []Option{WithTLS(nil)}, []string{"WithTLS"}},
		"nil dial":   {[]string{"localhost:1"}, []Option{WithDialOptions(nil)}, []string{"dial option is nil"}},
	} {
		client, err := New(c.addrs, c.options...)
		if err == nil {
			mustClose(t, client)
			t.Errorf("%s: no error", name)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v does not name %q", name, err, w)
			}
		}
	}
}
