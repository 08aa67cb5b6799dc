package check

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	// stayed is for how long beyond its window an admission may count that was brought from another partition: nothing
	// expires while a slot is on its way, and the time of a partition stands while nobody leads it.
	stayed = time.Minute
	// rounded is from how many admissions in a window on their ages may be rounded, by less than one part in 64.
	rounded = 2048
)

// judgeDenials checks that what was denied for want of room had none: that enough may have been admitted and not have
// expired. With the logs that is known by partition time; without, all counts that may have been admitted before.
func judgeDenials(r *run, o *outcome) error {
	if r.log == nil {
		r.denialsBlackBox(o)
		return nil
	}
	if len(r.log.holes()) > 0 {
		o.Skipped = "lines of what was applied may be lost, so that what was admitted is not known"
		return nil
	}
	c := &rooms{outcome: o, known: r.known, scopes: scopesOf(r.History.Revisions)}
	for _, of := range r.log.lineages() {
		c.judge(of)
	}
	return nil
}

// holes are those of all partitions.
func (l *log) holes() (out []hole) {
	for _, g := range l.sorted {
		out = append(out, g.holes...)
	}
	return out
}

// rooms follows what a principal has used, by the logs.
type rooms struct {
	*outcome
	known  *knowledge
	scopes *scopes
	// waits, when it is not nil, is told of each denial whose wait is known.
	waits func(d *decision, wait time.Duration)

	lists []usedList // by scope
}

// usedList is what may be counted together, in the order of the logs.
type usedList struct {
	of  []*decision
	sum []int64 // of all before; one more than there are admissions
}

func (l *usedList) cost(from, to int) int64 { return l.sum[to] - l.sum[from] }

func (c *rooms) judge(of *lineage) {
	c.lists = make([]usedList, len(c.scopes.names))
	for i := range c.lists {
		c.lists[i].sum = []int64{0}
	}
	for _, d := range of.decisions {
		under := c.known.under(d.Revision)
		switch {
		case under == nil:
		case d.allowed():
			for _, s := range c.scopes.of[under.Policy.Resolve(d.Class)] {
				l := &c.lists[s]
				l.of = append(l.of, d)
				l.sum = append(l.sum, l.sum[len(l.sum)-1]+d.Cost)
			}
		case d.Reason == reasonExhausted:
			c.Counts["denials"]++
			c.denial(d, under)
		}
	}
}

// denial looks at one.
func (c *rooms) denial(d *decision, under *known) {
	var most int64
	var full history.Scoped
	for _, l := range c.applicable(d, under) {
		list := &c.lists[c.scopes.at[scope(l.Over)]]
		used := list.cost(c.begin(list, d, l), len(list.of))
		if used+d.Cost > l.Max {
			if c.waits != nil {
				c.wait(d, under)
			}
			return
		}
		if over := used + d.Cost - l.Max; full.Name == "" || over > most {
			most, full = over, l
		}
	}
	if c.waits != nil {
		return
	}
	var proof []Item
	list := &c.lists[c.scopes.at[scope(full.Over)]]
	for _, u := range list.of[c.begin(list, d, full):] {
		proof = append(proof, u.item("may count"))
	}
	c.violated(append(proof, d.item("")), "%s of %s was denied for cost %d, and at most %d of %d of limit %s can be used",
		d.ID, d.Principal, d.Cost, list.cost(c.begin(list, d, full), len(list.of)), full.Max, full.Name)
}

// applicable are the limits that may have denied: those of the rule, and, while it may not be exact, those of any rule
// before.
func (c *rooms) applicable(d *decision, under *known) []history.Scoped {
	limits := under.rule(d.Class)
	if c.exact(d, under) {
		return limits
	}
	for _, before := range c.known.revisions {
		if before.Number < under.Number {
			limits = append(limits[:len(limits):len(limits)], before.rule(d.Class)...)
		}
	}
	return limits
}

