package partition

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
)

// All replicas start again from their files: the state is what it was, digest included; no partition
// time has passed in the hour that they were down; and the recorded answers are given again.
func TestRestartAll(t *testing.T) {
	c := newCluster(t, nil)
	for i := range 3 {
		c.mustDecide(convert("acme", fmt.Sprint(i)))
		c.mustDecide(convert("other", fmt.Sprint(i)))
	}
	denied := c.mustDecide(convert("acme", "denied"))
	was := c.agree(c.machines)
	for _, m := range c.machines {
		c.mustClose(m)
	}
	for _, m := range c.machines {
		m.clock.Advance(int64(time.Hour))
	}
	for _, m := range c.machines {
		c.mustOpen(m)
	}
	c.leader()
	eventually(t, "all have applied their logs", func() bool {
		return !slices.ContainsFunc(c.machines, func(m *machine) bool {
			return m.partition().Status().AppliedIndex < was.AppliedIndex
		})
	})
	now := c.agree(c.machines)
	ignore := cmpopts.IgnoreFields(Status{}, "RaftTerm", "Leadership", "Leader", "Members")
	if diff := cmp.Diff(was, now, ignore); diff != "" {
		t.Errorf("after the restart: %s", diff)
	}
	if u := c.mustPeek("acme", "convert"); u.Remaining != 0 || u.AsOf != was.Time {
		t.Errorf("%d left at %d, want 0 at %d", u.Remaining, u.AsOf, was.Time)
	}
	for i := range 3 {
		if a := c.mustDecide(convert("acme", fmt.Sprint(i))); !a.Allowed() || !a.Replayed {
			t.Errorf("%d: %+v", i, a)
		}
	}
	again := c.mustDecide(convert("acme", "denied"))
	if again.Reason != fsm.ReasonQuotaExhausted || !again.Replayed || again.RetryAt != denied.RetryAt {
		t.Errorf("was %+v, now %+v", denied, again)
	}
	if fresh := c.mustDecide(convert("acme", "fresh")); fresh.Reason != fsm.ReasonQuotaExhausted {
		t.Errorf("a new check: %+v", fresh)
	}
	c.expire("acme")
}

// load has the leader decide n rounds of 40 checks at once of long-named principals.
func (c *cluster) load(name string, rounds int) {
	c.t.Helper()
	long := strings.Repeat("x", 200)
	for round := range rounds {
		var asking sync.WaitGroup
		for i := range 40 {
			asking.Go(func() {
				check := convert(fmt.Sprintf("%s-%s-%d-%d", long, name, round, i), "1")
				if a, err := c.decide(check, nil); err != nil || !a.Allowed() {
					c.t.Errorf("%+v, %v", a, err)
				}
			})
		}
		asking.Wait()
	}
}

// slowSender is a network on which a snapshot that is sent stops in the middle until it is let go.
type slowSender struct {
	group.Network
	began chan struct{}
	goOn  chan struct{}
}

type slowTransport struct {
	group.Transport
	sender *slowSender
}

func (s *slowSender) Transport(id string, self group.Member, request time.Duration, logger hclog.Logger,
) (group.Transport, error) {
	inner, err := s.Network.Transport(id, self, request, logger)
	return &slowTransport{inner, s}, err
}

func (s *slowTransport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	select {
	case s.sender.began <- struct{}{}:
	default:
	}
	<-s.sender.goOn
	return s.Transport.InstallSnapshot(id, target, args, resp, data)
}

// Under load the log is replaced by snapshots when it has grown by some bytes; a replica that was away
// for longer than the log reaches back is given a snapshot, beside which decisions go on however long it
// takes, and then has the state of the others; and one that starts from its own snapshot as well.
func TestSnapshots(t *testing.T) {
	began, goOn := make(chan struct{}, 1), make(chan struct{})
	c := newCluster(t, func(c *cluster) {
		c.compaction = group.Compaction{LogBytes: 128 << 10, TrailingBytes: 1 << 10}
		c.network = func(n group.Network) group.Network { return &slowSender{n, began, goOn} }
	})
	c.load("before", 2)
	leader := c.leader()
	away := c.machines[slices.IndexFunc(c.machines, func(m *machine) bool { return m != leader })]
	c.mustClose(away)
	behind := leader.partition().Status().AppliedIndex
	for round := 0; ; round++ {
		c.load(fmt.Sprint("away", round), 20)
		if t.Failed() || round > 50 {
			t.Fatalf("no snapshot that ends far beyond %d in %d rounds", behind, round)
		}
		s := c.leader().partition().group.Status()
		// 64 entries stay in the log at least, so a snapshot that ends this far beyond is needed.
		if s.SnapshotsTaken > 0 && s.SnapshotIndex > behind+80 {
			break
		}
	}
	c.mustOpen(away)
	<-began
	c.load("while it is sent", 5)
	close(goOn)
	eventually(t, "a snapshot was installed", func() bool {
		return away.partition().group.Status().SnapshotsInstalled > 0
	})
	was := c.agree(c.machines)
	if was.Keys < 80 {
		t.Errorf("%d keys", was.Keys)
	}
	c.mustDecide(convert("acme", "1"))
	c.agree(c.machines)

	must(t, away.partition().group.CompactNow())
	c.mustClose(away)
	c.mustOpen(away)
	c.load("after", 1)
	if now := c.agree(c.machines); now.Keys != was.Keys+41 {
		t.Errorf("%d keys, want %d", now.Keys, was.Keys+41)
	}
}

