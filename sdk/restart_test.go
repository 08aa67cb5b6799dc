package sdk

import (
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/link"
)

// Shows that a check whose class has time outlasts a restart of all nodes, and that one whose class has less ends within
// its timeout, by its failure mode: what could not be sent counts for nothing, and is tried again.
func TestRestartIsOutlasted(t *testing.T) {
	patient := classOf("patient", modeAllow)
	patient.Timeout = durationpb.New(4 * time.Second)
	world(t, 3, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		c.publish(func(m *quoratev1.WatchConfigResponse) { m.Policy = settingsOf(2, append(modes(), patient)...) })
		synctest.Wait()
		if d, err := client.Check(bg(), "acme", "patient"); endingOf(t, d, err) != endsAllowed {
			t.Fatalf("%+v, %v", d, err)
		}
		ids := []string{"a", "b", "c"}
		for _, id := range ids {
			c.stop(id)
		}
		time.AfterFunc(2*time.Second, func() {
			for _, id := range ids {
				c.start(id)
			}
		})
		began := time.Now()
		for class, want := range byMode {
			before := time.Now()
			d, err := client.Check(bg(), "acme", class)
			took := time.Since(before)
			if got := endingOf(t, d, err); got != want || took < 85*time.Millisecond || took > 100*time.Millisecond {
				t.Errorf("%s: %s after %s", class, got, took)
			}
		}
		d, err := client.Check(bg(), "acme", "patient")
		took := time.Since(began)
		if endingOf(t, d, err) != endsAllowed || d.Attempts != 1 || took < 2*time.Second || took > 3*time.Second {
			t.Errorf("%+v, %v after %s", d, err, took)
		}
		for _, id := range ids {
			c.stop(id)
		}
		began = time.Now()
		d, err = client.Check(bg(), "acme", "patient")
		took = time.Since(began)
		if endingOf(t, d, err) != endsBypass || took < 3900*time.Millisecond || took > 4*time.Second {
			t.Errorf("%+v, %v after %s", d, err, took)
		}
	})
}

// Shows that why a node could not be reached is told also where the last attempt only had no time left to find out.
func TestWhyUnreached(t *testing.T) {
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		k := checkOf("acme", "deny", nil)
		r := client.newRun(&k, client.now(), math.MaxInt64)
		defer r.end()
		refused := errors.New("connection refused")
		route, _ := client.table.Lookup("acme")
		r.attempts.Route, r.node = route, route.Node
		for _, err := range []error{refused, link.ErrTimeout} {
			r.attempts.Asked = append(r.attempts.Asked, "a")
			_, why := r.next(&link.Result{Err: err, Unsent: true})
			if !errors.Is(why.Cause, refused) || why.Reason != quotaerr.NoQuorum {
				t.Errorf("%v: %v", err, why)
			}
		}
	})
}

// Shows that a node among the seeds which is connected to and says nothing keeps a new client waiting for a quarter of a
// second and no longer, two of them for half a second.
func TestSilentSeed(t *testing.T) {
	for silent, most := range map[string]time.Duration{"a": 250 * time.Millisecond, "ab": 500 * time.Millisecond} {
		for range 5 { // whichever seed is tried first
			synctest.Test(t, func(t *testing.T) {
				c := mustCluster(t, 3, alwaysAllow, modes()...)
				defer c.close()
				for _, id := range silent {
					c.node(string(id)).hole.Store(true)
				}
				client := c.mustClient()
				defer mustClose(t, client)
				began := time.Now()
				mustReady(t, client)
				if took := time.Since(began); took > most {
					t.Errorf("with %s silent it took %s", silent, took)
				}
				synctest.Wait()
				watches := 0
				for _, n := range c.nodes {
					watches += int(n.watch.Load())
				}
				if watches != 1 {
					t.Errorf("%d watches are open", watches)
				}
			})
		}
	}
}

// Shows that a client which finds another cluster where its own was says so: in its log, although the loss of the watch
// was logged before, and in its Stats; that it takes nothing of the other; and that all is well when its own is back.
func TestAnotherCluster(t *testing.T) {
	var out strings.Builder
	world(t, 1, alwaysAllow, func(t *testing.T, c *cluster, client *Client) {
		if why := client.Stats().WatchError; why != "" {
			t.Errorf("the watch's error is %q", why)
		}
		c.stop("a")
		elapse(10 * time.Second)
		if why := client.Stats().WatchError; !strings.Contains(why, "refused") {
			t.Errorf("while it is down the watch's error is %q", why)
		}
		c.publish(func(m *quoratev1.WatchConfigResponse) { m.ClusterId, m.Policy = "new", settingsOf(9, modes()...) })
		c.start("a")
		elapse(time.Minute)
		s := client.Stats()
		if !strings.Contains(s.WatchError, `of cluster "new"`) || !strings.Contains(s.WatchError, "make a new client") ||
			s.WatchLive || s.PolicyRevision != 1 {
			t.Errorf("%+v", s)
		}
		c.publish(func(m *quoratev1.WatchConfigResponse) { m.ClusterId = "test" })
		elapse(10 * time.Second)
		if s := client.Stats(); s.WatchError != "" || !s.WatchLive {
			t.Errorf("%+v", s)
		}
		var e *Error
		if _, err := client.Check(bg(), "acme", "deny"); errors.As(err, &e) {
			t.Error(err)
		}
		mustClose(t, client)
		if log := out.String(); strings.Count(log, "of cluster") != 1 || strings.Count(log, "WARN") > 3 {
			t.Error(log)
		}
	}, WithLogger(slog.New(slog.NewTextHandler(&out, nil))))
}
