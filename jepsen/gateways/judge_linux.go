package gateways

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/jepsen/history"
)

// The sources of decisions, as the SDK calls them.
const (
	byOwner  = "owner"
	byHint   = "hint"
	byConfig = "config"
	byBypass = "bypass"
	byLocal  = "local"
)

// maxFaults bounds how many faults of one kind are told in full.
const maxFaults = 5

// faults collects what is wrong.
type faults struct {
	count int
	errs  []error
}

func (f *faults) add(format string, args ...any) {
	f.count++
	if len(f.errs) < maxFaults {
		f.errs = append(f.errs, fmt.Errorf(format, args...))
	}
}

func (f *faults) err() error {
	if f.count > len(f.errs) {
		f.errs = append(f.errs, fmt.Errorf("and %d more of it", f.count-len(f.errs)))
	}
	return errors.Join(f.errs...)
}

// never is when an attempt was answered that was not.
const never = time.Duration(1<<63 - 1)

// History is what owners have said to gateways, by name, since an instant. What no owner decided is in it as a check
// without an answer if it may have consumed.
func History(checks map[string][]talk.Check, since int64, revisions []history.Revision) *history.History {
	h := &history.History{Revisions: revisions}
	for name, all := range checks {
		for i := range all {
			c := &all[i]
			a := history.Attempt{Node: name, Sent: time.Duration(c.Sent - since), Received: never}
			switch {
			case !c.Failed && c.Source == byOwner:
				a.Received = time.Duration(c.Received - since)
				a.Answer = history.Answer{
					Allowed: c.Allowed, Reason: c.Reason, Revision: c.Revision, Version: c.Version, Remaining: c.Remaining,
					Replayed: c.Replayed, Recorded: c.Recorded,
				}
				for _, l := range c.Limits {
					a.Answer.Limits = append(a.Answer.Limits, history.LimitAnswer(l))
				}
			case !c.MaybeConsumed:
				continue
			}
			h.Checks = append(h.Checks, &history.Check{
				ID: fmt.Sprintf("%s/%d/%s", name, i, c.ID), Principal: c.Principal, Class: c.Class, Cost: c.Cost,
				Attempts: []history.Attempt{a},
			})
		}
	}
	return h
}

// DistinctIDs finds a decision id that was made twice, by whichever gateway.
func DistinctIDs(checks map[string][]talk.Check) error {
	var f faults
	made := map[string]string{}
	for name, all := range checks {
		for i := range all {
			if id := all[i].ID; id != "" {
				if other, twice := made[id]; twice {
					f.add("decision id %s was made by %s and by %s", id, other, name)
				}
				made[id] = name
			}
		}
	}
	return f.err()
}

// Declared finds what was let through without an owner in a class whose failure mode does not say so, decisions that no
// source may make, and errors that no fault excuses. killed is when leaders were killed, on the checks' clock.
func Declared(p history.Policy, checks []talk.Check, killed []int64) error {
	var f faults
	for i := range checks {
		c := &checks[i]
		mode := p.Classes[c.Class].OnUnavailable
		switch {
		case c.Failed && c.Kind != "unavailable" && c.Kind != "overloaded":
			f.add("class %s: error of kind %s: %+v", c.Class, c.Kind, *c)
		case c.Failed && mode == "allow" && c.Kind == "unavailable" && away[c.Reason] && c.Attempts <= 1:
			// With more attempts, an earlier one may have met an owner that moves its slots.
			f.add("class %s, on_unavailable %s: refused: %+v", c.Class, mode, *c)
		case c.Failed:
		case (c.Source == byBypass || c.Source == byLocal) && !away[c.Cause] &&
			!(c.Cause == "not_leader" && (c.MaybeConsumed || leaderless(killed, c))): // who gave no answer may have led
			f.add("class %s: an owner is there: %+v", c.Class, *c)
		case c.Source == byBypass && (mode != "allow" || !c.Allowed):
			f.add("class %s, on_unavailable %q: bypassed: %+v", c.Class, mode, *c)
		case c.Source == byLocal && (mode != "local" || !c.Allowed):
			f.add("class %s, on_unavailable %q: local: %+v", c.Class, mode, *c)
		case (c.Source == byHint || c.Source == byConfig) && (c.Allowed || c.Recorded):
			f.add("class %s: a hint that allows, or that is recorded: %+v", c.Class, *c)
		case c.Source == byOwner && c.Allowed != (c.Reason == "allowed"):
			f.add("class %s: allowed %v for %s: %+v", c.Class, c.Allowed, c.Reason, *c)
		case !slices.Contains([]string{byOwner, byHint, byConfig, byBypass, byLocal}, c.Source):
			f.add("class %s: decided by %q: %+v", c.Class, c.Source, *c)
		}
	}
	return f.err()
}

