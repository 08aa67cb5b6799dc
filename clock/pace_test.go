package clock_test

import (
	"math/rand/v2"
	"testing"

	"github.com/quorate/quorate/clock"
)

// follower is a node that checks its leader, both at true time 0 and partition time 0.
type follower struct {
	clock.Fake
	pace *clock.Pace
}

func newFollower() *follower {
	f := new(follower)
	f.pace = clock.NewPace(&f.Fake, clock.DefaultMaxDriftPPM)
	return f
}

func (f *follower) wantCalm(t *testing.T, at int64, caughtUp bool) {
	t.Helper()
	if s, fast := f.pace.Observe(at, caughtUp); fast {
		t.Fatalf("alarm at %d: %+v", at, s)
	}
}

func (f *follower) wantAlarm(t *testing.T, at int64) clock.Spans {
	t.Helper()
	s, fast := f.pace.Observe(at, true)
	if !fast {
		t.Fatalf("no alarm at %d: %+v", at, s)
	}
	return s
}

// Shows that a leader which runs fast is noticed once it has gained a second and the drift bound, not
// before, and that the alarm tells both spans.
func TestPaceNoticesAFastLeader(t *testing.T) {
	f := newFollower()
	f.wantCalm(t, 0, true)
	f.Advance(100 * second)
	f.wantCalm(t, 101*second+100*second/2000, true)
	f = newFollower()
	f.wantCalm(t, 0, true)
	f.Advance(100 * second)
	at := 101*second + 100*second/2000 + 1
	if s := f.wantAlarm(t, at); s != (clock.Spans{PartitionNanos: at, LocalNanos: 100 * second}) {
		t.Fatalf("spans %+v", s)
	}
}

// Shows that a leader which is fast by 1 % is noticed although each of its entries is ahead of the one
// before by a hundredth of the slack only.
func TestPaceNoticesSlowGain(t *testing.T) {
	f := newFollower()
	f.wantCalm(t, 0, true)
	gained := int64(0)
	for i := range int64(1000) {
		f.Advance(second)
		gained = (i + 1) * second / 100
		if _, fast := f.pace.Observe((i+1)*second+gained, true); fast {
			break
		}
	}
	if gained < second || gained > second+second/4 {
		t.Fatalf("the alarm came after a gain of %d ns", gained)
	}
}

// Shows that a leader which gains little more than the drift bound allows, less than the slack in each
// of the spans after which a reference is replaced, is noticed once it has gained a second in all.
func TestPaceNoticesCreep(t *testing.T) {
	f := newFollower()
	f.wantCalm(t, 0, true)
	gained := int64(0)
	for i := range int64(20_000) {
		f.Advance(second)
		gained = (i + 1) * second / 5000 // 200 ppm more than allowed
		if _, fast := f.pace.Observe((i+1)*second+(i+1)*second/2000+gained, true); fast {
			break
		}
	}
	if gained < second || gained > second+second/10 {
		t.Fatalf("the alarm came after a gain of %d ns", gained)
	}
}

// Shows that a first reference which is late although this node seems caught up, as when it led and was
// paused and then takes what its sockets held, raises no alarm: in its first seconds it gives way to
// what is ahead of it. A leader that keeps running fast is noticed after them.
func TestPaceSettlesOnALateReference(t *testing.T) {
	f := newFollower()
	f.Advance(30 * second)
	for at := range int64(15) {
		f.Advance(second / 100)
		f.wantCalm(t, 2*second*at, true)
	}
	f.wantCalm(t, 30*second+15*second/100, true)
	at := 30 * second
	for range 100 {
		f.Advance(second)
		at += second
		f.wantCalm(t, at, true)
	}

	f = newFollower()
	for i := range int64(4) {
		f.wantCalm(t, 2*second*i, true)
		f.Advance(second)
	}
	f.Advance(3 * second)
	f.wantAlarm(t, 14*second)

	f = newFollower() // one that comes while this node is behind takes no place
	f.wantCalm(t, 0, true)
	f.Advance(second)
	f.wantCalm(t, 4*second, false)
	f.Advance(6 * second)
	f.wantAlarm(t, 10*second)
}

