package check

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// at is seconds since a history began.
func at(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// limited is a policy whose class a admits so many in 4 s; a's group, with b, and default more than is asked for.
func limited(version string, n int64) history.Policy {
	room := []history.Limit{{Name: "room", Max: 100, Window: history.Window(4 * time.Second)}}
	return history.Policy{
		Version: version, Default: history.Class{Limits: room},
		Classes: map[string]history.Class{"a": {Limits: []history.Limit{{Name: "a", Max: n, Window: history.Window(4 * time.Second)}}}, "b": {Limits: room}},
	}
}

// script makes a history.
type script struct{ history.History }

// policy puts a policy in force between two instants.
func (s *script) policy(p history.Policy, began, active float64) *history.Revision {
	s.Revisions = append(s.Revisions, history.Revision{
		Number: uint64(len(s.Revisions) + 1), Policy: p, Began: at(began), Active: at(active),
	})
	return &s.Revisions[len(s.Revisions)-1]
}

// check asks for one decision of p, which is answered under the newest revision.
func (s *script) check(class string, sent, received float64, allowed bool) *history.Check {
	r := s.Revisions[len(s.Revisions)-1]
	a := history.Answer{Allowed: allowed, Reason: "quota_exhausted", Revision: r.Number, Version: r.Policy.Version, Recorded: true}
	if allowed {
		a.Reason = "allowed"
	}
	c := &history.Check{
		ID: fmt.Sprint("d", len(s.Checks)), Principal: "p", Class: class, Cost: 1,
		Attempts: []history.Attempt{{Node: "n0", Sent: at(sent), Received: at(received), Answer: a}},
	}
	s.Checks = append(s.Checks, c)
	return c
}

// room is what the answer to a check tells of its limit: 2 in an hour.
func (s *script) room(c *history.Check, remaining int64) {
	c.Attempts[0].Answer.Limits = []history.LimitAnswer{{Name: "long", Limit: 2, Remaining: remaining}}
}

// long is a policy whose class a admits 2 within an hour, which is longer than any history here.
func long() history.Policy {
	p := limited("v1", 2)
	p.Classes["a"].Limits[0] = history.Limit{Name: "long", Max: 2, Window: history.Window(time.Hour)}
	return p
}

// again repeats a check and gets its record.
func (s *script) again(c *history.Check, sent, received float64) *history.Attempt {
	a := c.Attempts[0]
	a.Sent, a.Received, a.Answer.Replayed = at(sent), at(received), true
	c.Attempts = append(c.Attempts, a)
	return &c.Attempts[len(c.Attempts)-1]
}

// TestChecker shows that each kind of wrong history is blamed for what is wrong in it, and that its nearest right
// neighbour is not.
func TestChecker(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken string // empty: nothing
		make   func(s *script)
	}{
		{"as many as the limit in a window", "", func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 2, 2.1, true)
			s.check("a", 3, 3.1, false)
			s.check("a", 5, 5.1, true) // the first may have expired
		}},
		{"one more than the limit in a window", brokenCap, func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 2, 2.1, true)
			s.check("a", 4.8, 4.9, true)
		}},
		{"more, but not for sure in one window", "", func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 2, true)
			s.check("a", 2, 2.1, true)
			s.check("a", 4.9, 5.1, true)
		}},
		{"an answer that never came", "", func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 1.2, 1.3, true)
			s.check("a", 1.4, 1.5, true).Attempts[0] = history.Attempt{Sent: at(1.4), Received: history.Never}
		}},
		{"an answer that came at last, from the record", brokenCap, func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 1.2, 1.3, true)
			c := s.check("a", 1.4, 1.5, true)
			s.again(c, 2, 2.1)
			c.Attempts[0] = history.Attempt{Sent: at(1.4), Received: history.Never}
		}},
		{"a cost", brokenCap, func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 1.2, 1.3, true).Cost = 2
		}},
		{"a lowered limit beside what an earlier revision admitted", brokenCap, func(s *script) {
			s.policy(limited("v1", 3), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 1.2, 1.3, true)
			s.policy(limited("v2", 2), 1.4, 1.5)
			s.check("a", 1.6, 1.7, true)
		}},
		{"more than a lowered limit, all before it", "", func(s *script) {
			s.policy(limited("v1", 3), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 1.2, 1.3, true)
			s.check("a", 1.2, 1.3, true)
			s.policy(limited("v2", 2), 1.4, 1.5)
			s.check("a", 1.6, 1.7, false)
			s.check("a", 5.4, 5.5, true)
		}},
		{"a raised limit that forgets what was admitted before", brokenCap, func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 1.2, 1.3, true)
			s.policy(limited("v2", 3), 1.4, 1.5)
			s.check("a", 1.6, 1.7, true)
			s.check("a", 1.6, 1.7, true)
		}},
		{"a renamed limit that forgets", brokenCap, func(s *script) {
			s.policy(limited("v1", 1), -2, -1)
			s.check("a", 1, 1.1, true)
			p := limited("v2", 1)
			p.Classes["a"].Limits[0].Name = "renamed"
			s.policy(p, 1.4, 1.5)
			s.check("a", 1.6, 1.7, true)
		}},
		{"a group's limit over two classes", brokenCap, func(s *script) {
			p := limited("v1", 9)
			p.Groups = map[string]history.Group{"g": {
				Classes: []string{"a", "b"}, Limits: []history.Limit{{Name: "g", Max: 2, Window: history.Window(4 * time.Second)}},
			}}
			s.policy(p, -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("b", 1.2, 1.3, true)
			s.check("a", 1.4, 1.5, true)
		}},
		{"a class that joins a group with what it has used", brokenCap, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("b", 1.2, 1.3, true)
			p := limited("v2", 9)
			p.Groups = map[string]history.Group{"g": {
				Classes: []string{"a", "b"}, Limits: []history.Limit{{Name: "g", Max: 2, Window: history.Window(4 * time.Second)}},
			}}
			s.policy(p, 1.4, 1.5)
			s.check("a", 1.6, 1.7, true)
		}},
		{"names that are not listed have one usage", brokenCap, func(s *script) {
			p := limited("v1", 9)
			p.Default = history.Class{Limits: []history.Limit{{Name: "default", Max: 1, Window: history.Window(4 * time.Second)}}}
			s.policy(p, -2, -1)
			s.check("x", 1, 1.1, true)
			s.check("y", 1.2, 1.3, true)
		}},
		{"a name that becomes listed leaves the rule of before", brokenCarry, func(s *script) {
			p := limited("v1", 9)
			p.Default = history.Class{Limits: []history.Limit{{Name: "default", Max: 1, Window: history.Window(4 * time.Second)}}}
			s.policy(p, -2, -1)
			s.check("x", 11, 11.1, true)
			p = p.Clone()
			p.Version, p.Classes["x"] = "v2", history.Class{Limits: []history.Limit{{Name: "x", Max: 5, Window: history.Window(4 * time.Second)}}}
			s.policy(p, 12, 12.1)
			s.check("x", 12.2, 12.3, true)
		}},
		{"a name that became listed a window ago", "", func(s *script) {
			p := limited("v1", 9)
			p.Default = history.Class{Limits: []history.Limit{{Name: "default", Max: 1, Window: history.Window(4 * time.Second)}}}
			s.policy(p, -2, -1)
			p = p.Clone()
			p.Version, p.Classes["x"] = "v2", history.Class{Limits: []history.Limit{{Name: "x", Max: 5, Window: history.Window(4 * time.Second)}}}
			s.policy(p, 12, 12.1)
			s.check("x", 15.8, 15.9, true)
			s.check("x", 16.2, 16.3, true)
		}},
		{"a longer window whose history is not there leaves the rule of before", brokenCarry, func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 11, 11.1, true)
			s.check("a", 11.2, 11.3, true)
			p := limited("v2", 2)
			p.Classes["a"].Limits[0] = history.Limit{Name: "long", Max: 9, Window: history.Window(8 * time.Second)}
			s.policy(p, 12, 12.1)
			s.check("a", 12.2, 12.3, true)
		}},
		{"a longer window does not know what was too old for the one of before", "", func(s *script) {
			s.policy(limited("v1", 1), -2, -1)
			s.check("a", 7, 7.1, true)
			p := limited("v2", 1)
			p.Classes["a"].Limits[0].Window = history.Window(8 * time.Second)
			s.policy(p, 12, 12.1)
			s.check("a", 12.2, 12.3, true)
		}},
		{"a longer window knows what the one of before knew", brokenCap, func(s *script) {
			s.policy(limited("v1", 1), -2, -1)
			s.check("a", 11, 11.1, true)
			p := limited("v2", 1)
			p.Classes["a"].Limits[0].Window = history.Window(8 * time.Second)
			s.policy(p, 12, 12.1)
			s.check("a", 17, 17.1, true)
		}},
		{"an admission to a class that is disabled", brokenClosed, func(s *script) {
			p := limited("v1", 9)
			p.Classes["a"] = history.Class{Limits: p.Classes["a"].Limits, Disabled: true}
			s.policy(p, -2, -1)
			s.check("a", 1, 1.1, true)
		}},
		{"a class that is refused as disabled and is not", brokenClosed, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, false).Attempts[0].Answer.Reason = "endpoint_disabled"
		}},
		{"an admission where the limit is 0", brokenCap, func(s *script) {
			s.policy(limited("v1", 0), -2, -1)
			s.check("a", 1, 1.1, true)
		}},
		{"a repeated id that gets its record", "", func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.again(s.check("a", 1, 1.1, true), 1.2, 1.3)
		}},
		{"a repeated id that is admitted again", brokenID, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.again(s.check("a", 1, 1.1, true), 1.2, 1.3).Answer.Replayed = false
		}},
		{"a repeated id that is admitted again at the same time", brokenID, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.again(s.check("a", 1, 1.3, true), 1.1, 1.2).Answer.Replayed = false
		}},
		{"a recorded denial that becomes an allow", brokenID, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			b := s.again(s.check("a", 1, 1.1, false), 1.2, 1.3)
			b.Answer.Allowed, b.Answer.Reason, b.Answer.Replayed = true, "allowed", false
		}},
		{"an unrecorded denial that becomes an allow", "", func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			c := s.check("a", 1, 1.1, false)
			b := s.again(c, 1.2, 1.3)
			b.Answer.Allowed, b.Answer.Reason, b.Answer.Replayed = true, "allowed", false
			c.Attempts[0].Answer.Recorded = false
		}},
		{"a record that tells another revision", brokenID, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			c := s.check("a", 1, 1.1, true)
			s.policy(limited("v2", 9), 1.2, 1.3)
			b := s.again(c, 1.4, 1.5)
			b.Answer.Revision, b.Answer.Version = 2, "v2"
		}},
		{"a check sent before a revision was active", "", func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1.9, 2.2, true)
			s.policy(limited("v2", 9), 1, 2)
		}},
		{"a check sent after a revision was active, decided under the one before", brokenStale, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 2.1, 2.2, true)
			s.policy(limited("v2", 9), 1, 2)
		}},
		{"a denial under a revision that is not active any more", brokenStale, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 2.1, 2.2, false)
			s.policy(limited("v2", 9), 1, 2)
		}},
		{"a check repeated after a revision was active, with the record of before", "", func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.again(s.check("a", 1, 1.1, true), 2.1, 2.2)
			s.policy(limited("v2", 9), 1, 2)
		}},
		{"a revision that goes back", brokenBackwards, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 2.2, 2.3, true)
			s.policy(limited("v2", 9), 1, 0).Active = history.Never
			s.check("a", 2, 2.1, true)
		}},
		{"revisions at the same time in any order", "", func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 2, 2.3, true)
			s.policy(limited("v2", 9), 1, 0).Active = history.Never
			s.check("a", 2, 2.1, true)
		}},
		{"a revision that there was not", brokenRevision, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, true).Attempts[0].Answer.Revision = 2
		}},
		{"a revision under another label", brokenRevision, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, true).Attempts[0].Answer.Version = "v2"
		}},
		{"a revision before it was made", brokenRevision, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.policy(limited("v2", 9), 2, 3)
			s.check("a", 1, 1.1, true)
		}},
		{"an error that a fault excuses", "", func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, false).Attempts[0].Answer = history.Answer{Reason: "no_quorum"}
		}},
		{"an error that no fault excuses", brokenAnswer, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, false).Attempts[0].Answer = history.Answer{Reason: "internal"}
		}},
		{"a room below 0", brokenRemaining, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, true).Attempts[0].Answer.Remaining = -1
		}},
		{"a limit's room below 0", brokenRemaining, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, false).Attempts[0].Answer.Limits = []history.LimitAnswer{{Name: "a", Limit: 9, Remaining: -1}}
		}},
		{"an allow that consumed nothing", brokenRemaining, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			s.check("a", 1, 1.1, true).Attempts[0].Answer.Limits = []history.LimitAnswer{{Name: "a", Limit: 9, Remaining: 9}}
		}},
		{"a move that gives a fresh budget", brokenCap, func(s *script) {
			s.policy(long(), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 2, 2.1, true)
			s.check("a", 900, 900.1, true).Attempts[0].Node = "n1"
		}},
		{"a move that forgets what was used, before anybody used it again", brokenSum, func(s *script) {
			s.policy(long(), -2, -1)
			s.room(s.check("a", 1, 1.1, true), 1)
			s.room(s.check("a", 900, 900.1, true), 1)
		}},
		{"a move that brings usage twice", brokenSum, func(s *script) {
			s.policy(long(), -2, -1)
			s.room(s.check("a", 1, 1.1, true), 1)
			s.room(s.check("a", 900, 900.1, false), 0)
		}},
		{"a move that brings what was used", "", func(s *script) {
			s.policy(long(), -2, -1)
			s.room(s.check("a", 1, 1.1, true), 1)
			s.room(s.check("a", 900, 900.1, true), 0)
			s.room(s.check("a", 900.2, 900.3, false), 0)
		}},
		{"a room less for a check whose fate is not known", "", func(s *script) {
			s.policy(long(), -2, -1)
			s.check("a", 1, 1.1, true).Attempts[0] = history.Attempt{Sent: at(1), Received: history.Never}
			s.room(s.check("a", 2, 2.1, true), 0)
		}},
		{"a room less for a check that is under way", "", func(s *script) {
			s.policy(long(), -2, -1)
			s.room(s.check("a", 1, 1.3, true), 0)
			s.room(s.check("a", 1.1, 1.2, true), 1)
		}},
		{"a room of what has expired", "", func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 5, 5.1, true).Attempts[0].Answer.Limits = []history.LimitAnswer{{Name: "a", Limit: 2, Remaining: 1}}
		}},
		{"a room of what cannot have expired", brokenSum, func(s *script) {
			s.policy(limited("v1", 2), -2, -1)
			s.check("a", 1, 1.1, true)
			s.check("a", 4.8, 4.9, true).Attempts[0].Answer.Limits = []history.LimitAnswer{{Name: "a", Limit: 2, Remaining: 1}}
		}},
		{"an id that is admitted at both ends of a move", brokenID, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			b := s.again(s.check("a", 1, 1.1, true), 9, 9.1)
			b.Node, b.Answer.Replayed = "n1", false
		}},
		{"an id that is denied where the move brought it, and was admitted before", brokenID, func(s *script) {
			s.policy(limited("v1", 9), -2, -1)
			b := s.again(s.check("a", 1, 1.1, true), 9, 9.1)
			b.Node, b.Answer.Allowed, b.Answer.Reason, b.Answer.Replayed = "n1", false, "quota_exhausted", false
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &script{}
			c.make(s)
			want := map[string]bool{}
			if c.broken != "" {
				want[c.broken] = true
			}
			got := map[string]bool{}
			r := Examine(&s.History)
			for kind := range r.Violations {
				got[kind] = true
			}
			if !maps.Equal(got, want) {
				t.Errorf("blamed for %v, want %v: %v", got, want, r.Err())
			}
		})
	}
}

// TestCheckerCounts shows that a report tells how much a history could show at all.
func TestCheckerCounts(t *testing.T) {
	s := &script{}
	s.policy(limited("v1", 2), -2, -1)
	s.check("a", 1, 1.1, true)
	s.again(s.check("a", 1.2, 1.3, true), 1.4, 1.5)
	s.check("a", 2, 2.1, false)
	s.check("a", 3, 3.1, true).Attempts[0] = history.Attempt{Sent: at(3), Received: history.Never}
	r := Examine(&s.History)
	if r.Admitted != 2 || r.Denied != 1 || r.Replayed != 1 || r.Unknown != 1 || r.Reached != 1 || r.ByRevision[1] != 3 {
		t.Errorf("counted %v", r)
	}
}
