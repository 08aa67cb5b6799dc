package sim

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/fsm"
)

// invariant names what must hold.
type invariant string

// The invariants.
const (
	capHolds       invariant = "exact-cap"        // the costs in any (t-W, t] of true time stay within L
	onceHolds      invariant = "once-per-id"      // one result for each decision id
	durableHolds   invariant = "allow-kept"       // an acknowledged allow is in the committed history
	agreementHolds invariant = "equal-states"     // equal answers and states at equal indexes
	electionHolds  invariant = "one-leader"       // one leader in each term
	voteHolds      invariant = "vote-up-to-date"  // no vote for a log that lacks what the voter has
	quorumHolds    invariant = "durable-majority" // nothing applied that two disks do not hold
	endsHolds      invariant = "all-ends"         // every proposal and every call comes to an end
	liveHolds      invariant = "live-after-heal"  // after the faults checks are decided and replicas agree
	stopHolds      invariant = "diverged-stops"   // a replica that computed something else stops
	policyHolds    invariant = "policy-in-force"  // nothing decided under a policy that was replaced a lease ago
	bubbleHolds    invariant = "nothing-left"     // no goroutine is left behind
)

// violation is a broken invariant.
type violation struct {
	invariant invariant
	text      string
}

func (v violation) String() string { return string(v.invariant) + ": " + v.text }

// admission is a committed allow.
type admission struct {
	principal string
	cost      int64
	index     uint64
	at        time.Time // when its entry was proposed, in true time
}

// result is what a client was told.
type result struct {
	id       string
	reason   fsm.Reason
	recorded bool
	node     string
}

// applied is what an entry did on the first replica that applied it.
type applied struct {
	term      uint64
	data      uint64 // hashes
	answers   uint64
	digest    [16]byte
	hasDigest bool
	node      string
}

// history is what a run did, and checks what can be checked at once.
type history struct {
	seed maphash.Seed
	mu   sync.Mutex // guards the fields below

	proposed   map[string]proposal // by entry
	published  map[fsm.Revision]time.Time
	entries    map[uint64]*applied // by log index
	admissions []admission
	allowed    map[string]uint64 // committed allows by decision id: their index
	results    []result
	leaders    map[uint64]string // by term
	found      []violation

	checks, allows, changes, faults, installs int
}

// proposal is when an entry was proposed first.
type proposal struct {
	at     time.Time
	leases bool // the clocks of its node are such that a lease holds
}

func newHistory() *history {
	return &history{
		seed: maphash.MakeSeed(), proposed: map[string]proposal{}, entries: map[uint64]*applied{},
		published: map[fsm.Revision]time.Time{},
		allowed:   map[string]uint64{}, leaders: map[uint64]string{},
	}
}

// mostViolations is how many violations of a run are kept: the first.
const mostViolations = 20

// violate notes a violation.
func (h *history) violate(i invariant, format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.violateLocked(i, format, args...)
}

// violateLocked needs mu.
func (h *history) violateLocked(i invariant, format string, args ...any) {
	if len(h.found) < mostViolations {
		h.found = append(h.found, violation{i, fmt.Sprintf(format, args...)})
	}
}

func (h *history) violations() []violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.found)
}

func (h *history) fault() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults++
}

// propose notes the true instant of an entry's stamp.
func (h *history) propose(data []byte, leases bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := h.proposed[string(data)]; !ok {
		h.proposed[string(data)] = proposal{time.Now(), leases}
	}
}

// publish notes that a revision is in force from now on.
func (h *history) publish(r fsm.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.published[r] = time.Now()
}

// apply notes what an entry did on a replica, and compares it with what it did elsewhere.
func (h *history) apply(node string, index, term uint64, data []byte, answer any, digest [16]byte, known bool) {
	now := applied{term: term, data: maphash.Bytes(h.seed, data), node: node, digest: digest, hasDigest: known}
	answers, _ := answer.(*fsm.Answers)
	now.answers = h.hashAnswers(answers)
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.entries[index]
	if was == nil {
		h.entries[index] = &now
		h.admit(index, data, answers)
		return
	}
	switch {
	case was.term != now.term || was.data != now.data:
		h.violateLocked(agreementHolds, "log index %d: %s applied an entry of term %d, %s another of term %d",
			index, was.node, was.term, node, term)
	case was.answers != now.answers:
		h.violateLocked(agreementHolds, "log index %d: %s and %s answered differently", index, was.node, node)
	case was.hasDigest && known && !bytes.Equal(was.digest[:], digest[:]):
		h.violateLocked(agreementHolds, "log index %d: %s and %s have different digests", index, was.node, node)
	}
}

// admit notes the admissions of an entry that is applied for the first time; it needs mu.
func (h *history) admit(index uint64, data []byte, answers *fsm.Answers) {
	if answers == nil || answers.Refused != fsm.ReasonUnspecified {
		return
	}
	e, err := fsm.DecodeEntry(data)
	if err != nil || len(answers.Decisions) != len(e.Checks) {
		h.violateLocked(agreementHolds, "log index %d: an entry of which nothing can be told: %v", index, err)
		return
	}
	by, ok := h.proposed[string(data)]
	if !ok {
		h.violateLocked(agreementHolds, "log index %d: an entry that nobody proposed was applied", index)
		return
	}
	if e.Kind == fsm.KindInstall {
		h.installs++
	}
	for i := range e.Checks {
		d, c := &answers.Decisions[i], &e.Checks[i]
		h.govern(index, d, by)
		if !d.Allowed() || d.Replayed {
			continue
		}
		if before, twice := h.allowed[c.DecisionID]; twice {
			h.violateLocked(onceHolds, "decision %s was admitted at log index %d and again at %d",
				c.DecisionID, before, index)
		}
		h.allowed[c.DecisionID] = index
		h.admissions = append(h.admissions, admission{
			principal: c.Principal, cost: c.Cost, index: index, at: by.at,
		})
	}
}

// govern checks that a decision was made under a policy that was in force a lease ago at the most; it needs mu.
func (h *history) govern(index uint64, d *fsm.Decision, by proposal) {
	replaced, ok := h.published[d.Revision+1]
	if !ok || d.Replayed || !by.leases || by.at.Sub(replaced) <= leaseTime {
		return
	}
	h.violateLocked(policyHolds, "log index %d: decided under revision %d, %v after it was replaced",
		index, d.Revision, by.at.Sub(replaced))
}

func (h *history) hashAnswers(a *fsm.Answers) uint64 {
	if a == nil {
		return 0
	}
	var b maphash.Hash
	b.SetSeed(h.seed)
	fmt.Fprint(&b, a.Refused, a.Time)
	for i := range a.Decisions {
		d := &a.Decisions[i]
		fmt.Fprint(&b, d.Reason, d.Remaining, d.RetryAt, d.Replayed, d.Recorded, d.Limit)
	}
	return b.Sum64()
}

// saw notes who sends entries or heartbeats of a term, or takes itself for its leader.
func (h *history) saw(term uint64, node string) {
	if term == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch was, ok := h.leaders[term]; {
	case !ok:
		h.leaders[term] = node
		h.changes++
	case was != node:
		h.violateLocked(electionHolds, "term %d is led by %s and by %s", term, was, node)
	}
}

// packet notes a request for the checks.
func (h *history) packet(p *packet) {
	if q, ok := p.command.(*raft.AppendEntriesRequest); ok {
		h.saw(q.Term, p.from.self.ID+"@"+p.from.self.Instance)
	}
}

// told notes what a client was told.
func (h *history) told(r result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks++
	if r.reason == fsm.ReasonAllowed {
		h.allows++
	}
	h.results = append(h.results, r)
}
