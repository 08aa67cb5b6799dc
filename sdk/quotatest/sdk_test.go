package quotatest_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/quotatest"
)

func mustClient(t *testing.T, s *quotatest.Server, opts ...sdk.Option) *sdk.Client {
	t.Helper()
	c, err := sdk.New(s.Addrs(), append(opts, sdk.WithDialOptions(s.DialOptions()...))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Ready(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

func mustAsk(t *testing.T, c *sdk.Client, principal string) sdk.Decision {
	t.Helper()
	d, err := c.Check(t.Context(), principal, "convert")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Shows in virtual time, with and without hints, that a client of the SDK that comes back exactly when it is told is
// admitted, however often it asked in between, and that one that comes one millisecond earlier is not.
func TestClientsComeBackWhenTold(t *testing.T) {
	for name, hints := range map[string]int{"with hints": 1024, "without": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := quotatest.Start(t, testPolicy, quotatest.InMemory(), quotatest.WithNodes(3), quotatest.WithPartitions(3))
				c := mustClient(t, s, sdk.WithHintCapacity(hints))
				for range 3 {
					if d := mustAsk(t, c, "u1"); !d.Verified() {
						t.Fatalf("not admitted: %+v", d)
					}
					<-time.After(7 * time.Second)
				}
				for range 3 { // those of the first three come back one by one
					denied := mustAsk(t, c, "u1")
					if denied.Allowed || denied.RetryAfter <= 0 {
						t.Fatalf("not denied: %+v", denied)
					}
					<-time.After(denied.RetryAfter / 2)
					again := mustAsk(t, c, "u1")
					if again.Allowed {
						t.Fatalf("after half the wait: %+v", again)
					}
					<-time.After(again.RetryAfter - time.Millisecond)
					if d := mustAsk(t, c, "u1"); d.Allowed {
						t.Fatalf("one millisecond early: %+v", d)
					}
					<-time.After(time.Millisecond)
					if d := mustAsk(t, c, "u1"); !d.Verified() {
						t.Fatalf("exactly when told: %+v", d)
					}
				}
			})
		})
	}
}

// Shows that each kind of failure of the fake has the SDK do what a gateway's test is to find: apply the failure mode,
// refuse, or retry with the same id.
func TestFailuresReachTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quotatest.Start(t, testPolicy, quotatest.InMemory(), quotatest.WithNodes(3))
		c := mustClient(t, s)
		s.Unavailable()
		if _, err := c.Check(t.Context(), "u1", "convert"); !errors.Is(err, sdk.ErrUnavailable) {
			t.Errorf("deny: %v", err)
		}
		if d, err := c.Check(t.Context(), "u1", "lenient"); err != nil || d.Source != sdk.SourceBypass {
			t.Errorf("allow: %+v, %v", d, err)
		}
		if d, err := c.Check(t.Context(), "u1", "local"); err != nil || d.Source != sdk.SourceLocal {
			t.Errorf("local: %+v, %v", d, err)
		}
		s.Refuse(quotaerr.Overloaded)
		if _, err := c.Check(t.Context(), "u1", "lenient"); !errors.Is(err, sdk.ErrOverloaded) {
			t.Errorf("overloaded: %v", err)
		}
		s.Answer(func(*quoratev1.CheckRequest) (*quoratev1.Decision, *quotaerr.Error) {
			return &quoratev1.Decision{Outcome: 99, Reason: "allowed"}, nil
		})
		if d, err := c.Check(t.Context(), "u1", "lenient"); !errors.Is(err, sdk.ErrUnavailable) || d.Allowed {
			t.Errorf("an outcome that there is not: %+v, %v", d, err)
		}
		s.Heal()
		s.Stop()
		begun := time.Now()
		d, err := c.Check(t.Context(), "u1", "lenient")
		if took := time.Since(begun); err != nil || d.Source != sdk.SourceBypass || took > 100*time.Millisecond {
			t.Errorf("stopped: %+v, %v, after %v", d, err, took)
		}
		if err := s.Restart(); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second)
		if d := mustAsk(t, c, "u1"); !d.Verified() || d.Remaining != 2 {
			t.Errorf("back: %+v", d)
		}
	})
}

