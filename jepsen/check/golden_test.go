package check

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

var update = flag.Bool("update", false, "write the golden runs again")

// golden is a run of which it is known what each checker has to say.
type golden struct {
	limit  int64
	broken string // the checkers that must fail, and no other; empty: none
	tell   func(s *story)
}

const (
	window   = 4 * time.Second // of all limits
	allCaps  = "cap-blackbox cap-log porcupine"
	instant  = 100 * time.Millisecond
	allowed  = reasonAllowed
	denial   = reasonExhausted
	conflict = "decision_id_conflict"
)

// fill admits as many as the limit of two, from an instant on.
func (s *story) fill(from time.Duration) {
	s.ask("d1", from, from+instant, allowed)
	s.ask("d2", from+2*instant, from+3*instant, allowed)
}

// moved has p's slot owned by another partition from now on.
func (s *story) moved(to string) {
	s.group = to
	s.epoch++
}

var goldens = map[string]golden{
	"good/fills-and-expires": {2, "", func(s *story) {
		s.fill(at(1))
		s.ask("d3", at(2), at(2.1), denial).Answer.RetryAfterMS = 3001
		s.ask("d4", at(5.2), at(5.3), allowed)
		s.event(history.Event{At: at(3), Until: at(9), Kind: "phase", What: "healed"})
	}},
	"good/exactly-a-window-apart": {1, "", func(s *story) {
		s.ask("d1", at(1), at(1), allowed)
		s.ask("d2", at(1)+window, at(1)+window, allowed)
	}},
	"good/leader-fails": {2, "", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		lost := s.ask("d2", at(1.2), at(1.3), allowed).silent()
		s.event(history.Event{At: at(1), Kind: "leader", What: "n0", Nodes: []string{"n0"}, Group: "1", Value: 2})
		s.event(history.Event{At: at(1.3), Kind: "end", What: "kill", Nodes: []string{"n0"}, Injected: true})
		s.attempt("d2", at(1.4), at(1.5), "not_leader")
		s.term = 3
		s.event(history.Event{At: at(3), Kind: "leader", What: "n1", Nodes: []string{"n1"}, Group: "1", Value: 3})
		lost.Answer = s.asked[0].Answer
		s.again(lost, at(3.4), at(3.5))
		lost.Answer = history.Answer{}
		s.ask("d3", at(4), at(4.1), denial)
		s.ask("d4", at(5.2), at(5.3), allowed)
	}},
	"good/moves": {2, "", func(s *story) {
		first := s.ask("d1", at(1), at(1.1), allowed)
		s.attempt("d2", at(1.2), at(1.3), "frozen")
		s.moved("2")
		s.ask("d2", at(1.4), at(1.5), allowed)
		s.again(first, at(2), at(2.1))
		s.ask("d3", at(3), at(3.1), denial)
		s.moved("1")
		s.ask("d4", at(5.2), at(5.3), allowed)
	}},
	"good/policy-tightens": {3, "", func(s *story) {
		s.fill(at(1))
		s.policy(limited("v2", 1), 2, 2.5)
		s.ask("d3", at(2.6), at(2.7), denial).Answer.RetryAfterMS = 2602
		s.ask("d4", at(5.4), at(5.5), allowed)
	}},
	"good/id-used-for-something-else": {2, "", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		other := s.ask("d1", at(2), at(2.1), conflict).cost(2)
		other.entry.Decisions[0].Recorded = false
	}},
	"good/decided-again-after-its-record": {2, "", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		again := s.ask("d1", at(32), at(32.1), allowed)
		s.again(again, at(33), at(33.1))
	}},
	"good/without-a-trace": {2, "", func(s *story) {
		s.fill(at(1))
		s.ask("d3", at(2), at(2.1), denial)
		s.log = false
	}},
	"good/lines-lost-with-all-replicas": {2, "", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.attempt("d2", at(1.2), at(1.3), allowed)
		s.index["1"] += 4
		for _, n := range []string{"n0", "n1", "n2"} {
			s.restored(n, at(3), s.index["1"], "s")
		}
		s.ask("d3", at(3.4), at(3.5), denial)
	}},

	"bad/one-too-many-a-nanosecond-early": {1, allCaps, func(s *story) {
		s.ask("d1", at(1), at(1), allowed)
		s.ask("d2", at(1)+window-1, at(1)+window-1, allowed)
	}},
	"bad/one-too-many-after-a-failover": {2, allCaps, func(s *story) {
		s.fill(at(1))
		s.term = 3
		s.ask("d3", at(3), at(3.1), allowed)
	}},
	"bad/one-too-many-after-a-move": {2, allCaps, func(s *story) {
		s.fill(at(1))
		s.moved("2")
		s.ask("d3", at(3), at(3.1), allowed)
	}},
	"bad/too-much-by-weight": {2, allCaps, func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.ask("d2", at(2), at(2.1), allowed).cost(2)
	}},
	"bad/one-too-many-that-nobody-knew-of": {2, allCaps, func(s *story) {
		s.fill(at(1))
		s.ask("d3", at(2), at(2.1), allowed)
		answer := s.asked[2].Answer
		s.asked[2].Received, s.asked[2].Answer = history.Never, history.Answer{}
		s.attempt("d3", at(2.4), at(2.5), allowed).Answer.Replayed = true
		s.asked[3].Answer.Revision = answer.Revision
	}},
	"bad/four-in-three-windows-of-one": {1, allCaps, func(s *story) {
		s.ask("d1", at(0.1), at(5.1), allowed).entry.at = at(0.2)
		s.ask("d2", at(0.6), at(9.1), allowed)
		s.ask("d3", at(3.1), at(11.6), allowed)
		s.ask("d4", at(7.3), at(12), allowed)
		for i, e := range s.entries {
			e.at = []time.Duration{at(0.2), at(4.3), at(8.4), at(11.9)}[i]
			e.Stamp = int64(e.at + 100*time.Second)
			e.Time = e.Stamp
		}
	}},
	"bad/a-leader-whose-clock-is-ahead": {1, allCaps + " stamps", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.term, s.skew = 3, 3*time.Second
		s.ask("d2", at(2.5), at(2.6), allowed)
	}},
	"bad/a-class-that-is-disabled": {2, allCaps[:len("cap-blackbox cap-log")], func(s *story) {
		p := limited("v2", 2)
		c := p.Classes["a"]
		c.Disabled = true
		p.Classes["a"] = c
		s.policy(p, 1, 1.5)
		s.ask("d1", at(2), at(2.1), allowed)
	}},
	"bad/time-goes-back": {2, "stamps", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.entry(at(2))
		s.entry(at(2.1)).Time -= int64(at(0.5))
		s.entries[2].Stamp = s.entries[2].Time
	}},
	"bad/time-runs-ahead": {2, "stamps", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.skew = at(0.5)
		s.ask("d2", at(6), at(6.1), allowed)
	}},
	"bad/an-allow-that-is-nowhere": {2, "durability", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.attempt("d2", at(2), at(2.1), allowed)
		s.ask("d3", at(6), at(6.1), allowed)
	}},
	"bad/lines-lost-and-an-allow-elsewhen": {2, "durability", func(s *story) {
		s.attempt("d0", at(0.1), at(0.2), allowed)
		s.ask("d1", at(1), at(1.1), allowed)
		s.index["1"] += 4
		for _, n := range []string{"n0", "n1", "n2"} {
			s.restored(n, at(3), s.index["1"], "s")
		}
	}},
	"bad/a-record-that-changes-its-mind": {2, "porcupine replay", func(s *story) {
		first := s.ask("d1", at(1), at(1.1), allowed)
		again := s.again(first, at(2), at(2.1))
		again.Answer.Allowed, again.Answer.Reason = false, denial
		again.entry.Decisions[0].Reason = denial
	}},
	"bad/a-denial-decided-again": {0, "replay", func(s *story) {
		s.revs[0].Policy = limited("v1", 2)
		s.fill(at(1))
		s.ask("d3", at(2), at(2.1), denial)
		s.ask("d3", at(3), at(3.1), denial)
	}},
	"bad/admitted-twice": {2, "replay", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.ask("d1", at(2), at(2.1), allowed)
	}},
	"bad/admitted-twice-and-told-once": {2, "replay", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed).silent()
		s.moved("2")
		s.ask("d1", at(2), at(2.1), allowed)
	}},
	"bad/admitted-under-an-id-of-nobody": {2, "replay", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.ask("d2", at(2), at(2.1), allowed)
		s.asked = s.asked[:1]
	}},
	"bad/a-record-of-nothing": {2, "replay", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		d2 := s.ask("d2", at(2), at(2.1), denial)
		d2.Answer.Replayed, d2.entry.Decisions[0].Replayed = true, true
	}},
	"bad/an-epoch-goes-back": {2, "epochs", func(s *story) {
		s.epoch = 2
		s.ask("d1", at(1), at(1.1), allowed)
		s.epoch = 1
		q := s.ask("d2", at(2), at(2.1), allowed)
		q.Principal, q.entry.Decisions[0].Principal = "q", "q"
	}},
	"bad/an-old-owner-goes-on": {2, "owner", func(s *story) {
		s.moved("2")
		s.ask("d1", at(1), at(1.1), allowed)
		s.group, s.epoch = "1", 1
		q := s.ask("d2", at(2), at(2.1), allowed)
		q.Principal, q.entry.Decisions[0].Principal = "q", "q"
	}},
	"bad/two-owners-under-one-epoch": {2, "owner", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.group = "2"
		s.ask("d2", at(2), at(2.1), allowed)
	}},
	"bad/an-old-policy-decides": {2, "policy", func(s *story) {
		s.ask("d1", at(3), at(3.1), allowed)
		s.policy(limited("v2", 2), 1, 2)
	}},
	"bad/a-policy-goes-back": {2, "policy", func(s *story) {
		s.policy(limited("v2", 2), 1, 2).Active = history.Never
		s.ask("d1", at(3), at(3.1), allowed)
		late := s.ask("d2", at(4), at(4.1), allowed)
		late.Answer.Revision, late.Answer.Version = 1, "v1"
		late.entry.Revision, late.entry.Decisions[0].Revision = 1, 1
	}},
	"bad/a-policy-that-there-was-not": {2, "policy", func(s *story) {
		d := s.ask("d1", at(3), at(3.1), denial)
		d.Answer.Revision, d.entry.Revision, d.entry.Decisions[0].Revision = 9, 9, 9
	}},
	"bad/replicas-answer-differently": {2, "agreement", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed).entry.differs = func(node string, line *history.Applied) {
			if node == "n1" {
				line.Answers = "other"
			}
		}
	}},
	"bad/replicas-have-other-states": {2, "agreement", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed).entry.differs = func(node string, line *history.Applied) {
			if node == "n2" {
				line.State = "other"
			}
		}
	}},
	"bad/an-index-used-again": {2, "agreement", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.entry(at(2)).differs = func(node string, line *history.Applied) {
			if node == "n2" {
				line.Entry, line.Term = "other", 3
			}
		}
	}},
	"bad/a-snapshot-lacks-something": {2, "agreement", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.restored("n2", at(3), 1, "other")
	}},
	"bad/two-leaders-in-a-term": {2, "terms", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.event(history.Event{At: at(1), Kind: "leader", What: "n0", Nodes: []string{"n0"}, Group: "1", Value: 2})
		s.event(history.Event{At: at(2), Kind: "leader", What: "n1", Nodes: []string{"n1"}, Group: "1", Value: 2})
	}},
	"bad/a-term-goes-back": {2, "terms", func(s *story) {
		s.term = 3
		s.ask("d1", at(1), at(1.1), allowed)
		s.term = 2
		s.ask("d2", at(2), at(2.1), allowed)
	}},
	"bad/a-denial-that-was-an-allow": {2, "definite", func(s *story) {
		d := s.ask("d1", at(1), at(1.1), denial)
		d.Answer.Recorded = false
		d.entry.Decisions[0].Reason = allowed
	}},
	"bad/an-error-that-was-an-allow": {2, "definite", func(s *story) {
		d := s.ask("d1", at(1), at(1.1), "not_leader")
		d.entry.Decisions[0].Reason = allowed
	}},
	"bad/an-error-that-no-fault-excuses": {2, "definite", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.attempt("d2", at(2), at(2.1), "internal")
	}},
	"bad/a-denial-with-room": {2, "denials", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.ask("d2", at(2), at(2.1), denial)
	}},
	"bad/a-denial-after-all-has-expired": {2, "denials", func(s *story) {
		s.fill(at(1))
		s.ask("d3", at(5.1), at(5.2), denial)
	}},
	"bad/a-denial-with-room-and-no-trace": {2, "denials", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.ask("d2", at(2), at(2.1), denial)
		s.log = false
	}},
	"bad/a-wait-that-is-too-short": {2, "waits", func(s *story) {
		s.fill(at(1))
		s.ask("d3", at(2), at(2.1), denial).Answer.RetryAfterMS = 2500
	}},
	"bad/a-wait-that-is-too-long": {2, "waits", func(s *story) {
		s.fill(at(1))
		s.ask("d3", at(2), at(2.1), denial).Answer.RetryAfterMS = 3900
	}},
	"bad/more-left-than-can-be": {2, "sums", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		peek := s.attempt("u1", at(2), at(2.1), "")
		peek.Peek, peek.Answer = true, history.Answer{
			Revision: 1, Version: "v1", Limits: []history.LimitAnswer{{Name: "a", Limit: 2, Remaining: 2}},
		}
	}},
	"bad/no-decision-after-the-faults": {2, "liveness", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.event(history.Event{At: at(5), Until: at(20), Kind: "phase", What: "healed"})
		for i := range 12 {
			s.attempt("d2", at(6+float64(i)), at(6.5+float64(i)), "no_quorum")
		}
	}},
	"bad/no-decision-of-the-core": {2, "liveness", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.event(history.Event{At: at(5), Until: at(20), Kind: "phase", What: "core", Nodes: []string{"n2"}})
		for i := range 12 {
			s.attempt("d2", at(6+float64(i)), at(6.5+float64(i)), "no_quorum")
		}
	}},
	"bad/a-process-that-ended": {2, "process", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.event(history.Event{At: at(2), Kind: "end", What: "exit", Nodes: []string{"n1"}, Value: 2, Text: "it was not asked to"})
	}},
	"bad/a-process-that-panics": {2, "process", func(s *story) {
		s.ask("d1", at(1), at(1.1), allowed)
		s.files["n1.log"] = "time=2026-01-02T03:04:05Z level=INFO msg=started\npanic: runtime error: index out of range [1]\n"
	}},
	"bad/nothing-to-see": {2, "vacuity", func(s *story) {
		s.config.Least, s.config.Faults = nil, []string{"kill"}
		s.ask("d1", at(1), at(1.1), allowed)
	}},
	"bad/a-fault-that-never-took-effect": {2, "vacuity", func(s *story) {
		s.config.Faults = []string{"kill"}
		s.ask("d1", at(1), at(1.1), allowed)
		for i := range 3 {
			began := float64(2 + 2*i)
			s.event(history.Event{At: at(began), Until: at(began + 1), Kind: "fault", What: "kill", Nodes: []string{"n1"}})
		}
	}},
}

