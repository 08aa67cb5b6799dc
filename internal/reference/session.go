package reference

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// Term is the Raft term of all generated entries.
const Term = 1

// ownedEpoch is the epoch of all slots of a generated partition.
const ownedEpoch = fsm.Epoch(1)

// Session draws the entries of one partition and keeps the model beside it.
type Session struct {
	// Model answers the entries that Apply is given.
	Model *Model
	// Birth is the first entry. The model has applied it.
	Birth *fsm.Entry

	policies []*policy.Policy
	sent     []fsm.Check
	ids      int
}

// NewSession draws a partition. Its bounds are never reached, and it owns all slots.
func NewSession(t *rapid.T) *Session {
	at := rapid.SampledFrom([]fsm.Time{1_000, 1_790_000_000_000_000_000}).Draw(t, "birth")
	first := GenPolicy(t, "v1")
	s := &Session{
		policies: []*policy.Policy{first},
		Birth: &fsm.Entry{Kind: fsm.KindBirth, Term: Term, Stamp: at, Birth: &fsm.Birth{
			Cluster:   "c",
			Partition: "0",
			Owned: []fsm.OwnedRange{{
				SlotRange: fsm.SlotRange{First: 0, Last: fsm.NumSlots - 1}, Epoch: ownedEpoch,
			}},
			Bounds:  fsm.DefaultBounds(),
			Install: fsm.NewInstall(1, first),
		}},
	}
	s.Model = New(*s.Birth.Birth, at)
	s.Model.Slots = func(string) (fsm.Epoch, bool) { return ownedEpoch, false }
	return s
}

// Next draws the next entry. It is to be given to Apply before the next one is drawn.
func (s *Session) Next(t *rapid.T) *fsm.Entry {
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: Term, Stamp: s.nextStamp(t)}
	switch kind := rapid.IntRange(0, 39).Draw(t, "entry"); {
	case kind == 39:
		e.Checks = s.burst(t)
	case kind >= 36:
		revision := len(s.policies) + 1
		p := GenChange(t, s.policies, fmt.Sprintf("v%d", revision))
		s.policies = append(s.policies, p)
		e.Kind = fsm.KindInstall
		install := fsm.NewInstall(fsm.Revision(revision), p)
		e.Install = &install
	case kind == 35:
		e.Kind, e.Forgive = fsm.KindForgive, s.forgive(t)
	default:
		for range rapid.IntRange(0, 4).Draw(t, "checks") {
			e.Checks = append(e.Checks, s.check(t))
		}
		if oneIn(t, 4, "peek") {
			c := genCharge(t)
			e.Peeks = []fsm.Peek{{
				Principal: rapid.SampledFrom(genPrincipals).Draw(t, "principal"),
				Class:     c.Class, Tier: c.Tier, RouteEpoch: ownedEpoch,
			}}
		}
	}
	return e
}

// Apply gives the entry to the model and returns its answers.
func (s *Session) Apply(e *fsm.Entry) fsm.Answers {
	var a fsm.Answers
	s.Model.Tick(e.Stamp)
	if e.Kind == fsm.KindInstall {
		s.Model.Install(e.Stamp, e.Install.Revision, e.Install.Policy)
	}
	if e.Kind == fsm.KindForgive {
		forgiven := s.Model.Forgive(e.Stamp, *e.Forgive)
		a.Forgiven = &forgiven
	}
	for _, c := range e.Checks {
		a.Decisions = append(a.Decisions, s.Model.Check(e.Stamp, c))
	}
	for _, p := range e.Peeks {
		a.Usages = append(a.Usages, s.Model.Peek(e.Stamp, p))
	}
	a.Time = s.Model.Now()
	return a
}

// nextStamp draws a stamp: most often exactly at, or one nanosecond beside, an instant at which
// something expires or becomes exact.
func (s *Session) nextStamp(t *rapid.T) fsm.Time {
	now := s.Model.Now()
	switch rapid.IntRange(0, 9).Draw(t, "step") {
	case 0, 1:
		return now
	case 2:
		return now - fsm.Time(rapid.Int64Range(0, second).Draw(t, "back"))
	case 3, 4:
		return now + fsm.Time(rapid.Int64Range(0, 10*milli).Draw(t, "forth"))
	}
	edges := s.Model.Edges()
	if len(edges) == 0 {
		return now + 1
	}
	near := edges[:min(len(edges), 8)]
	if oneIn(t, 6, "far") {
		near = edges
	}
	edge := rapid.SampledFrom(near).Draw(t, "edge")
	return edge + fsm.Time(rapid.SampledFrom([]int64{0, 0, -1, 1}).Draw(t, "beside"))
}

