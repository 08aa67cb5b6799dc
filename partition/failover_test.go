package partition

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// crowd is many checks of one principal, each by a gateway that insists on an answer.
type crowd struct {
	c      *cluster
	ids    []string
	mu     sync.Mutex // guards the fields below
	got    map[string]Answer
	unsure int // answers on the way that decided nothing
	maybe  int // of them, those with an unknown outcome
}

// ask has all ids decided, at most at once of them at a time. halfway is closed when a quarter of them
// has an answer.
func (w *crowd) ask(t *testing.T, atOnce int, halfway chan<- struct{}) {
	t.Helper()
	var asking sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for _, id := range w.ids {
		places <- struct{}{}
		asking.Go(func() {
			defer func() { <-places }()
			a, err := w.c.decide(convert("acme", id), w.note)
			if err != nil {
				t.Errorf("%s: %v", id, err)
				return
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.got[id] = a
			if len(w.got) == len(w.ids)/4 {
				close(halfway)
			}
		})
	}
	asking.Wait()
}

func (w *crowd) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unsure++
	if quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown {
		w.maybe++
	}
}

// verify wants exactly three allows, which whoever leads now repeats, and no usage beyond them.
func (w *crowd) verify(t *testing.T) {
	t.Helper()
	allowed := 0
	for id, a := range w.got {
		if !a.Allowed() && a.Reason != fsm.ReasonQuotaExhausted {
			t.Errorf("%s: %+v", id, a)
		}
		if !a.Allowed() {
			continue
		}
		allowed++
		if again := w.c.mustDecide(convert("acme", id)); !again.Allowed() || !again.Replayed {
			t.Errorf("%s was allowed, and now is %+v", id, again)
		}
	}
	if allowed != 3 || len(w.got) != len(w.ids) {
		t.Errorf("%d of %d answers are allows, want 3 of %d", allowed, len(w.got), len(w.ids))
	}
	if u := w.c.mustPeek("acme", "convert"); u.Remaining != 0 || u.Limits[0].Max != 3 {
		t.Errorf("%d left after 3 allows", u.Remaining)
	}
}

// However many check at once, and whenever the leader is lost meanwhile, each window has exactly three
// allows; an allow that was answered is repeated by the next leader; and a check whose outcome was
// unknown gets one when it is asked again.
func TestCrowd(t *testing.T) {
	c := newCluster(t, nil)
	c.leader()
	for i, round := range []struct {
		name   string
		atOnce int
		lose   string // when the leader is lost
	}{
		{"calm", 200, "never"},
		{"while many wait", 200, "at once"},
		{"while few ask", 8, "halfway"},
		{"while few wait", 8, "at once"},
	} {
		t.Run(round.name, func(t *testing.T) {
			w := &crowd{c: c, ids: ids(fmt.Sprint("round", i), 200), got: map[string]Answer{}}
			halfway, done := make(chan struct{}), make(chan struct{})
			leader := c.leader()
			go func() {
				defer close(done)
				w.ask(t, round.atOnce, halfway)
			}()
			switch round.lose {
			case "at once":
				for p := leader.partition(); p.owner.queue.len() == 0 && len(p.owner.slots) == 0; {
					runtime.Gosched()
				}
				c.mustClose(leader)
			case "halfway":
				<-halfway
				c.mustClose(leader)
			}
			<-done
			w.verify(t)
			t.Logf("%d attempts decided nothing, %d of them with an unknown outcome", w.unsure, w.maybe)
			if leader.partition() == nil {
				c.mustOpen(leader)
			}
			c.agree(c.machines)
			w.verify(t)
			c.expire("acme")
		})
	}
}

// A leader that loses its majority with checks on their way tells their callers that the outcome is
// unknown; when the majority is back, the same ids get one answer each, within the limit.
func TestLostMajority(t *testing.T) {
	c := newCluster(t, nil)
	leader := c.leader()
	c.mustDecide(convert("acme", "before"))
	for _, m := range c.machines {
		if m != leader {
			c.mustClose(m)
		}
	}
	w := &crowd{c: c, ids: ids("cut", 20), got: map[string]Answer{}}
	var asking sync.WaitGroup
	for _, id := range w.ids {
		asking.Go(func() {
			_, err := leader.partition().Check(t.Context(), convert("acme", id))
			switch r := quotaerr.ReasonOf(err); r {
			case quotaerr.OutcomeUnknown, quotaerr.NoQuorum, quotaerr.NotLeader:
				w.note(err)
			default:
				t.Errorf("%s: without a majority: %v", id, err)
			}
		})
	}
	asking.Wait()
	for _, m := range c.machines {
		if m != leader {
			c.mustOpen(m)
		}
	}
	t.Logf("%d of %d outcomes were unknown", w.maybe, w.unsure)
	w.ids = append(w.ids, "before")
	w.ask(t, 200, make(chan struct{}))
	w.verify(t)
}

// The nodes that may lead each offer the partition's first entry, and the state of all is that of one
// of them; later leaders, and the same nodes started again, offer none.
func TestBirthOfACluster(t *testing.T) {
	c := newCluster(t, nil)
	c.mustDecide(convert("acme", "1"))
	asked := func() (n int32) {
		for _, m := range c.machines {
			n += m.births.Load()
		}
		return n
	}
	offers := asked()
	was := c.agree(c.machines)
	for range 2 {
		m := c.leader()
		c.mustClose(m)
		c.mustDecide(convert("other", m.id))
		c.mustOpen(m)
	}
	if offers < 1 || asked() != offers {
		t.Errorf("%d births were asked for, then %d", offers, asked())
	}
	c.agree(c.machines)
	seeds := map[fsm.Slot]bool{}
	for _, m := range c.machines {
		seeds[slotOf(m.partition(), "acme")] = true
	}
	if len(seeds) != 1 || !was.Born {
		t.Errorf("the replicas find %d slots for one principal", len(seeds))
	}
}