// expectFile holds the names of the checkers that must fail.
const expectFile = "expect"

// TestGolden shows that the checkers say of each golden run what they have to: of a good one nothing, of a bad one what
// is wrong, and nothing else. What is stored is what the stories here tell; -update writes it again.
func TestGolden(t *testing.T) {
	if *update {
		if err := os.RemoveAll("testdata"); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(goldens)) {
		t.Run(name, func(t *testing.T) {
			g := goldens[name]
			stored, dir := filepath.Join("testdata", name), t.TempDir()
			s := newStory(g.limit)
			s.files[expectFile] = g.broken + "\n"
			g.tell(s)
			s.write(t, dir)
			if *update {
				if err := os.CopyFS(stored, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
			}
			mustBeSame(t, stored, dir)
			v, err := Run(dir)
			if err != nil {
				t.Fatal(err)
			}
			got := v.Failed()
			slices.Sort(got)
			if strings.Join(got, " ") != g.broken || v.Passed != (g.broken == "") {
				t.Errorf("failed are %v, want %q\n%s", got, g.broken, v)
			}
		})
	}
	if stored, err := filepath.Glob("testdata/*/*"); err != nil || len(stored) != len(goldens) {
		t.Errorf("%d runs are stored, and %d told, %v", len(stored), len(goldens), err)
	}
}

// mustBeSame compares two directories.
func mustBeSame(t *testing.T, want, got string) {
	t.Helper()
	files := func(dir string) map[string]string {
		out := map[string]string{}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = string(text)
		}
		return out
	}
	if !maps.Equal(files(want), files(got)) {
		t.Errorf("%s is not what is told: run the test with -update", want)
	}
}

// TestCanary shows that a run that must fail does, with a proof that can be followed by hand: whoever judges a run by a
// judge that lets this one pass knows nothing.
func TestCanary(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/bad/one-too-many-a-nanosecond-early")); err != nil {
		t.Fatal(err)
	}
	v, err := Run(dir)
	if err != nil {
		t.Fatal(err)
	}
	if v.Passed {
		t.Fatalf("the canary passed:\n%s", v)
	}
	var proof []string
	for _, o := range v.Checkers {
		for _, violation := range o.Violations {
			for _, item := range violation.Certificate {
				proof = append(proof, item.ID)
			}
		}
	}
	if !slices.Contains(proof, "d1") || !slices.Contains(proof, "d2") {
		t.Errorf("the proof does not name both admissions:\n%s", v)
	}
	if _, err := os.Stat(filepath.Join(dir, LinearFile)); err != nil {
		t.Error(err)
	}
}
