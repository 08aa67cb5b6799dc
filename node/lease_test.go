package node

import (
	"testing"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// Shows that a lease covers a state that is not older than the one it confirmed, while it runs; that the next
// confirmation takes its place; and that one which comes late, of an older state, takes nothing back.
func TestLease(t *testing.T) {
	reading := func(after time.Duration) clock.Reading {
		return clock.Reading{Mono: int64(after), Raw: int64(after), Boot: int64(after)}
	}
	grant := func(at time.Duration) clock.Lease {
		l, err := clock.GrantLease(reading(at), int64(control.PolicyLease), clock.DefaultMaxDriftPPM)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	var l lease
	if l.covers(reading(0), 9) {
		t.Error("the lease runs before it was granted")
	}
	l.renew(grant(time.Second), 3, 7)
	for _, tt := range []struct {
		at      time.Duration
		version uint64
		want    bool
	}{
		{2 * time.Second, 7, true}, {2 * time.Second, 8, true}, {2 * time.Second, 6, false}, {12 * time.Second, 8, false},
	} {
		if got := l.covers(reading(tt.at), tt.version); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
	l.renew(grant(20*time.Second), 2, 6) // an answer that was overtaken
	if got := l.get(7); got.Revision != 3 || got.Lease.Valid(reading(21*time.Second)) {
		t.Errorf("an older state renewed it: %+v", got)
	}
	l.renew(grant(20*time.Second), 4, 8)
	if got := l.get(7); got.Revision != 3 {
		t.Errorf("it is for a state that this node does not have yet: %+v", got)
	}
	if got := l.get(8); got.Revision != fsm.Revision(4) || !got.Lease.Valid(reading(21*time.Second)) {
		t.Errorf("it was not renewed: %+v", got)
	}
	l.renew(grant(30*time.Second), 4, 9)
	if got := l.get(8); !got.Lease.Valid(reading(21*time.Second)) || got.Lease.Valid(reading(31*time.Second)) {
		t.Errorf("the one before counts no more, or the next already: %+v", got)
	}
}

// Shows which partitions own slots, and that one has ended only when the state's log has made it and taken it out
// again: not when the state does not know it yet, and not what is no partition.
func TestOwnsAndHasEnded(t *testing.T) {
	owned := []state.Range{{SlotRange: fsm.SlotRange{First: 1, Last: 2}, Epoch: 7}}
	s := &state.State{Born: true, NextPartition: 12, Partitions: []*state.Partition{{ID: 1}, {ID: 10, Ranges: owned}}}
	for id, want := range map[string]struct{ owns, ended bool }{
		"p1": {}, "p10": {owns: true}, "p2": {ended: true}, "p11": {ended: true}, "p12": {}, "p99": {},
		controlID: {}, "p": {}, "p01": {}, "p+2": {}, "q2": {}, "p2.json": {}, "p18446744073709551617": {},
	} {
		if owns, ended := ownsSlots(s, id), hasEnded(s, id); owns != want.owns || ended != want.ended {
			t.Errorf("%s: owns %t, ended %t, want %+v", id, owns, ended, want)
		}
	}
	s.Born = false
	if hasEnded(s, "p2") {
		t.Error("a state that was not born has ended something")
	}
}

// Shows that a node tells gateways what it knows only while that is confirmed: not once the control group has no majority
// for as long as a policy lease is, and again when it has one.
func TestConfirmed(t *testing.T) {
	configs := mustConfigs(t, 2)
	nodes := []*running{mustRun(t, configs[0]), mustRun(t, configs[1])}
	mustInit(t, nodes, 1)
	untilReady(t, nodes...)
	b := (*backend)(nodes[0].Node)
	tell := func() any { return nodes[0].ready() }
	eventually(t, "it is confirmed", b.Confirmed, tell)
	mustEnd(t, nodes[1])
	eventually(t, "it is not confirmed any more", func() bool { return !b.Confirmed() }, tell)
	if view, _ := b.Config(); view == nil || view.Map == nil {
		t.Error("it has forgotten what it knew")
	}
	nodes[1] = mustRun(t, configs[1])
	eventually(t, "it is confirmed again", b.Confirmed, tell)
	mustEnd(t, nodes...)
}
