package sim

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
)

// broken are the invariants that a history breaks.
func broken(h *history) map[invariant]bool {
	out := map[invariant]bool{}
	for _, v := range h.violations() {
		out[v.invariant] = true
	}
	return out
}

func admissionsAt(costs []int64, offsets ...time.Duration) *history {
	h, begin := newHistory(), time.Unix(1_000_000, 0)
	for i, o := range offsets {
		h.admissions = append(h.admissions, admission{
			principal: "p", cost: costs[i%len(costs)], index: uint64(i + 1), at: begin.Add(o),
		})
	}
	return h
}

// The cap is judged over (t-W, t]: an admission W ago is outside, one nanosecond later it is inside.
func TestCheckCap(t *testing.T) {
	limits := []limit{{3, time.Second}}
	for _, c := range []struct {
		name    string
		costs   []int64
		offsets []time.Duration
		bad     bool
	}{
		{"exactly W apart", []int64{1}, []time.Duration{0, 1, 2, time.Second}, false},
		{"a nanosecond less", []int64{1}, []time.Duration{0, 1, 2, time.Second - 1}, true},
		{"costs count", []int64{2}, []time.Duration{0, time.Second - 1}, true},
		{"all at once", []int64{1}, []time.Duration{0, 0, 0}, false},
		{"out of order in the log", []int64{1}, []time.Duration{time.Second - 1, 0, 1, 2}, true},
	} {
		h := admissionsAt(c.costs, c.offsets...)
		h.check(limits)
		if broken(h)[capHolds] != c.bad || len(broken(h)) > 1 {
			t.Errorf("%s: %v", c.name, h.violations())
		}
	}
}

// Two results of one id, an acknowledged allow that is nowhere, and a denial that is an admission are found;
// a denial that was not recorded may change.
func TestCheckResults(t *testing.T) {
	allow, deny := fsm.ReasonAllowed, fsm.ReasonQuotaExhausted
	for _, c := range []struct {
		name      string
		committed bool
		results   []result
		want      invariant
	}{
		{"kept", true, []result{{id: "x", reason: allow, recorded: true}, {id: "x", reason: allow, recorded: true}}, ""},
		{"lost", false, []result{{id: "x", reason: allow, recorded: true}}, durableHolds},
		{"changed", true, []result{{id: "x", reason: allow, recorded: true}, {id: "x", reason: deny}}, onceHolds},
		{"not recorded", true, []result{{id: "x", reason: deny}, {id: "x", reason: allow, recorded: true}}, ""},
		{"denied and admitted", true, []result{{id: "x", reason: deny, recorded: true}}, onceHolds},
	} {
		h := newHistory()
		if c.committed {
			h.allowed["x"] = 7
		}
		for _, r := range c.results {
			h.told(r)
		}
		h.check(nil)
		if got := broken(h); c.want == "" && len(got) > 0 || c.want != "" && (!got[c.want] || len(got) > 1) {
			t.Errorf("%s: %v, expected %q", c.name, h.violations(), c.want)
		}
	}
}

// Replicas that differ at one index in entry, term, answer or digest are found, and equal ones are not.
func TestCheckAgreement(t *testing.T) {
	answer := &fsm.Answers{Refused: fsm.ReasonStaleTerm}
	one, other := [16]byte{1}, [16]byte{2}
	for name, second := range map[string]func(h *history){
		"entry":  func(h *history) { h.apply("b", 5, 2, []byte("y"), answer, one, true) },
		"term":   func(h *history) { h.apply("b", 5, 3, []byte("x"), answer, one, true) },
		"answer": func(h *history) { h.apply("b", 5, 2, []byte("x"), &fsm.Answers{Refused: fsm.ReasonUnborn}, one, true) },
		"digest": func(h *history) { h.apply("b", 5, 2, []byte("x"), answer, other, true) },
		"":       func(h *history) { h.apply("b", 5, 2, []byte("x"), answer, one, true) },
	} {
		h := newHistory()
		h.apply("a", 5, 2, []byte("x"), answer, one, true)
		second(h)
		if got := broken(h)[agreementHolds]; got != (name != "") {
			t.Errorf("%q: %v", name, h.violations())
		}
	}
}

// Two senders of entries in one term are found, by their requests alone.
func TestCheckElection(t *testing.T) {
	h := newHistory()
	for _, id := range []string{"n1", "n1", "n2"} {
		h.packet(&packet{
			from:    &transport{self: group.Member{ID: id}},
			command: &raft.AppendEntriesRequest{Term: 3},
		})
	}
	if !broken(h)[electionHolds] {
		t.Error("two leaders of term 3 went unnoticed")
	}
}

// An id that is admitted twice is found.
func TestCheckTwice(t *testing.T) {
	h := newHistory()
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Checks: []fsm.Check{{
		Principal: "p", Gateway: "g", DecisionID: "x", Charge: fsm.Charge{Class: "c", Cost: 1},
	}}}
	data := fsm.AppendEntry(nil, e)
	h.propose(data, true)
	answers := &fsm.Answers{Decisions: []fsm.Decision{{Reason: fsm.ReasonAllowed}}}
	h.apply("a", 5, 1, data, answers, [16]byte{}, false)
	if len(broken(h)) > 0 {
		t.Fatal(h.violations())
	}
	h.apply("a", 6, 1, data, answers, [16]byte{}, false)
	if !broken(h)[onceHolds] {
		t.Error("one id was admitted twice, unnoticed")
	}
}

// A decision under a revision that was replaced longer than a lease ago is found; one just in time, one of a
// node whose clocks stood still, and a repeated one are none.
func TestCheckPolicy(t *testing.T) {
	published := time.Now()
	for name, c := range map[string]struct {
		decision fsm.Decision
		by       proposal
		found    bool
	}{
		"late":           {fsm.Decision{Revision: 1}, proposal{published.Add(leaseTime + 1), true}, true},
		"in time":        {fsm.Decision{Revision: 1}, proposal{published.Add(leaseTime), true}, false},
		"by a still one": {fsm.Decision{Revision: 1}, proposal{published.Add(time.Hour), false}, false},
		"repeated":       {fsm.Decision{Revision: 1, Replayed: true}, proposal{published.Add(time.Hour), true}, false},
		"in force":       {fsm.Decision{Revision: 2}, proposal{published.Add(time.Hour), true}, false},
	} {
		h := newHistory()
		h.published[2] = published
		h.govern(7, &c.decision, c.by)
		if got := broken(h)[policyHolds]; got != c.found {
			t.Errorf("%s: %v", name, h.violations())
		}
	}
}