// Edges returns the instants to come at which an answer may change, sorted: ends of windows over
// admissions, of kept windows, of records, and the beginnings of exactness.
func (m *Model) Edges() []fsm.Time {
	windows := map[int64]bool{}
	var edges []fsm.Time
	for i, r := range m.revisions {
		for _, class := range m.everListed(r.policy) {
			longest := longestWindow(r.policy, class)
			windows[longest] = true
			if i < len(m.revisions)-1 {
				edges = append(edges, r.endedAt+fsm.Time(longest))
			}
			for _, rule := range allRules(r.policy, class) {
				for _, l := range rule {
					windows[l.WindowNanos] = true
				}
			}
		}
		for _, g := range r.policy.Groups {
			for _, l := range g.Limits {
				windows[l.WindowNanos] = true
			}
		}
	}
	var starts []fsm.Time
	for _, a := range m.admissions {
		starts = append(starts, a.at)
	}
	for _, of := range []map[string]fsm.Time{m.known.classes, m.known.names} {
		for _, from := range of {
			starts = append(starts, from)
		}
	}
	for w := range windows {
		for _, from := range starts {
			edges = append(edges, from+fsm.Time(w))
		}
	}
	for _, r := range m.records {
		edges = append(edges, r.end)
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	first, _ := slices.BinarySearch(edges, m.now+1)
	return edges[first:]
}

func genCost(t *rapid.T) int64 {
	switch rapid.IntRange(0, 29).Draw(t, "cost kind") {
	case 29:
		return rapid.SampledFrom([]int64{0, -1, policy.MaxLimit, policy.MaxLimit + 1}).Draw(t, "cost")
	case 27, 28:
		return rapid.Int64Range(1, 120).Draw(t, "cost")
	case 24, 25, 26:
		return rapid.Int64Range(4, 8).Draw(t, "cost")
	}
	return rapid.Int64Range(1, 3).Draw(t, "cost")
}

func genCharge(t *rapid.T) fsm.Charge {
	names := genClasses
	if oneIn(t, 4, "other name") {
		names = genUnlisted
	}
	return fsm.Charge{
		Class: rapid.SampledFrom(names).Draw(t, "class"),
		Tier:  rapid.SampledFrom([]string{"", "", "free", "pro", "unknown"}).Draw(t, "tier"),
		Cost:  genCost(t),
	}
}

// check draws a new check, or one that was sent before, sometimes with another payload.
func (s *Session) check(t *rapid.T) fsm.Check {
	if len(s.sent) > 0 && oneIn(t, 5, "repeat") {
		latest := s.sent[max(0, len(s.sent)-20):]
		c := rapid.SampledFrom(latest).Draw(t, "earlier")
		switch rapid.IntRange(0, 9).Draw(t, "other payload") {
		case 6:
			c.Charge = genCharge(t)
		case 7:
			c.Also = genAlso(t)
		case 8:
			c.Gateway = rapid.SampledFrom([]string{"g1", "g2"}).Draw(t, "gateway")
		case 9:
			c.Principal = rapid.SampledFrom(genPrincipals).Draw(t, "principal")
		}
		c.PolicyRevision = s.revision(t)
		return c
	}
	c := s.fresh(rapid.SampledFrom(genPrincipals).Draw(t, "principal"), genCharge(t))
	c.Gateway = rapid.SampledFrom([]string{"g1", "g1", "g2"}).Draw(t, "gateway")
	if oneIn(t, 4, "has also") {
		c.Also = genAlso(t)
	}
	c.PolicyRevision = s.revision(t)
	if oneIn(t, 50, "other epoch") {
		c.RouteEpoch = rapid.SampledFrom([]fsm.Epoch{0, 2}).Draw(t, "epoch")
	}
	s.sent = append(s.sent, c)
	return c
}

func (s *Session) fresh(principal string, charge fsm.Charge) fsm.Check {
	s.ids++
	return fsm.Check{
		Principal: principal, Gateway: "g1", DecisionID: fmt.Sprintf("d%d", s.ids),
		Charge: charge, RouteEpoch: ownedEpoch,
	}
}

func genAlso(t *rapid.T) []fsm.Charge {
	also := make([]fsm.Charge, rapid.IntRange(0, 3).Draw(t, "also"))
	for i := range also {
		also[i] = genCharge(t)
	}
	return also
}

// forgive draws whose usage is dropped: of all classes, or of one.
func (s *Session) forgive(t *rapid.T) *fsm.Forgive {
	f := &fsm.Forgive{
		Principal: rapid.SampledFrom(genPrincipals).Draw(t, "principal"), RouteEpoch: ownedEpoch,
	}
	if rapid.Bool().Draw(t, "one class") {
		f.Class = genCharge(t).Class
	}
	if oneIn(t, 20, "other epoch") {
		f.RouteEpoch = 2
	}
	return f
}

// revision draws what a check says about the policy: most often nothing.
func (s *Session) revision(t *rapid.T) fsm.Revision {
	now := fsm.Revision(len(s.policies))
	return rapid.SampledFrom([]fsm.Revision{0, 0, 0, 0, now, now - 1, now + 1}).Draw(t, "revision")
}

// burst draws many checks of one principal in one class: enough to pass the bound of its recorded
// denials when most of them are denied. A random one of them is repeated at the end.
func (s *Session) burst(t *rapid.T) []fsm.Check {
	principal := rapid.SampledFrom(genPrincipals).Draw(t, "principal")
	charge := genCharge(t)
	var checks []fsm.Check
	for range rapid.IntRange(10, 80).Draw(t, "burst") {
		c := s.fresh(principal, charge)
		checks = append(checks, c)
		s.sent = append(s.sent, c)
	}
	return append(checks, rapid.SampledFrom(checks).Draw(t, "repeated"))
}