// electedWithin is how long after its leader was killed a partition on a busy machine may be without one.
const electedWithin = 5 * time.Second

// leaderless reports whether nobody may have led what a check asks for, since a leader was killed.
func leaderless(killed []int64, c *talk.Check) bool {
	return slices.ContainsFunc(killed, func(at int64) bool {
		return at <= c.Received && c.Sent < at+int64(electedWithin)
	})
}

// away are the reasons that say that no owner is there: those for which a failure mode decides.
var away = map[string]bool{"no_quorum": true, "policy_lease_expired": true, "outcome_unknown": true}

// Counted compares a gateway's counters with what came of its checks, class by class.
func Counted(stats *talk.Stats, checks []talk.Check) error {
	seen := map[string]talk.ClassCounts{}
	for i := range checks {
		c := &checks[i]
		n := seen[c.Class]
		switch {
		case c.Failed && c.Kind == "unavailable":
			n.Unavailable++
		case c.Failed && c.Kind == "overloaded":
			n.Overloaded++
		case c.Failed && c.Kind == "refused":
			n.Refused++
		case c.Failed:
			n.Canceled++
		case c.Source == byHint:
			n.Hinted++
		case c.Source == byConfig:
			n.Disabled++
		case c.Source == byBypass:
			n.Bypassed++
		case c.Source == byLocal:
			n.Local++
		case c.Allowed:
			n.Allowed++
		default:
			n.Denied++
		}
		seen[c.Class] = n
	}
	var f faults
	for class, want := range seen {
		got := stats.Classes[class]
		// Both are ErrUnavailable for the caller.
		got.Unavailable, got.LocalDenied = got.Unavailable+got.LocalDenied, 0
		if got != want {
			f.add("class %s: the counters say %+v, and %+v came of its checks", class, got, want)
		}
	}
	return f.err()
}

// Times is how long the checks of a class took.
type Times struct{ Half, Most, Slowest time.Duration }

// mostOf is the share of the checks that Most is about.
const mostOf = 0.95

// String is one phrase.
func (t Times) String() string {
	round := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("half within %v, 95 %% within %v, all within %v", round(t.Half), round(t.Most), round(t.Slowest))
}

// InTime finds classes most of whose checks took longer than the timeout and a little, and checks that took longer than
// it and some slack, for a machine that is busy with everything that a test runs.
func InTime(p history.Policy, checks []talk.Check, little, slack time.Duration) (map[string]Times, error) {
	var f faults
	took := map[string][]time.Duration{}
	for i := range checks {
		c := &checks[i]
		d := time.Duration(c.Received - c.Sent)
		took[c.Class] = append(took[c.Class], d)
		if most := time.Duration(p.Classes[c.Class].Timeout); d > most+slack {
			f.add("class %s: %v, with a timeout of %v: %+v", c.Class, d, most, *c)
		}
	}
	times := map[string]Times{}
	for class, all := range took {
		slices.Sort(all)
		at := func(share float64) time.Duration { return all[int(share*float64(len(all)-1))] }
		times[class] = Times{at(0.5), at(mostOf), at(1)}
		if timeout := time.Duration(p.Classes[class].Timeout); times[class].Most > timeout+little {
			f.add("class %s: %v, with a timeout of %v", class, times[class], timeout)
		}
	}
	return times, f.err()
}

// LocalCaps finds windows in which a gateway's own limit of a class was exceeded, and tells of each principal how much
// was admitted by it.
func LocalCaps(p history.Policy, checks []talk.Check) (admitted map[string]int64, err error) {
	var f faults
	admitted = map[string]int64{}
	byPrincipal := map[[2]string][]*talk.Check{}
	for i := range checks {
		if c := &checks[i]; !c.Failed && c.Source == byLocal {
			key := [2]string{c.Principal, c.Class}
			byPrincipal[key] = append(byPrincipal[key], c)
			admitted[c.Principal] += c.Cost
		}
	}
	for key, all := range byPrincipal {
		limit := p.Classes[key[1]].LocalLimit
		if limit == nil {
			f.add("%v has no local limit", key)
			continue
		}
		slices.SortFunc(all, func(a, b *talk.Check) int { return cmp.Compare(a.Sent, b.Sent) })
		for i, oldest := range all {
			sum := int64(0)
			for _, c := range all[i:] {
				if c.Received-oldest.Sent < int64(limit.Window) { // wherever within their calls they were admitted
					sum += c.Cost
				}
			}
			if sum > limit.Max {
				f.add("%v: %d admitted locally within %v, limit %d", key, sum, time.Duration(limit.Window), limit.Max)
			}
		}
	}
	return admitted, f.err()
}