// exact reports whether nothing but the rule is enforced, for sure.
func (c *rooms) exact(d *decision, under *known) bool {
	exact := under.exact(d.Class).most
	// A partition's time may have fallen behind, so that a window takes longer there.
	return exact == always || exact != history.Never && exact+stayed < max(d.asked, d.entry.lo)
}

// begin is the first of a list that may count for a limit when a decision is made.
func (c *rooms) begin(list *usedList, d *decision, l history.Scoped) int {
	here := sort.Search(len(list.of), func(i int) bool { return list.of[i].segment() == d.segment() })
	begin := here
	if begin < len(list.of) {
		window := int64(l.Window)
		if len(list.of)-here >= rounded {
			window += window / 63
		}
		begin += sort.Search(len(list.of)-here, func(i int) bool {
			return d.entry.time-list.of[here+i].entry.time < window
		})
	}
	if begin > here {
		return begin
	}
	for begin > 0 && c.mayStay(list.of[begin-1], d, l) {
		begin--
	}
	return begin
}

// mayStay reports whether an admission from elsewhere may count.
func (c *rooms) mayStay(u, d *decision, l history.Scoped) bool {
	window := time.Duration(l.Window)
	return max(d.asked, d.entry.lo)-u.entry.hi < window+window/63+stayed
}

// wait finds for how long a check has to wait, where that is known: where the rule is exact, and all that counts was
// admitted here.
func (c *rooms) wait(d *decision, under *known) {
	if !c.exact(d, under) {
		return
	}
	deadline := int64(0)
	for _, l := range under.rule(d.Class) {
		list := &c.lists[c.scopes.at[scope(l.Over)]]
		begin := c.begin(list, d, l)
		live := list.of[begin:]
		if len(live) >= rounded || d.Cost > l.Max || c.known.since(under.Number, l.Over) != always ||
			len(live) > 0 && live[0].segment() != d.segment() ||
			begin > 0 && list.of[begin-1].segment() != d.segment() && c.mayStay(list.of[begin-1], d, l) {
			return
		}
		if list.cost(begin, len(list.of))+d.Cost <= l.Max {
			continue
		}
		gone := sort.Search(len(live), func(i int) bool { return list.cost(begin+i, len(list.of))+d.Cost <= l.Max })
		deadline = max(deadline, live[gone-1].entry.time+int64(l.Window))
	}
	if deadline > 0 {
		c.waits(d, time.Duration(deadline-d.entry.time))
	}
}

const (
	// slowed is by how much a wait is longer in real time than in partition time, in millionths, at the most.
	slowed = 2000
	// waitSlack is what it takes to round a wait up, and to read clocks.
	waitSlack = 3 * time.Millisecond
)

// judgeWaits checks that a denial says how long to wait: not less than until there is room, and not longer.
func judgeWaits(r *run, o *outcome) error {
	longest := time.Duration(0)
	for i := range r.History.Revisions {
		p := &r.History.Revisions[i].Policy
		for _, class := range append([]string{history.DefaultClass}, slices.Collect(maps.Keys(p.Classes))...) {
			for _, l := range p.Rule(class) {
				longest = max(longest, time.Duration(l.Window))
			}
		}
	}
	most := longest + longest/1_000_000*slowed + waitSlack
	for _, c := range r.History.Checks {
		for i := range c.Attempts {
			a := &c.Attempts[i]
			wait := time.Duration(a.Answer.RetryAfterMS) * time.Millisecond
			if a.Answer.Reason == reasonExhausted && wait > 0 {
				o.Counts["waits"]++
				if wait > most {
					o.violated(nil, "%s of %s was told to wait for %v, and the longest window is %v", c.ID, c.Principal, wait, longest)
				}
			}
		}
	}
	if r.log == nil || len(r.log.holes()) > 0 {
		return nil
	}
	told := &outcome{Outcome{Counts: map[string]int64{}}} // judgeDenials tells of these
	rooms := &rooms{outcome: told, known: r.known, scopes: scopesOf(r.History.Revisions)}
	rooms.waits = func(d *decision, wait time.Duration) { judgeWait(o, d, wait) }
	for _, of := range r.log.lineages() {
		rooms.judge(of)
	}
	return nil
}

