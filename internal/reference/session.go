package reference

import (
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// Term is the Raft term of all generated entries.
const Term = 1

// Session draws the entries of one partition and keeps the model beside it.
type Session struct {
	// Model answers the entries that Apply is given.
	Model *Model
	// Birth is the first entry. The model has applied it.
	Birth *fsm.Entry

	principals []string
	epochs     map[string]fsm.Epoch // of the principals' slots
	policies   *[]*policy.Policy    // of the cluster
	installed  int                  // how many of them
	sent       []fsm.Check
	ids        int
}

// NewSession draws a partition. Its bounds are never reached, and it owns all slots.
func NewSession(t *rapid.T) *Session {
	s := newSession(t, &[]*policy.Policy{GenPolicy(t, "v1")}, genPrincipals)
	s.Birth.Birth.Owned = []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}}
	return s
}

// NewPair draws two partitions of one cluster, each of which owns the slots of its own principals. The second is
// born when the first has seen some entries, which are given to apply.
func NewPair(t *rapid.T, apply func(*Session, *fsm.Entry)) (a, b *Session) {
	a = newSession(t, &[]*policy.Policy{GenPolicy(t, "v1")}, []string{genPrincipals[0], "s"})
	apply(a, a.Birth)
	for range rapid.IntRange(0, 10).Draw(t, "before the second") {
		apply(a, a.Next(t))
	}
	b = newSession(t, a.policies, genPrincipals[1:])
	apply(b, b.Birth)
	return a, b
}

func newSession(t *rapid.T, policies *[]*policy.Policy, principals []string) *Session {
	at := rapid.SampledFrom([]fsm.Time{1_000, 1_790_000_000_000_000_000}).Draw(t, "birth")
	s := &Session{
		principals: principals, epochs: map[string]fsm.Epoch{},
		policies: policies, installed: len(*policies),
		Birth: &fsm.Entry{Kind: fsm.KindBirth, Term: Term, Stamp: at, Birth: &fsm.Birth{
			Cluster: "c", Partition: "0", Bounds: fsm.DefaultBounds(),
			Install: fsm.NewInstall(fsm.Revision(len(*policies)), (*policies)[len(*policies)-1]),
		}},
	}
	for _, p := range principals {
		s.epochs[p] = 1
	}
	for _, r := range s.Ranges() {
		s.Birth.Birth.Owned = append(s.Birth.Birth.Owned, fsm.OwnedRange{SlotRange: r, Epoch: 1})
	}
	s.Model = New(*s.Birth.Birth, at)
	s.Model.Slots = func(principal string) (fsm.Epoch, bool) { return s.epochs[principal], false }
	return s
}

// Ranges are the slots of the principals, sorted.
func (s *Session) Ranges() (out []fsm.SlotRange) {
	for _, p := range s.principals {
		slot := fsm.SlotOf([16]byte{}, p)
		out = append(out, fsm.SlotRange{First: slot, Last: slot})
	}
	slices.SortFunc(out, func(a, b fsm.SlotRange) int { return int(a.First) - int(b.First) })
	return out
}

// Policies are the policies of the cluster, the first of revision 1.
func (s *Session) Policies() []*policy.Policy { return *s.policies }

// Behind reports that the cluster has later policies than the partition.
func (s *Session) Behind() bool { return s.installed < len(*s.policies) }

// Move hands the partition to one that holds nothing, whose time is ahead by so much, under a later epoch. What
// was sent is repeated under it.
func (s *Session) Move(by fsm.Time, epoch fsm.Epoch) {
	s.Model.Move(by)
	for i := range s.sent {
		if c := &s.sent[i]; c.RouteEpoch == s.epochs[c.Principal] {
			c.RouteEpoch = epoch
		}
	}
	for _, p := range s.principals {
		s.epochs[p] = epoch
	}
}

// Merge takes the principals of other over, which was moved before, and whose session ends. It reports what
// [Model.Merge] does.
func (s *Session) Merge(other *Session) (open bool) {
	open = s.Model.Merge(other.Model)
	s.sent = append(s.sent, other.sent...)
	s.principals = append(slices.Clone(s.principals), other.principals...)
	maps.Copy(s.epochs, other.epochs)
	return open
}

