package node

import (
	"testing"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control"
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
	if got := l.get(); got.Revision != 3 || got.Lease.Valid(reading(21*time.Second)) {
		t.Errorf("an older state renewed it: %+v", got)
	}
	l.renew(grant(20*time.Second), 4, 8)
	if got := l.get(); got.Revision != fsm.Revision(4) || !got.Lease.Valid(reading(21*time.Second)) {
		t.Errorf("it was not renewed: %+v", got)
	}
}
