package workload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/history"
)

// runFor is how long the tests have a crowd ask, by a clock that passes at once.
const runFor = 3 * time.Minute

// book keeps what was asked.
type book struct {
	mu    sync.Mutex
	asked []history.Asked
}

// Asked keeps an attempt.
func (b *book) Asked(a *history.Asked) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, *a)
	return nil
}

// mustAsk has kinds ask an owner that goes by the rules, for a time of the bubble.
func mustAsk(t *testing.T, kinds []Kind, publisher Publisher) ([]history.Asked, *owner) {
	t.Helper()
	begun := time.Now()
	now := func() time.Duration { return time.Since(begun) }
	o, b := newOwner(PolicyOf(kinds), now), &book{}
	w, err := Start(t.Context(), Options{
		Seed: 7, Kinds: kinds, Doors: []Door{o}, Gateway: &gateway{owner: o}, Recorder: b, Now: now, Publisher: publisher,
		Nodes: []Node{{ID: "n0"}, {ID: "n1"}, {ID: "n2"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(runFor)
	if err := w.Stop(); err != nil {
		t.Fatal(err)
	}
	return b.asked, o
}

// historyOf is what was asked as a history; ids that were asked for with two costs are two checks.
func historyOf(asked []history.Asked, p history.Policy) *history.History {
	h := &history.History{Revisions: []history.Revision{{Number: 1, Policy: p, Began: -time.Hour}}}
	checks := map[string]*history.Check{}
	for _, a := range asked {
		if a.Answer.Reason == "decision_id_conflict" || a.Peek {
			continue
		}
		key := fmt.Sprint(a.ID, " ", a.Cost)
		if checks[key] == nil {
			checks[key] = &history.Check{ID: key, Principal: a.Principal, Class: a.Class, Cost: a.Cost}
			h.Checks = append(h.Checks, checks[key])
		}
		checks[key].Attempts = append(checks[key].Attempts,
			history.Attempt{Node: a.Node, Sent: a.Sent, Received: a.Received, Answer: a.Answer})
	}
	return h
}

// Shows that each kind asks for at least three times what its limits admit, with principals and clients of its own
// name, and that an owner which goes by the rules is not blamed for any of it.
func TestKindsDemandEnough(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(kind.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, o := mustAsk(t, []Kind{kind}, nil)
				if err := check.Examine(historyOf(asked, o.policy)).Err(); err != nil {
					t.Error(err)
				}
				allowed, all := int64(0), int64(0)
				seen := map[string]bool{}
				for _, a := range asked {
					if !strings.HasPrefix(a.Principal, kind.Name) || !strings.Contains(a.Client, kind.Name) ||
						a.Workload != kind.Name {
						t.Fatalf("%+v is not of %s", a, kind.Name)
					}
					if strings.HasPrefix(a.Principal, "hot-key-") && a.Principal != "hot-key-0" {
						continue // they are many, to be beside the one
					}
					if !seen[a.ID] && a.Answer.Decided() {
						seen[a.ID] = true
						all += a.Cost
						if a.Answer.Allowed {
							allowed += a.Cost
						}
					}
				}
				t.Logf("%.1f attempts a second, %.1f times what was admitted", float64(len(asked))/runFor.Seconds(),
					float64(all)/float64(max(allowed, 1)))
				if allowed < 50 || all < 3*allowed {
					t.Errorf("asked for %d where %d were admitted", all, allowed)
				}
			})
		})
	}
}

// Shows that all kinds together are a load for two cores, that every node is asked, and that the attempts of one client
// never overlap.
func TestCrowdIsBearable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, o := mustAsk(t, Kinds(), nil)
		perSecond := float64(len(asked)) / runFor.Seconds()
		if perSecond < 250 || perSecond > 600 {
			t.Errorf("%.0f attempts a second", perSecond)
		}
		for _, n := range []string{"n0", "n1", "n2"} {
			if o.asked[n] < len(asked)/10 {
				t.Errorf("%s was asked %d times of %d", n, o.asked[n], len(asked))
			}
		}
		slices.SortFunc(asked, func(a, b history.Asked) int {
			return cmp.Or(strings.Compare(a.Client, b.Client), cmp.Compare(a.Sent, b.Sent))
		})
		for i := range asked[1:] {
			if a, b := asked[i], asked[i+1]; a.Client == b.Client && b.Sent < a.Received {
				t.Fatalf("%+v was sent before the answer to %+v", b, a)
			}
		}
	})
}