// judgeWait compares the wait that was told with that which the log makes.
func judgeWait(o *outcome, d *decision, wait time.Duration) {
	a := d.answer()
	if a == nil || a.Answer.RetryAfterMS == 0 {
		return
	}
	o.Counts["waits_compared"]++
	told := time.Duration(a.Answer.RetryAfterMS) * time.Millisecond
	// The stamp may be that of an attempt before, whose decision this one waited for as well.
	least, most := wait-(a.Received-d.asked)-waitSlack, wait+wait/1_000_000*slowed+waitSlack
	if told < least || told > most {
		o.violated([]Item{d.item("")}, "%s of %s was told to wait for %v, and there is room after %v of partition time",
			d.ID, d.Principal, told, wait)
	}
}

// answer is the attempt that was answered by a denial; nil when it is not sure which.
func (d *decision) answer() (answered *history.Attempt) {
	if d.again || d.check == nil || d.check.Class != d.Class || d.check.Cost != d.Cost {
		return nil
	}
	for i := range d.check.Attempts {
		a := &d.check.Attempts[i]
		if a.Answer.Reason != d.Reason || a.Answer.Replayed || a.Answer.Revision != d.Revision {
			continue
		}
		if a.Sent > d.entry.hi || a.Received < d.entry.lo {
			continue
		}
		if answered != nil {
			return nil
		}
		answered = a
	}
	return answered
}

// denialsBlackBox judges by what clients saw alone: whatever may have been admitted before counts.
func (r *run) denialsBlackBox(o *outcome) {
	scopes := scopesOf(r.History.Revisions)
	type used struct {
		first []time.Duration
		sum   []int64
	}
	lists := map[string][]used{}
	checks := slices.Clone(r.History.Checks)
	slices.SortFunc(checks, func(a, b *history.Check) int { return cmp.Compare(a.First(), b.First()) })
	for _, c := range checks {
		if !mayCount(c, history.Never) {
			continue
		}
		if lists[c.Principal] == nil {
			lists[c.Principal] = make([]used, len(scopes.names))
		}
		counted := map[int]bool{}
		for i := range r.History.Revisions {
			for _, s := range scopes.of[r.History.Revisions[i].Policy.Resolve(c.Class)] {
				counted[s] = true
			}
		}
		for s := range counted {
			l := &lists[c.Principal][s]
			sum := c.Cost
			if n := len(l.sum); n > 0 {
				sum += l.sum[n-1]
			}
			l.first, l.sum = append(l.first, c.First()), append(l.sum, sum)
		}
	}
	for _, c := range r.History.Checks {
		for i := range c.Attempts {
			a := &c.Attempts[i]
			under := r.known.under(a.Answer.Revision)
			if a.Answer.Reason != reasonExhausted || a.Answer.Replayed || under == nil {
				continue
			}
			o.Counts["denials"]++
			justified := false
			for _, before := range r.known.revisions {
				for _, l := range before.rule(c.Class) {
					sum := int64(0)
					if of := lists[c.Principal]; of != nil {
						list := &of[scopes.at[scope(l.Over)]]
						if n, _ := slices.BinarySearch(list.first, a.Received); n > 0 {
							sum = list.sum[n-1]
						}
					}
					justified = justified || before.Number <= under.Number && sum+c.Cost > l.Max
				}
			}
			if !justified {
				o.violated(nil, "%s of %s, class %s, cost %d, was denied at %s, and all that can have been admitted before leaves "+
					"room for it", c.ID, c.Principal, c.Class, c.Cost, once(a.Received))
			}
		}
	}
}