// Next draws the next entry. It is to be given to Apply before the next one is drawn.
func (s *Session) Next(t *rapid.T) *fsm.Entry {
	e := &fsm.Entry{Kind: fsm.KindBatch, Term: Term, Stamp: s.nextStamp(t)}
	switch kind := rapid.IntRange(0, 39).Draw(t, "entry"); {
	case kind == 39:
		e.Checks = s.burst(t)
	case kind >= 36:
		if !s.Behind() {
			s.Publish(t)
		}
		*e = *s.Install(e.Stamp)
	case kind == 35:
		e.Kind, e.Forgive = fsm.KindForgive, s.forgive(t)
	default:
		for range rapid.IntRange(0, 4).Draw(t, "checks") {
			e.Checks = append(e.Checks, s.check(t))
		}
		if oneIn(t, 4, "peek") {
			c := genCharge(t)
			principal := rapid.SampledFrom(s.principals).Draw(t, "principal")
			e.Peeks = []fsm.Peek{{
				Principal: principal, Class: c.Class, Tier: c.Tier, RouteEpoch: s.epochs[principal],
			}}
		}
	}
	return e
}

// Publish draws the next policy of the cluster. It is not in force yet.
func (s *Session) Publish(t *rapid.T) {
	*s.policies = append(*s.policies, GenChange(t, *s.policies, fmt.Sprintf("v%d", len(*s.policies)+1)))
}

// Install is the entry that puts the next policy of the cluster in force.
func (s *Session) Install(at fsm.Time) *fsm.Entry {
	install := fsm.NewInstall(fsm.Revision(s.installed+1), (*s.policies)[s.installed])
	return &fsm.Entry{Kind: fsm.KindInstall, Term: Term, Stamp: at, Install: &install}
}

// Apply gives the entry to the model and returns its answers. The birth the model has applied.
func (s *Session) Apply(e *fsm.Entry) fsm.Answers {
	var a fsm.Answers
	if e.Kind == fsm.KindBirth {
		return a
	}
	s.Model.Tick(e.Stamp)
	if e.Kind == fsm.KindInstall {
		s.installed++
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
			c.Principal = rapid.SampledFrom(s.principals).Draw(t, "principal")
		}
		c.PolicyRevision = s.revision(t)
		return c
	}
	c := s.fresh(rapid.SampledFrom(s.principals).Draw(t, "principal"), genCharge(t))
	c.Gateway = rapid.SampledFrom([]string{"g1", "g1", "g2"}).Draw(t, "gateway")
	if oneIn(t, 4, "has also") {
		c.Also = genAlso(t)
	}
	c.PolicyRevision = s.revision(t)
	if oneIn(t, 50, "other epoch") {
		c.RouteEpoch = rapid.SampledFrom([]fsm.Epoch{0, s.epochs[c.Principal] + 1}).Draw(t, "epoch")
	}
	s.sent = append(s.sent, c)
	return c
}

func (s *Session) fresh(principal string, charge fsm.Charge) fsm.Check {
	s.ids++
	return fsm.Check{
		Principal: principal, Gateway: "g1", DecisionID: fmt.Sprintf("d%d", s.ids),
		Charge: charge, RouteEpoch: s.epochs[principal],
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
	principal := rapid.SampledFrom(s.principals).Draw(t, "principal")
	f := &fsm.Forgive{Principal: principal, RouteEpoch: s.epochs[principal]}
	if rapid.Bool().Draw(t, "one class") {
		f.Class = genCharge(t).Class
	}
	if oneIn(t, 20, "other epoch") {
		f.RouteEpoch++
	}
	return f
}

// revision draws what a check says about the policy: most often nothing.
func (s *Session) revision(t *rapid.T) fsm.Revision {
	now := fsm.Revision(s.installed)
	return rapid.SampledFrom([]fsm.Revision{0, 0, 0, 0, now, now - 1, now + 1}).Draw(t, "revision")
}

// burst draws many checks of one principal in one class: enough to pass the bound of its recorded
// denials when most of them are denied. A random one of them is repeated at the end.
func (s *Session) burst(t *rapid.T) []fsm.Check {
	principal := rapid.SampledFrom(s.principals).Draw(t, "principal")
	charge := genCharge(t)
	var checks []fsm.Check
	for range rapid.IntRange(10, 80).Draw(t, "burst") {
		c := s.fresh(principal, charge)
		checks = append(checks, c)
		s.sent = append(s.sent, c)
	}
	return append(checks, rapid.SampledFrom(checks).Draw(t, "repeated"))
}