// Without a single check, time advances in the log while there is live state: usage ends for peeks,
// keys and records leave.
func TestTicksOfACluster(t *testing.T) {
	c := newCluster(t, func(c *cluster) { c.tick = 40 * time.Millisecond })
	c.expectAhead = true // the clocks jump while time is written
	c.mustDecide(convert("acme", "1"))
	if s := c.leader().partition().Status(); s.Keys != 1 || s.Allows != 1 {
		t.Fatalf("%d keys, %d records", s.Keys, s.Allows)
	}
	began := c.leader().partition().Status().AppliedIndex
	eventually(t, "keys and records leave", func() bool {
		leader := c.leader()
		for _, m := range c.machines {
			if m != leader {
				m.clock.Advance(int64(time.Second))
			}
		}
		leader.clock.Advance(int64(time.Second))
		s := leader.partition().Status()
		return s.Keys == 0 && s.Allows == 0
	})
	rested := c.agree(c.machines)
	if rested.AppliedIndex <= began || rested.Time < fsm.Time(time.Minute) {
		t.Errorf("from index %d to %d, partition time %d", began, rested.AppliedIndex, rested.Time)
	}
	if u := c.mustPeek("acme", "convert"); u.Remaining != 3 {
		t.Errorf("%d left", u.Remaining)
	}
}

// A leader whose clock runs fast is noticed by each follower, once, with its name and term; a report
// from another term changes nothing, that from its own makes it hand over, and none in the minute
// after makes it do so again.
func TestPace(t *testing.T) {
	c := newCluster(t, nil)
	c.expectAhead = true
	for i := range 3 { // each replica has a reference
		c.mustDecide(convert("warm", fmt.Sprint(i)))
		c.agree(c.machines)
	}
	fast := c.leader()
	term := fast.partition().Status().Leadership.Term
	fast.clock.Rates(200_000, 200_000)
	c.advance(10 * time.Second)
	fast.clock.Rates(0, 0)
	for i := range 3 {
		c.mustDecide(convert("acme", fmt.Sprint(i)))
		c.agree(c.machines)
		c.advance(time.Second)
	}
	for _, m := range c.machines {
		got := m.alarms()
		if m == fast {
			if len(got) != 0 {
				t.Errorf("the leader finds itself fast: %+v", got)
			}
			continue
		}
		want := []Ahead{{Leader: fast.id, Term: term, Spans: clock.Spans{LocalNanos: int64(10 * time.Second)}}}
		diff := cmp.Diff(want, got, cmpopts.IgnoreFields(clock.Spans{}, "PartitionNanos"))
		if diff != "" || got[0].PartitionNanos < int64(11*time.Second) {
			t.Errorf("%s noticed %+v: %s", m.id, got, diff)
		}
	}

	p := fast.partition()
	term = c.mustLead(fast)
	must(t, p.StepDown(term+1))
	must(t, c.other(fast).partition().StepDown(term))
	if l := p.group.Leadership(); l.Term != term {
		t.Errorf("after reports that are not for it the leader leads %+v, before term %d", l, term)
	}
	must(t, p.StepDown(term))
	eventually(t, "another node leads", func() bool { return c.leader() != fast })
	again := c.mustLead(fast)
	must(t, p.StepDown(again))
	if l := p.group.Leadership(); l.Term != again {
		t.Errorf("it stepped down twice in a minute: %+v, before term %d", l, again)
	}
	p.steppedAt.Store(p.steppedAt.Load() - int64(stepDownEvery))
	must(t, p.StepDown(again))
	eventually(t, "another node leads", func() bool { return c.leader() != fast })
}
