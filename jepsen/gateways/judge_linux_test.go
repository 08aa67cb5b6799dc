package gateways

import (
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/jepsen/history"
)

const (
	ms = int64(time.Millisecond)
	s  = int64(time.Second)
)

func hint(sent int64, revision uint64) talk.Check {
	return talk.Check{Principal: "p", Class: "hot", Cost: 1, Sent: sent, Received: sent + ms, Source: byHint,
		Reason: "quota_exhausted", Revision: revision}
}

func allow(sent, received int64) talk.Check {
	return talk.Check{Principal: "p", Class: "hot", Cost: 1, Sent: sent, Received: received, Source: byOwner,
		Allowed: true, Reason: "allowed", Revision: 1}
}

// TestJudgeOfHints shows that a hint is blamed when its denial comes after there is room for sure, or after a newer
// revision has come, and not before.
func TestJudgeOfHints(t *testing.T) {
	revisions := []history.Revision{
		{Number: 1, Policy: hotPolicy("v1", 1)}, {Number: 2, Policy: hotPolicy("v2", 3)},
	}
	arrivals := []Arrival{{1, 0}, {2, 10 * s}}
	for name, tt := range map[string]struct {
		checks []talk.Check
		want   string // in the error; empty for none
	}{
		"in time":        {[]talk.Check{allow(s, s+5*ms), hint(s+10*ms, 1), hint(3*s, 1), hint(3*s+7*ms, 1)}, ""},
		"late":           {[]talk.Check{allow(s, s+5*ms), hint(3*s+9*ms, 1)}, "after a check would have been allowed"},
		"never full":     {[]talk.Check{hint(s, 1)}, "after a check would have been allowed"},
		"of two":         {[]talk.Check{allow(s, s), allow(4*s, 4*s), hint(5*s, 1)}, ""},
		"before it came": {[]talk.Check{allow(9*s, 9*s), hint(10*s+5*ms, 1)}, ""},
		"after it came":  {[]talk.Check{allow(9*s, 9*s), hint(10*s+6*ms, 1)}, "after revision 2 had come"},
		"room for two":   {[]talk.Check{allow(11*s, 11*s), hint(12*s, 2)}, "after a check would have been allowed"},
		"full":           {[]talk.Check{allow(11*s, 11*s), allow(11*s, 11*s), allow(11*s, 11*s), hint(12*s, 2)}, ""},
	} {
		wantFault(t, name, Hints(revisions, tt.checks, arrivals), tt.want)
	}
}

func wantFault(t *testing.T, name string, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: blamed: %v", name, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("%s: want %q, got %v", name, want, err)
	}
}

// TestJudgeOfModes shows that what is let through, refused or said by whom it must not is blamed, class by class.
func TestJudgeOfModes(t *testing.T) {
	p := capsPolicy()
	for _, tt := range []struct {
		check talk.Check
		want  string
	}{
		{talk.Check{Class: "open", Source: byBypass, Allowed: true, Cause: "no_quorum"}, ""},
		{talk.Check{Class: "strict", Source: byBypass, Allowed: true, Cause: "no_quorum"}, "bypassed"},
		{talk.Check{Class: "near", Source: byBypass, Allowed: true, Cause: "no_quorum"}, "bypassed"},
		{talk.Check{Class: "near", Source: byLocal, Allowed: true, Cause: "outcome_unknown"}, ""},
		{talk.Check{Class: "open", Source: byLocal, Allowed: true, Cause: "no_quorum"}, "local"},
		{talk.Check{Class: "open", Source: byBypass, Allowed: true, Cause: "frozen"}, "an owner is there"},
		{talk.Check{Class: "near", Source: byLocal, Allowed: true, Cause: "not_leader"}, "an owner is there"},
		{talk.Check{Class: "near", Source: byLocal, Allowed: true, Cause: "not_leader",
			Sent: int64(64 * time.Second), Received: int64(65 * time.Second)}, ""},
		{talk.Check{Class: "near", Source: byLocal, Allowed: true, Cause: "not_leader",
			Sent: int64(66 * time.Second), Received: int64(67 * time.Second)}, "an owner is there"},
		{talk.Check{Class: "near", Source: byLocal, Allowed: true, Cause: "frozen",
			Sent: int64(64 * time.Second), Received: int64(65 * time.Second)}, "an owner is there"},
		{talk.Check{Class: "near", Source: byLocal, Allowed: true, Cause: "not_leader", MaybeConsumed: true}, ""},
		{talk.Check{Class: "open", Source: byHint, Allowed: true}, "a hint that allows"},
		{talk.Check{Class: "open", Source: byHint, Recorded: true}, "recorded"},
		{talk.Check{Class: "open", Source: "none"}, "decided by"},
		{talk.Check{Class: "open", Source: byOwner, Allowed: true, Reason: "blocked"}, "allowed true for blocked"},
		{talk.Check{Class: "strict", Failed: true, Kind: "unavailable", Reason: "no_quorum"}, ""},
		{talk.Check{Class: "open", Failed: true, Kind: "unavailable", Reason: "no_quorum"}, "refused"},
		{talk.Check{Class: "open", Failed: true, Kind: "unavailable", Reason: "no_quorum", Attempts: 2}, ""},
		{talk.Check{Class: "open", Failed: true, Kind: "unavailable", Reason: "frozen"}, ""},
		{talk.Check{Class: "open", Failed: true, Kind: "other"}, "error of kind other"},
	} {
		wantFault(t, tt.check.Class+" "+tt.check.Source, Declared(p, []talk.Check{tt.check}, []int64{int64(time.Minute)}), tt.want)
	}
}

