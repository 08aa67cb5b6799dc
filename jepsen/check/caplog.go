package check

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// judgeCapLog judges the cap in the order of the logs: is there an instant for each admission, between its being asked
// for and its being answered and applied, in that order, so that each finds room under the limits of its revision? The
// earliest instants leave the most room to what comes later, so that if they do not fit, none do. And the same in
// partition time, which is exact, where the stamps checker says that partition time is not too fast.
func judgeCapLog(r *run, o *outcome) error {
	c := &capLog{outcome: o, known: r.known, scopes: scopesOf(r.History.Revisions)}
	for _, of := range r.log.lineages() {
		c.judge(of)
	}
	return nil
}

type capLog struct {
	*outcome
	known  *knowledge
	scopes *scopes

	placed []placed
	lists  []placedList // by scope
}

// placed is an admission with its earliest instant, and why it is not earlier.
type placed struct {
	*decision
	from, to time.Duration
	at       time.Duration
	after    int // the placed admission that it comes after; -1: what bounds it is its own being asked for
	window   *history.Scoped
	first    int // in the list of the window, where the admissions begin of which one has to have expired
}

// placedList are the admissions that are counted together, as indexes of placed, and the sums of their costs.
type placedList struct {
	of  []int
	sum []int64 // of all before; one more than there are admissions
}

func (c *capLog) judge(of *lineage) {
	c.placed, c.lists = nil, make([]placedList, len(c.scopes.names))
	for i := range c.lists {
		c.lists[i].sum = []int64{0}
	}
	for _, d := range of.decisions {
		under := c.known.under(d.Revision)
		if !d.allowed() || under == nil {
			continue // which the policy checker tells of
		}
		class := under.Policy.Resolve(d.Class)
		if under.Policy.ClassOf(class).Disabled {
			c.violated([]Item{d.item("")}, "%s was admitted, and class %s is disabled in revision %d", d.ID, class, d.Revision)
		}
		c.Counts["admissions"]++
		c.place(d, under, class)
	}
}

// place finds the earliest instant of an admission.
func (c *capLog) place(d *decision, under *known, class string) {
	p := placed{decision: d, after: -1}
	p.from, p.to = d.between()
	p.at = p.from
	k := len(c.placed)
	if k > 0 && c.placed[k-1].at > p.at {
		p.at, p.after = c.placed[k-1].at, k-1
	}
	c.placed = append(c.placed, p)
	for _, s := range c.scopes.of[class] {
		list := &c.lists[s]
		list.of = append(list.of, k)
		list.sum = append(list.sum, list.sum[len(list.sum)-1]+d.Cost)
	}
	self := &c.placed[k]
	for _, l := range under.rule(d.Class) {
		list := &c.lists[c.scopes.at[scope(l.Over)]]
		if d.Cost > l.Max {
			c.violated([]Item{d.item("")}, "%s was admitted for %d, and limit %s of revision %d admits %d",
				d.ID, d.Cost, l.Name, d.Revision, l.Max)
			continue
		}
		c.inPartitionTime(list, k, l)
		first := c.mustHaveLeft(list, k, l, under)
		if first < 0 {
			continue
		}
		if at := c.placed[list.of[first]].at + time.Duration(l.Window); at > self.at {
			self.at, self.after, self.window, self.first = at, list.of[first], &l, first
		}
	}
	if self.at > self.to {
		c.violated(c.proof(k), "%s: %s", of(d), c.claim(k))
		self.at = max(self.from, self.to) // to go on from
	}
}

// mustHaveLeft is the last of a list that must have expired for its newest to fit; -1 when none must.
func (c *capLog) mustHaveLeft(list *placedList, k int, l history.Scoped, under *known) int {
	n := len(list.of)
	since := c.known.since(under.Number, l.Over)
	if since == always {
		// The first i with sum[n]-sum[i] <= Max; the one before it must have left.
		return sort.Search(n, func(i int) bool { return list.sum[n]-list.sum[i] <= l.Max }) - 1
	}
	sum := int64(0)
	for i := n - 1; i >= 0; i-- {
		p := &c.placed[list.of[i]]
		if list.of[i] != k && since > always && p.from <= since {
			continue
		}
		if sum += p.Cost; sum > l.Max {
			return i
		}
		if p.at+time.Duration(l.Window) < c.placed[k].from {
			return -1 // and all before it: they have expired whatever there was
		}
	}
	return -1
}

// inPartitionTime judges the newest of a list by the times of its log alone.
func (c *capLog) inPartitionTime(list *placedList, k int, l history.Scoped) {
	newest := c.placed[k].decision
	since := c.known.since(newest.Revision, l.Over)
	sum := int64(0)
	for i := len(list.of) - 1; i >= 0; i-- {
		p := &c.placed[list.of[i]]
		if p.segment() != newest.segment() || newest.entry.time-p.entry.time >= int64(l.Window) {
			break
		}
		if list.of[i] != k && since > always && p.from <= since {
			continue
		}
		sum += p.Cost
		if sum > l.Max {
			var proof []Item
			for _, j := range list.of[i:] {
				proof = append(proof, c.placed[j].item(""))
			}
			c.violated(proof, "%s: %d admitted within %v of partition time, %v, and limit %s of revision %d admits %d",
				of(newest), sum, time.Duration(l.Window), time.Duration(newest.entry.time-p.entry.time), l.Name,
				newest.Revision, l.Max)
			return
		}
	}
	if sum == l.Max {
		c.Counts["full_windows"]++
	}
}

func of(d *decision) string { return fmt.Sprintf("principal %s, class %s", d.Principal, d.Class) }

// claim says why an admission has no instant.
func (c *capLog) claim(k int) string {
	p := &c.placed[k]
	if p.window == nil && p.after < 0 {
		return fmt.Sprintf("%s was applied before anybody had asked for it", p.ID)
	}
	if p.window == nil {
		return fmt.Sprintf("%s comes after %s in the log, and was decided before it", p.ID, c.placed[p.after].ID)
	}
	list := &c.lists[c.scopes.at[scope(p.window.Over)]]
	sum := int64(0)
	for _, j := range list.of[p.first:] {
		sum += c.placed[j].Cost
	}
	return fmt.Sprintf("%d admitted within %v, and limit %s of revision %d admits %d in %v: %s was decided %v too early "+
		"at the least", sum, p.to-c.placed[p.after].at, p.window.Name, p.Revision, p.window.Max,
		time.Duration(p.window.Window), p.ID, p.at-p.to)
}

// proof are the steps that lead to an admission without an instant, from the first that is as early as it was asked
// for.
func (c *capLog) proof(k int) []Item {
	var chain []int
	for i := k; i >= 0; i = c.placed[i].after {
		chain = append(chain, i)
		if c.placed[i].after < 0 {
			break
		}
	}
	slices.Reverse(chain)
	anchor := &c.placed[chain[0]]
	proof := []Item{anchor.item("it was asked for at %s, so its instant is not earlier", once(anchor.at))}
	for _, i := range chain[1:] {
		p := &c.placed[i]
		if p.window == nil {
			if i != k {
				continue // what it was after bounds the next one as well
			}
			return append(proof, p.item("it comes later in the log than the one before"))
		}
		list := &c.lists[c.scopes.at[scope(p.window.Over)]]
		end := slices.Index(list.of, i)
		for _, j := range list.of[p.first+1 : end] {
			proof = append(proof, c.placed[j].item("in the same window"))
		}
		proof = append(proof, p.item("limit %s has no room for it before %s, when %s expires", p.window.Name, once(p.at),
			c.placed[p.after].ID))
	}
	return proof
}