// Shows that a check which was decided, and whose answer was lost with the connection, is asked for again with the same
// id, gets its decision from the record, and is counted once.
func TestLostAnswersAreAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quotatest.Start(t, testPolicy, quotatest.InMemory(), quotatest.WithNodes(3))
		c := mustClient(t, s)
		leader := s.Leader("u1")
		leader.LoseAnswers(1)
		go func() {
			<-time.After(time.Millisecond)
			leader.DropConnections()
		}()
		d := mustAsk(t, c, "u1")
		if !d.Verified() || !d.Replayed || d.Attempts != 2 || d.Remaining != 2 {
			t.Errorf("decided: %+v", d)
		}
		r := s.Requests()
		if len(r) != 2 || r[0].Check.GetDecisionId() != r[1].Check.GetDecisionId() || r[1].Check.GetAttempt() != 2 {
			t.Errorf("asked: %v", r)
		}
		if used := s.Used("u1", "convert", time.Minute); used != 1 {
			t.Errorf("%d are used", used)
		}
	})
}

// Shows in virtual time that an idle client of the SDK, which pings, is not hung up on: its watch and its stream are
// still the first after ten minutes.
func TestIdleClientIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quotatest.Start(t, testPolicy, quotatest.InMemory())
		c := mustClient(t, s)
		mustAsk(t, c, "u1")
		<-time.After(10 * time.Minute)
		mustAsk(t, c, "u2")
		if n := s.Counts(); n.Watches != 1 || n.Streams != 1 {
			t.Errorf("%d watches and %d streams were opened", n.Watches, n.Streams)
		}
	})
}

// Shows over loopback, again and again, that after Await a client knows what has changed: a policy, a class that was
// switched off and on, a newer map.
func TestAwait(t *testing.T) {
	s := quotatest.Start(t, testPolicy, quotatest.WithNodes(3))
	c := mustClient(t, s)
	for range 20 {
		if err := s.Disable("convert"); err != nil {
			t.Fatal(err)
		}
		s.Await(t, c)
		if d, err := c.Check(t.Context(), "u1", "convert"); err != nil || d.Source != sdk.SourceConfig {
			t.Fatalf("switched off: %+v, %v", d, err)
		}
		if err := s.Enable("convert"); err != nil {
			t.Fatal(err)
		}
		if err := s.Raise("p0"); err != nil {
			t.Fatal(err)
		}
		before := s.Counts().Refused
		s.Await(t, c)
		s.Forgive("u1")
		if d := mustAsk(t, c, "u1"); !d.Verified() || s.Counts().Refused != before {
			t.Fatalf("switched on, and moved: %+v, %d refused", d, s.Counts().Refused-before)
		}
	}
}

// Shows in virtual time that a change returns with many watches open, and does not wait for such as are muted, silent,
// refused or gone.
func TestChangesWaitForWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quotatest.Start(t, testPolicy, quotatest.InMemory(), quotatest.WithNodes(2))
		for range 5 {
			mustClient(t, s)
		}
		begun := time.Now()
		for _, harm := range []func(){
			func() {}, func() { s.MuteWatches(true) }, func() { s.MuteWatches(false); s.SilenceWatch() }, s.Heal, s.RefuseWatch, s.Heal, s.Stop,
		} {
			harm()
			if err := s.Disable("convert"); err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// Shows that who forgets DialOptions with a server in memory reaches nobody.
func TestMemoryIsNowhere(t *testing.T) {
	for _, addr := range quotatest.Start(t, testPolicy, quotatest.InMemory(), quotatest.WithNodes(3)).Addrs() {
		host, _, err := net.SplitHostPort(addr)
		if err != nil || !strings.HasSuffix(host, ".invalid") {
			t.Errorf("%s may be somewhere: %v", addr, err)
		}
	}
}
