package netns

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

// arrivals is a line that runs, and what has arrived: the first byte of each packet.
func arrivals(t *testing.T) (l *line, arrived func() string) {
	t.Helper()
	var text []byte
	l = newLine(func(p []byte) error { text = append(text, p[0]); return nil })
	closing := make(chan struct{})
	go l.run(closing)
	t.Cleanup(func() { close(closing) })
	return l, func() string {
		synctest.Wait()
		l.mu.Lock()
		defer l.mu.Unlock()
		return string(text)
	}
}

func expect(t *testing.T, when string, arrived func() string, want string) {
	t.Helper()
	if got := arrived(); got != want {
		t.Errorf("%s %q has arrived, want %q", when, got, want)
	}
}

// Shows that what is late arrives when it is due and in order, and at once when the line is not late any more.
func TestLateLineKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, arrived := arrivals(t)
		l.set(process.Condition{Delay: time.Minute})
		l.send([]byte("a"))
		<-time.After(time.Second)
		l.send([]byte("b"))
		<-time.After(59*time.Second - 1)
		expect(t, "a minute but a nanosecond later", arrived, "")
		<-time.After(1)
		expect(t, "a minute later", arrived, "a")
		l.send([]byte("c"))
		l.set(process.Condition{})
		l.send([]byte("d"))
		expect(t, "when it is not late any more", arrived, "abcd")
		if got, want := l.count(), (Counts{Carried: 4, Delayed: 3}); got != want {
			t.Errorf("the line has counted %+v, want %+v", got, want)
		}
	})
}

// Shows that jitter has packets overtake each other, and that none is later than delay and jitter together.
func TestJitterReorders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, arrived := arrivals(t)
		l.set(process.Condition{Delay: time.Second, Jitter: time.Second})
		const sent = "abcdefghijklmnopqrstuvwxyz"
		for i := range sent {
			l.send([]byte{sent[i]})
		}
		<-time.After(time.Second - 1)
		expect(t, "before the delay", arrived, "")
		<-time.After(time.Second + 1)
		if got := arrived(); len(got) != len(sent) || got == sent {
			t.Errorf("%q has arrived, want %q in another order", got, sent)
		}
	})
}

// Shows that a line holds packets up to its bound, drops what is beyond, hands over what it holds when it is released,
// and nothing of it when it is told to drop instead.
func TestHeldLineIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, arrived := arrivals(t)
		const more = 10
		for _, end := range []process.Condition{{Drop: true}, {}} {
			l.set(process.Condition{Hold: true})
			for range maxWaiting + more {
				l.send([]byte("x"))
			}
			<-time.After(time.Hour)
			expect(t, "while it is held", arrived, "")
			l.set(end)
		}
		if got := len(arrived()); got != maxWaiting {
			t.Errorf("%d packets have arrived, want the %d that are held at most", got, maxWaiting)
		}
		want := Counts{
			Carried: maxWaiting, Dropped: maxWaiting, Held: 2 * (maxWaiting + more), Overflowed: 2 * more,
		}
		if got := l.count(); got != want {
			t.Errorf("the line has counted %+v, want %+v", got, want)
		}
		l.set(process.Condition{Hold: true})
		for range 1 + maxWaitingBytes/mtu {
			l.send(make([]byte, mtu))
		}
		if got := l.count().Overflowed - want.Overflowed; got != 1 {
			t.Errorf("of packets of %d bytes %d were too many, want 1", mtu, got)
		}
	})
}

// Shows that a cut line carries nothing whatever its condition, and goes back to it.
func TestCutLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, arrived := arrivals(t)
		l.set(process.Condition{Duplicate: 1})
		l.setCut(true)
		l.send([]byte("a"))
		expect(t, "while it is cut", arrived, "")
		l.setCut(false)
		l.send([]byte("b"))
		expect(t, "after that", arrived, "bb")
	})
}