// Shows that one jump of partition time is one alarm, and that the next jump is another.
func TestPaceAlarmsOncePerEvent(t *testing.T) {
	f := newFollower()
	at, alarms := int64(0), 0
	for i := range 100 {
		f.Advance(second)
		at += second
		if i == 30 || i == 60 {
			at += 10 * second
		}
		if _, fast := f.pace.Observe(at, true); fast {
			alarms++
		}
	}
	if alarms != 2 {
		t.Fatalf("%d alarms for 2 jumps", alarms)
	}
}

// Shows that a clock of either machine that drifts within the bound raises no alarm over ten days, at
// one entry every two seconds that each take up to half a second to arrive.
func TestPaceAllowsDriftForDays(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, ppm := range []int64{-499, 0, 499} {
		f := newFollower()
		f.Rates(ppm-80_000, ppm)
		at := int64(0)
		for range 10 * 86400 / 2 {
			late := rng.Int64N(second / 2)
			f.Advance(late)
			f.wantCalm(t, at, true)
			f.Advance(2*second - late)
			at += 2 * second
		}
	}
}

// Shows that entries which were held up by a cut of the network or a pause of this process, and then
// come all at once, raise no alarm, and nor do those that are in time again.
func TestPaceAllowsABacklog(t *testing.T) {
	f := newFollower()
	f.wantCalm(t, 0, true)
	f.Advance(600 * second)
	for at := range int64(300) {
		f.wantCalm(t, 2*second*(at+1), at > 250)
	}
	f.Advance(second)
	f.wantCalm(t, 601*second, true)
}

// Shows that a log which is replayed at a start raises no alarm, however fast it goes and however old
// it is: the reference is taken at the first entry that is applied as it comes.
func TestPaceAllowsAReplay(t *testing.T) {
	f := newFollower()
	for at := range int64(10_000) {
		f.wantCalm(t, at*second, false)
	}
	f.wantCalm(t, 20_000*second, true)
	f.Advance(6 * second)
	f.wantCalm(t, 20_006*second, true)
	f.wantAlarm(t, 20_008*second)
}

// Shows that a first entry which comes late, while this node is not caught up, is no reference: what
// comes after it in time is not taken for fast.
func TestPaceTakesNoLateReference(t *testing.T) {
	f := newFollower()
	f.Advance(30 * second)
	f.wantCalm(t, 0, false) // 30 s late
	f.Advance(second)
	f.wantCalm(t, 31*second, true)
	f.Advance(second)
	f.wantCalm(t, 32*second, true)
}

// Shows that a reference is replaced in time by the entry that was furthest ahead, so that a jump of three
// seconds is noticed after days under a leader that is slow by the bound, and that a late entry at the
// moment of the replacement is not taken.
func TestPaceRenewsItsReference(t *testing.T) {
	f := newFollower()
	at := int64(0)
	for i := range 2 * 86400 {
		f.Advance(second)
		at += slowed(second)
		if i%300 == 299 {
			f.Advance(3 * second) // this one is late, and the next is not
			f.wantCalm(t, at, true)
			at += slowed(3 * second)
			continue
		}
		f.wantCalm(t, at, true)
	}
	f.wantAlarm(t, at+3*second)
}

// Shows that entries which are applied while the replica is behind never become the reference, however
// long it stays behind.
func TestPaceTakesNoReferenceWhileBehind(t *testing.T) {
	f := newFollower()
	f.wantCalm(t, 0, true)
	f.Advance(700 * second)
	f.wantCalm(t, second, false)
	f.Advance(700 * second)
	f.wantCalm(t, 2*second, false)
	f.wantCalm(t, 1400*second, true)
	f.wantAlarm(t, 1402*second)
}

// Shows that a machine which was suspended does not take its leader for fast: the leader went on.
func TestPaceAllowsASuspend(t *testing.T) {
	f := newFollower()
	f.Rates(-80_000, 0)
	f.wantCalm(t, 0, true)
	f.Advance(60 * second)
	f.Suspend(60 * second)
	f.wantCalm(t, 120*second, true)
}

// Shows that after Reset nothing is compared with what was before.
func TestPaceReset(t *testing.T) {
	f := newFollower()
	f.wantCalm(t, 0, true)
	f.pace.Reset()
	f.wantCalm(t, 1000*second, true)
	f.Advance(6 * second)
	f.wantAlarm(t, 1008*second)
}