// LocalRoom finds checks of a class with a local limit that were refused although that limit had room for sure, by all
// that was admitted. While the refused ones were made no owner may have been there: then a refusal has no other reason.
// All costs must be 1.
func LocalRoom(p history.Policy, all, refused []talk.Check) error {
	var f faults
	admitted := map[[2]string][]*talk.Check{}
	for i := range all {
		if c := &all[i]; !c.Failed && c.Source == byLocal {
			admitted[[2]string{c.Principal, c.Class}] = append(admitted[[2]string{c.Principal, c.Class}], c)
		}
	}
	for i := range refused {
		c := &refused[i]
		limit := p.Classes[c.Class].LocalLimit
		if limit == nil || !c.Failed {
			continue
		}
		used := int64(0)
		for _, a := range admitted[[2]string{c.Principal, c.Class}] {
			if a.Sent < c.Received && a.Received+int64(limit.Window) > c.Sent { // it may have counted
				used++
			}
		}
		if used < limit.Max {
			f.add("%s of class %s: refused with at most %d of %d used: %+v", c.Principal, c.Class, used, limit.Max, *c)
		}
	}
	return f.err()
}

// arrivalSlack is by how much a client may be interrupted between having a revision and going by it.
const arrivalSlack = 5 * time.Millisecond

// maxDriftPPM is by how much partition time may be slow, and then some.
const maxDriftPPM = 1000

// Hints finds denials from hints that came too late: after a check would have been allowed, by the admissions of the
// same gateway, which must be the only one that asks for these principals; and after the gateway had a newer revision.
// All costs must be 1, and each class must have one limit, that of the revision.
func Hints(revisions []history.Revision, checks []talk.Check, arrivals []Arrival) error {
	var f faults
	byKey := map[[2]string][]*talk.Check{}
	for i := range checks {
		c := &checks[i]
		byKey[[2]string{c.Principal, c.Class}] = append(byKey[[2]string{c.Principal, c.Class}], c)
	}
	for key, all := range byKey {
		slices.SortFunc(all, func(a, b *talk.Check) int { return cmp.Compare(a.Sent, b.Sent) })
		var admitted []*talk.Check
		for _, c := range all {
			switch {
			case c.Allowed || c.MaybeConsumed:
				admitted = append(admitted, c)
			case !c.Failed && c.Source == byHint:
				for _, a := range arrivals {
					if a.Revision > c.Revision && c.Sent > a.At+int64(arrivalSlack) {
						f.add("%v: denied from a hint of revision %d, %v after revision %d had come",
							key, c.Revision, time.Duration(c.Sent-a.At), a.Revision)
					}
				}
				if by := freeBy(revisions, c, admitted); by < c.Sent {
					f.add("%v: denied from a hint %v after a check would have been allowed: %+v",
						key, time.Duration(c.Sent-by), *c)
				}
			}
		}
	}
	return f.err()
}

// freeBy is by when a check would have been allowed for sure instead of denied from a hint: when all but so many of the
// admissions had expired. admitted are those sent before, in order.
func freeBy(revisions []history.Revision, denied *talk.Check, admitted []*talk.Check) int64 {
	i := slices.IndexFunc(revisions, func(r history.Revision) bool { return r.Number == denied.Revision })
	if i < 0 {
		return 0 // a revision that there was not
	}
	limit := revisions[i].Policy.Classes[denied.Class].Limits[0]
	window := int64(limit.Window) + int64(limit.Window)/1_000_000*maxDriftPPM + int64(time.Millisecond)
	var expired []int64
	for _, a := range admitted {
		expired = append(expired, a.Received+window)
	}
	slices.Sort(expired)
	slices.Reverse(expired)
	if n := int(limit.Max); n <= len(expired) && n > 0 {
		return expired[n-1] // the latest n together fill it until the first of them has expired
	}
	return 0 // there has been room all the time
}
