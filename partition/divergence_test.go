package partition

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// corrupt changes a replica's state as a broken memory would: an admission that is in nobody's log.
func (m *machine) corrupt(t *testing.T) {
	t.Helper()
	r := m.partition().replica
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &fsm.Entry{Kind: fsm.KindBatch, Stamp: r.machine.Now(), Checks: []fsm.Check{convert("nobody", "never asked")}}
	if a := r.machine.Step(0, e); len(a.Decisions) != 1 || a.Decisions[0].Reason != fsm.ReasonAllowed {
		t.Fatalf("%+v", a)
	}
}

// awaitBirth waits until every replica that is up has the partition.
func (c *cluster) awaitBirth() {
	c.t.Helper()
	for _, m := range c.up() {
		eventually(c.t, m.id+" has the partition", func() bool { return m.partition().Status().Born })
	}
}

// mustGoOn waits until a new check is decided by whoever leads.
func (c *cluster) mustGoOn(what string) {
	c.t.Helper()
	eventually(c.t, what, func() bool {
		a, err := c.leader().partition().Check(c.t.Context(), convert(what, fmt.Sprint(time.Now().UnixNano())))
		return err == nil && a.Reason != fsm.ReasonUnspecified
	})
}

// decideUntil asks for decisions until f holds, through whoever leads.
func (c *cluster) decideUntil(what string, f func() bool) {
	c.t.Helper()
	n := 0
	eventually(c.t, what, func() bool {
		n++
		ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
		defer cancel()
		for _, m := range c.up() {
			_, _ = m.partition().Check(ctx, convert(fmt.Sprintf("load%d", n), fmt.Sprint(n))) // some do not lead
		}
		return f()
	})
}

// A follower whose state has become another finds it out by itself at the next entries, stops, says so, and
// is not opened again; the others go on.
func TestDivergedFollower(t *testing.T) {
	c := newCluster(t, nil)
	c.awaitBirth()
	leader := c.leader()
	var wrong *machine
	for _, m := range c.machines {
		if m != leader {
			wrong = m
		}
	}
	wrong.corrupt(t)
	c.decideUntil("the follower has stopped", func() bool { return wrong.partition().Status().Diverged != "" })
	eventually(t, "the others, who had to ask too, decide", func() bool {
		a, err := leader.partition().Check(t.Context(), convert("other", "1"))
		return err == nil && a.Reason == fsm.ReasonAllowed
	})
	_, err := wrong.partition().Check(t.Context(), convert("p", "1"))
	if quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
		t.Errorf("the diverged replica answers %v", err)
	}
	c.mustClose(wrong)
	if err := c.open(wrong); err == nil || !bytes.Contains([]byte(err.Error()), []byte("majority")) {
		t.Errorf("it opens again: %v", err)
	}
}

// A leader whose state has become another is found out by its followers, stops, and another takes over
// with the right state.
func TestDivergedLeader(t *testing.T) {
	c := newCluster(t, nil)
	c.awaitBirth()
	wrong := c.leader()
	wrong.corrupt(t)
	c.decideUntil("the leader has stopped", func() bool { return wrong.partition().Status().Diverged != "" })
	c.mustClose(wrong)
	c.decideUntil("another leads", func() bool { return c.leader() != wrong })
}
