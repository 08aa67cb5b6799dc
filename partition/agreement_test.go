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

// The majority has it: with two of three the third is outvoted, with all different nobody is right, and
// silence decides only what it cannot change.
func TestJudge(t *testing.T) {
	a, b, z := [16]byte{1}, [16]byte{2}, [16]byte{3}
	for _, tc := range []struct {
		own            [16]byte
		votes          map[[16]byte]int
		voters, silent int
		want           verdict
	}{
		{a, map[[16]byte]int{a: 2, b: 1}, 3, 0, confirmed},
		{b, map[[16]byte]int{a: 2, b: 1}, 3, 0, outvoted},
		{a, map[[16]byte]int{a: 1, b: 1}, 3, 1, undecided},
		{a, map[[16]byte]int{a: 1, b: 1, z: 1}, 3, 0, scattered},
		{a, map[[16]byte]int{a: 1, b: 1}, 2, 0, scattered},
		{a, map[[16]byte]int{a: 2}, 5, 3, undecided},
		{a, map[[16]byte]int{a: 3}, 5, 2, confirmed},
		{a, map[[16]byte]int{a: 2, b: 2}, 5, 1, undecided},
		{a, map[[16]byte]int{a: 2, b: 2, z: 1}, 5, 0, scattered},
		{z, map[[16]byte]int{a: 2}, 3, 1, outvoted}, // asked by a learner
	} {
		if got := judge(tc.own, tc.votes, tc.voters, tc.silent); got != tc.want {
			t.Errorf("%+v: %q", tc, got)
		}
	}
}

// A doubt that comes up while another is being resolved stays until it has been resolved itself.
func TestSecondDoubt(t *testing.T) {
	p := &Partition{agreement: agreement{wake: make(chan struct{}, 1)}}
	p.suspect(5)
	index := p.suspected()
	p.suspect(9)
	p.trusted(index)
	if p.halted() == nil || p.suspected() != 9 {
		t.Errorf("suspected %d, halted %v", p.suspected(), p.halted())
	}
	p.trusted(9)
	if p.halted() != nil {
		t.Error("it stays halted")
	}
}
