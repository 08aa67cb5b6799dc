package check

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// always is when a history is known from that has no beginning.
const always = time.Duration(math.MinInt64 / 4)

// born is by when all partitions have begun for sure. A history begins when they have; partition time may have fallen
// back behind real time a little since.
const born = 2 * time.Second

// knowledge is how much of the history the partitions know in each revision: what is needed to tell which limits
// count everything, and which earlier rules are carried. An instant is between two bounds, since when exactly a
// partition installs a revision is not known.
type knowledge struct {
	revisions []*known
}

// known is the knowledge of one revision.
type known struct {
	*history.Revision
	classes map[string]bounds // since when the admissions to a class count
	names   map[string]bounds // since when a name has been listed, or not
	longest map[string]time.Duration
	// What was worked out already, by name.
	exacts map[string]bounds
	rules  map[string][]history.Scoped
}

// maxNames bounds how many names are remembered what was worked out of; a history has few.
const maxNames = 10_000

// rule is Policy.Rule.
func (r *known) rule(name string) []history.Scoped {
	rule, ok := r.rules[name]
	if !ok {
		rule = r.Policy.Rule(name)
		if len(r.rules) < maxNames {
			r.rules[name] = rule
		}
	}
	return rule
}

type bounds struct{ least, most time.Duration }

// since is the later of both.
func (b bounds) max(other bounds) bounds {
	return bounds{max(b.least, other.least), max(b.most, other.most)}
}

// learn goes through the revisions.
func learn(revisions []history.Revision) *knowledge {
	k := &knowledge{}
	names := map[string]bool{history.DefaultClass: true} // others are never listed, and so known as such
	for i := range revisions {
		for name := range revisions[i].Policy.Classes {
			names[name] = true
		}
	}
	for i := range revisions {
		r := &revisions[i]
		now := &known{
			Revision: r, classes: map[string]bounds{}, names: map[string]bounds{}, longest: map[string]time.Duration{},
			exacts: map[string]bounds{}, rules: map[string][]history.Scoped{},
		}
		for name := range names {
			k.learnOf(name, now)
		}
		k.revisions = append(k.revisions, now)
	}
	return k
}

// learnOf says what a revision, the next one, knows of a class and of the name.
func (k *knowledge) learnOf(name string, now *known) {
	longest := now.Policy.Longest(name)
	if len(k.revisions) == 0 { // nothing was admitted before
		now.classes[name], now.names[name] = bounds{always, always}, bounds{always, always}
		now.longest[name] = longest
		return
	}
	before := k.revisions[len(k.revisions)-1]
	installed := bounds{now.Began, now.Active}
	now.classes[name], now.names[name] = before.classes[name], before.names[name]
	now.longest[name] = max(longest, before.longest[name])
	if was := before.Policy.Longest(name); longest > was {
		since := bounds{always, installed.most}
		if installed.most != history.Never {
			since.most -= was
		}
		// All that was admitted is known while the partition has not lived for longer than that.
		if known := installed.least - before.longest[name]; known > born {
			since.least = known
		}
		now.classes[name] = before.classes[name].max(since)
	}
	if before.Policy.Resolve(name) != now.Policy.Resolve(name) {
		now.names[name] = installed
	}
}

func (k *knowledge) of(number uint64) (int, *known) {
	i, _ := slices.BinarySearchFunc(k.revisions, number, func(r *known, n uint64) int { return cmp.Compare(r.Number, n) })
	return i, k.revisions[i]
}

// since is from when on all admissions to the classes count for sure.
func (k *knowledge) since(number uint64, classes []string) time.Duration {
	since := always
	_, r := k.of(number)
	for _, class := range classes {
		since = max(since, r.classes[class].most)
	}
	return since
}

// exact is when all limits of a name's rule have become exact.
func (r *known) exact(name string) bounds {
	exact, ok := r.exacts[name]
	if !ok {
		exact = r.becomesExact(name)
		if len(r.exacts) < maxNames {
			r.exacts[name] = exact
		}
	}
	return exact
}

func (r *known) becomesExact(name string) bounds {
	exact := bounds{always, always}
	for _, l := range r.rule(name) {
		since := bounds{always, always}
		for _, known := range append([]string{name}, l.Over...) {
			if b, listed := r.names[known]; listed {
				since = since.max(b)
			}
		}
		for _, class := range l.Over {
			since = since.max(r.classes[class])
		}
		window := time.Duration(l.Window)
		from := bounds{since.least + window, history.Never}
		if since.most != history.Never {
			from.most = since.most + window
		}
		exact = exact.max(from)
	}
	return exact
}

// carried is the revision whose rule is enforced beside a name's present one, and until when it is for sure. It is
// nil when there is none, or when it is not sure which.
func (k *knowledge) carried(number uint64, name string) (*history.Revision, time.Duration) {
	i, r := k.of(number)
	until := r.exact(name).least
	for i > 0 && until > r.Began {
		next := k.revisions[i]
		i--
		before := k.revisions[i]
		switch exact := before.exact(name); {
		case exact.most <= next.Began:
			return before.Revision, until
		case exact.least <= next.Active: // it may have been exact when it ended, or not
			return nil, 0
		}
	}
	return nil, 0
}
