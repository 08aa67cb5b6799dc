package check

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// story is a small run that is told by hand: what was asked, and what three replicas applied.
type story struct {
	config  history.Config
	log     bool // the program traces what it applies
	revs    []history.Revision
	asked   []*history.Asked
	events  []history.Event
	entries []*told
	files   map[string]string // others of the directory

	group string
	term  uint64
	epoch uint64
	index map[string]uint64
	skew  time.Duration // by how much partition time is ahead of where it began
}

// told is an entry of a story.
type told struct {
	history.Applied
	at      time.Duration
	only    string                                   // the node that tells of it; empty: all
	differs func(node string, line *history.Applied) // what a node tells otherwise
}

// step is a decision of a story: the attempt that asked for it, and its entry.
type step struct {
	*history.Asked
	entry *told
}

func newStory(limit int64) *story {
	s := &story{
		config: history.Config{
			Name: "golden", Nodes: 3, Duration: 20 * time.Second, Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			BeganMonotonic: 1_000_000_000, Workloads: []string{"saturate"}, Least: &history.Least{},
		},
		log: true, files: map[string]string{}, group: "1", term: 2, epoch: 1, index: map[string]uint64{},
	}
	s.policy(limited("v1", limit), -2, -1)
	return s
}

// policy puts a policy in force between two instants, in seconds; from then on it decides.
func (s *story) policy(p history.Policy, began, active float64) *history.Revision {
	s.revs = append(s.revs, history.Revision{
		Number: uint64(len(s.revs) + 1), Policy: p, Began: at(began), Active: at(active),
	})
	return &s.revs[len(s.revs)-1]
}

// entry adds one to the log that is stamped at an instant.
func (s *story) entry(when time.Duration) *told {
	s.index[s.group]++
	e := &told{at: when, Applied: history.Applied{
		Group: s.group, Index: s.index[s.group], Term: s.term, Kind: "batch",
		Stamp: int64(when + 100*time.Second + s.skew), Revision: s.revs[len(s.revs)-1].Number,
	}}
	e.Time = e.Stamp
	e.Entry = fmt.Sprintf("e%d.%d", e.Term, e.Index)
	e.Answers, e.State = fmt.Sprintf("a%d", e.Index), fmt.Sprintf("s%s.%d", e.Group, e.Index)
	s.entries = append(s.entries, e)
	return e
}

// attempt is one that was answered, and is in no log.
func (s *story) attempt(id string, from, to time.Duration, reason string) *history.Asked {
	r := &s.revs[len(s.revs)-1]
	a := &history.Asked{
		ID: id, Principal: "p", Class: "a", Cost: 1, Workload: "saturate", Client: "c1", Node: "n0", Sent: from, Received: to,
		Answer: history.Answer{Reason: reason, Allowed: reason == reasonAllowed},
	}
	if a.Answer.Decided() {
		a.Answer.Revision, a.Answer.Version, a.Answer.Recorded = r.Number, r.Policy.Version, true
	}
	s.asked = append(s.asked, a)
	return a
}

// ask has a check of p decided half way between its being asked for and answered.
func (s *story) ask(id string, from, to time.Duration, reason string) *step {
	a := s.attempt(id, from, to, reason)
	e := s.entry(from + (to-from)/2)
	e.Decisions = []history.AppliedOutcome{{
		ID: id, Principal: a.Principal, Class: a.Class, Cost: a.Cost, Reason: reason, Recorded: true,
		Revision: e.Revision, Slot: 7, Epoch: s.epoch,
	}}
	return &step{a, e}
}

// cost has a step be for more.
func (t *step) cost(n int64) *step {
	t.Cost, t.entry.Decisions[0].Cost = n, n
	return t
}

// again repeats a step, which is answered from its record.
func (s *story) again(t *step, from, to time.Duration) *step {
	n := s.ask(t.ID, from, to, t.Answer.Reason)
	n.Answer, n.Answer.Replayed = t.Answer, true
	d := &n.entry.Decisions[0]
	d.Replayed, d.Revision = true, t.entry.Revision
	return n
}

// silent has a step not be answered.
func (t *step) silent() *step {
	t.Received, t.Answer = history.Never, history.Answer{}
	return t
}

// event adds one.
func (s *story) event(e history.Event) { s.events = append(s.events, e) }

// restored has a node take a snapshot at an index.
func (s *story) restored(node string, when time.Duration, index uint64, state string) {
	s.entries = append(s.entries, &told{at: when, only: node, Applied: history.Applied{
		Group: s.group, Index: index, Kind: "restore", State: state, Restored: true,
	}})
}

// write makes the directory.
func (s *story) write(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lines := func(name string, each func(line func(any))) {
		var text strings.Builder
		each(func(v any) {
			b, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			text.Write(b)
			text.WriteByte('\n')
		})
		put(name, text.String())
	}
	if err := history.WriteFile(filepath.Join(dir, history.ConfigFile), &s.config); err != nil {
		t.Fatal(err)
	}
	lines(history.PolicyFile, func(line func(any)) {
		for _, r := range s.revs {
			line(r)
		}
	})
	lines(history.AttemptsFile, func(line func(any)) {
		for _, a := range s.asked {
			line(a)
		}
	})
	lines(history.EventsFile, func(line func(any)) {
		for _, e := range s.events {
			line(e)
		}
	})
	for name, text := range s.files {
		put(name, text)
	}
	for k := 0; s.log && k < s.config.Nodes; k++ {
		node := fmt.Sprint("n", k)
		lines(fmt.Sprintf("applied-%s-1.jsonl", node), func(line func(any)) {
			for _, e := range s.entries {
				if e.only != "" && e.only != node {
					continue
				}
				a := e.Applied
				a.Node = node
				a.Monotonic = s.config.BeganMonotonic + int64(e.at) + int64(1+2*k)*int64(time.Millisecond)/10
				if e.differs != nil {
					e.differs(node, &a)
				}
				line(a)
			}
		})
	}
}