// TestJudgeOfCounts shows that a counter that differs by one, and an id that is made twice, are blamed.
func TestJudgeOfCounts(t *testing.T) {
	checks := []talk.Check{
		{Class: "open", Source: byBypass, Allowed: true, ID: "a"}, {Class: "near", Failed: true, Kind: "unavailable", ID: "b"},
	}
	stats := &talk.Stats{Classes: map[string]talk.ClassCounts{"open": {Bypassed: 1}, "near": {LocalDenied: 1}}}
	wantFault(t, "as it was", Counted(stats, checks), "")
	stats.Classes["open"] = talk.ClassCounts{Bypassed: 2}
	wantFault(t, "one more", Counted(stats, checks), "class open")
	wantFault(t, "distinct", DistinctIDs(map[string][]talk.Check{"x": checks}), "")
	wantFault(t, "twice", DistinctIDs(map[string][]talk.Check{"x": checks, "y": checks[:1]}), "decision id a")
}

// TestJudgeOfLocalLimits shows that a local limit is blamed when it is exceeded wherever in their calls the admissions
// were made, and not else.
func TestJudgeOfLocalLimits(t *testing.T) {
	p := modesPolicy() // two in six seconds
	at := func(sents ...int64) (out []talk.Check) {
		for _, sent := range sents {
			out = append(out, talk.Check{Principal: "p", Class: "near", Cost: 1, Sent: sent, Received: sent + 5*ms,
				Source: byLocal, Allowed: true})
		}
		return out
	}
	_, err := LocalCaps(p, at(0, s, 6*s-5*ms))
	wantFault(t, "it may have been six seconds", err, "")
	admitted, err := LocalCaps(p, at(0, s, 6*s-6*ms))
	wantFault(t, "it was not", err, "3 admitted locally")
	if admitted["p"] != 3 {
		t.Errorf("admitted %v", admitted)
	}
	refused := func(sent int64) []talk.Check {
		return []talk.Check{{Principal: "p", Class: "near", Cost: 1, Sent: sent, Received: sent + 5*ms, Failed: true}}
	}
	wantFault(t, "two are used", LocalRoom(p, at(0, s), refused(6*s)), "")
	wantFault(t, "one has expired", LocalRoom(p, at(0, s), refused(6*s+5*ms)), "at most 1 of 2 used")
	wantFault(t, "one is used", LocalRoom(p, at(s), refused(2*s)), "at most 1 of 2 used")
}

// TestJudgeOfTimes shows that a check that took longer than its timeout and the slack is blamed, and a class of whose
// checks more than one in twenty took longer than the timeout and a little.
func TestJudgeOfTimes(t *testing.T) {
	const little, slack = 10 * time.Millisecond, 50 * time.Millisecond
	p := modesPolicy()
	took := func(times int, d time.Duration) (out []talk.Check) {
		for range times {
			out = append(out, talk.Check{Class: "open", Received: int64(d)})
		}
		return out
	}
	_, err := InTime(p, append(took(99, modesTimeout), took(1, modesTimeout+slack)...), little, slack)
	wantFault(t, "in time", err, "")
	_, err = InTime(p, append(took(99, modesTimeout), took(1, modesTimeout+slack+1)...), little, slack)
	wantFault(t, "one is late", err, "200ms: {")
	times, err := InTime(p, append(took(90, modesTimeout), took(10, modesTimeout+little+1)...), little, slack)
	wantFault(t, "many are late", err, "with a timeout of 200ms")
	if want := (Times{modesTimeout, modesTimeout + little + 1, modesTimeout + little + 1}); times["open"] != want {
		t.Errorf("they took %v, want %v", times["open"], want)
	}
}

// TestHistory shows that the caps are judged over all gateways together, that what owners said counts and what no owner
// said does not, and that a check which may have consumed, without an answer, is blamed for nothing.
func TestHistory(t *testing.T) {
	revisions := []history.Revision{{Number: 1, Policy: capsPolicy(), Began: -time.Hour}}
	ask := func(sent int64, source string) talk.Check {
		return talk.Check{Principal: "p", Class: "open", Cost: 1, Sent: sent, Received: sent + ms, Source: source,
			Allowed: true, Reason: "allowed", Revision: 1, Version: "v1"}
	}
	unknown := talk.Check{Principal: "p", Class: "open", Cost: 1, Sent: 2 * s, Received: 3 * s, Failed: true, MaybeConsumed: true}
	for name, tt := range map[string]struct {
		checks map[string][]talk.Check
		broken bool
	}{
		"one each":    {map[string][]talk.Check{"x": {ask(s, byOwner)}, "y": {ask(2*s, byOwner)}}, true},
		"one of both": {map[string][]talk.Check{"x": {ask(s, byOwner)}, "y": {ask(2*s, byBypass)}}, false},
		"unknown":     {map[string][]talk.Check{"x": {ask(s, byOwner)}, "y": {unknown}}, false},
		"later":       {map[string][]talk.Check{"x": {ask(s, byOwner)}, "y": {ask(32*s, byOwner)}}, false},
	} {
		if r := check.Examine(History(tt.checks, 0, revisions)); (r.Violations["cap"] > 0) != tt.broken {
			t.Errorf("%s: %v", name, r.Err())
		}
	}
}