// Shows that ids are repeated at other nodes and close to the end of their horizon, never later, and that one with
// another cost is sent only once the id's decision is recorded.
func TestReplayRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, _ := mustAsk(t, []Kind{replay()}, nil)
		first := map[string]history.Asked{}
		recorded := map[string]bool{}
		repeats, elsewhere, late, conflicts := 0, 0, 0, 0
		slices.SortFunc(asked, func(a, b history.Asked) int { return cmp.Compare(a.Sent, b.Sent) })
		for _, a := range asked {
			f, again := first[a.ID]
			if !again {
				first[a.ID] = a
			}
			age := a.Sent - f.Sent
			switch {
			case !again:
			case a.Cost != f.Cost:
				conflicts++
				if !recorded[a.ID] {
					t.Fatalf("%+v: the id's decision is not known", a)
				}
				if a.Received != history.Never && a.Answer.Reason != "decision_id_conflict" {
					t.Fatalf("%+v: it was first asked for as %+v", a, f)
				}
			case age > replayHorizon-replayMargin:
				t.Fatalf("%+v is repeated after %v", a, age)
			default:
				repeats++
				if a.Node != f.Node {
					elsewhere++
				}
				if age > replayHorizon-time.Second {
					late++
				}
			}
			recorded[a.ID] = recorded[a.ID] || a.Answer.Recorded
		}
		t.Logf("%d repeats, %d elsewhere, %d late, %d conflicts", repeats, elsewhere, late, conflicts)
		if repeats < 500 || elsewhere < 100 || late < 50 || conflicts < 50 {
			t.Errorf("%d repeats, %d elsewhere, %d late, %d conflicts", repeats, elsewhere, late, conflicts)
		}
	})
}

// Shows that the bursts at a window's edge are within two milliseconds of it, on both sides.
func TestBoundaryHitsTheEdge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, _ := mustAsk(t, []Kind{boundary()}, nil)
		before, after := 0, 0
		for _, a := range asked {
			if !a.Answer.Allowed {
				continue
			}
			for _, b := range asked {
				if a.Principal != b.Principal {
					continue
				}
				switch b.Sent - a.Sent {
				case boundaryWindow - time.Millisecond:
					before++
				case boundaryWindow + time.Millisecond:
					after++
				}
			}
		}
		if before < 100 || after < 100 {
			t.Errorf("%d before the edge, %d after it", before, after)
		}
	})
}

// Shows that an attempt without an answer is followed by the same id until it is decided.
func TestUnknownIsResolved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, _ := mustAsk(t, []Kind{unknownRetry()}, nil)
		lost, open := 0, map[string]bool{}
		for _, a := range asked {
			if a.Received == history.Never {
				lost++
			}
			open[a.ID] = !a.Answer.Decided()
		}
		for id, is := range open {
			if is {
				lost-- // stopped before
				delete(open, id)
			}
		}
		if lost < 20 {
			t.Errorf("%d attempts were repeated", lost)
		}
	})
}

// publisher keeps policies.
type publisher struct {
	policies []history.Policy
}

func (p *publisher) Present() history.Policy { return p.policies[len(p.policies)-1].Clone() }

func (p *publisher) Apply(_ context.Context, next history.Policy) error {
	p.policies = append(p.policies, next)
	return nil
}

// Shows that policies tighten and loosen, under labels of their own, and that only the class which is for that changes.
func TestChurnPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kinds := []Kind{policyChurn(), saturate()}
		p := &publisher{policies: []history.Policy{PolicyOf(kinds)}}
		mustAsk(t, kinds, p)
		tighter, looser, labels := 0, 0, map[string]bool{}
		for i := range p.policies {
			labels[p.policies[i].Version] = true
			if i == 0 {
				continue
			}
			was, is := p.policies[i-1].Classes, p.policies[i].Classes
			switch a, b := was["churn"].Limits[0].Max, is["churn"].Limits[0].Max; {
			case a > b:
				tighter++
			case a < b:
				looser++
			}
			if is["saturate"].Limits[0] != was["saturate"].Limits[0] {
				t.Error("saturate has changed")
			}
		}
		if tighter < 2 || looser < 2 || len(labels) != len(p.policies) {
			t.Errorf("%d tighter, %d looser, %d labels of %d", tighter, looser, len(labels), len(p.policies))
		}
	})
}

// Shows that kinds are found by their names, all without one, and that others and repeats are refused.
func TestPick(t *testing.T) {
	if all, err := Pick(nil); err != nil || len(all) != len(Kinds()) {
		t.Errorf("%d, %v", len(all), err)
	}
	if some, err := Pick([]string{"sdk", "move"}); err != nil || !slices.Equal(Names(some), []string{"sdk", "move"}) {
		t.Errorf("%v, %v", Names(some), err)
	}
	for _, bad := range [][]string{{"nothing"}, {"sdk", "sdk"}} {
		if _, err := Pick(bad); err == nil {
			t.Errorf("%v: no error", bad)
		}
	}
}
