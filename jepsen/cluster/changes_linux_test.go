package cluster

import (
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// change is one way to change a policy. Whatever order they come in, each leaves a valid policy.
type change struct {
	name string
	make func(p *history.Policy)
}

// limits sets the limits of a listed class; a class that is not listed becomes so.
func limits(class string, l ...history.Limit) func(*history.Policy) {
	return func(p *history.Policy) {
		c := p.Classes[class]
		c.Limits = l
		p.Classes[class] = c
	}
}

// regroup puts classes into one group, those of them that are listed.
func regroup(n int64, window time.Duration, classes ...string) func(*history.Policy) {
	return func(p *history.Policy) {
		var listed []string
		for _, class := range classes {
			if _, ok := p.Classes[class]; ok {
				listed = append(listed, class)
			}
		}
		p.Groups = map[string]history.Group{"account": {
			Classes: listed, Limits: []history.Limit{{Name: "account", Max: n, Window: history.Window(window)}},
		}}
	}
}

var changes = []change{
	{"lower", limits("strict", history.Limit{Name: "room", Max: 2, Window: history.Window(4 * time.Second)})},
	{"raise", limits("strict", history.Limit{Name: "room", Max: 8, Window: history.Window(4 * time.Second)})},
	{"add a limit", limits("strict",
		history.Limit{Name: "room", Max: 6, Window: history.Window(4 * time.Second)}, history.Limit{Name: "burst", Max: 2, Window: history.Window(time.Second)})},
	{"remove a limit", limits("strict", history.Limit{Name: "burst", Max: 2, Window: history.Window(time.Second)})},
	{"lengthen a window", limits("strict", history.Limit{Name: "long", Max: 7, Window: history.Window(7 * time.Second)})},
	{"rename", limits("wide", history.Limit{Name: "renamed", Max: 10, Window: history.Window(3 * time.Second)})},
	{"block", limits("wide", history.Limit{Name: "renamed", Max: 0, Window: history.Window(3 * time.Second)})},
	{"group strict with wide", regroup(7, 3*time.Second, "strict", "wide")},
	{"group wide with misc", regroup(5, 4*time.Second, "wide", "misc")},
	{"no group", func(p *history.Policy) { p.Groups = map[string]history.Group{} }},
	{"list misc", limits("misc", history.Limit{Name: "misc", Max: 4, Window: history.Window(3 * time.Second)})},
	{"list misc anew", limits("misc", history.Limit{Name: "misc", Max: 3, Window: history.Window(2 * time.Second)})},
	{"unlist misc", func(p *history.Policy) {
		delete(p.Classes, "misc")
		p.Groups = map[string]history.Group{}
	}},
	{"lower the default", func(p *history.Policy) {
		p.Default.Limits = []history.Limit{{Name: "default", Max: 3, Window: history.Window(3 * time.Second)}}
	}},
}

// TestPolicyChanges shows that usage is never reset, by whatever change of the policy: what was admitted before
// counts under the new rule, and where the new rule cannot know it, the rule before it is still enforced.
func TestPolicyChanges(t *testing.T) {
	first := basic()
	first.Groups = map[string]history.Group{}
	w := mustWorld(t, Options{Nodes: 3, First: 3, Partitions: 2, Policy: first}, basicLoad())
	ctx := within(t, 100*time.Second)
	for i, k := range w.rand.Perm(len(changes)) {
		next := w.policies.Present()
		changes[k].make(&next)
		next.Version = "change-" + string(rune('a'+i))
		w.say("%s", changes[k].name)
		must(t, w.policies.Apply(ctx, next))
		w.mustDecide(20 + w.rand.IntN(200))
		switch i {
		case 3, 9:
			w.say("disable and enable strict")
			must(t, w.policies.Switch(ctx, "strict", true))
			w.mustDecide(20)
			must(t, w.policies.Switch(ctx, "strict", false))
			w.mustDecide(20)
		case 6, 12:
			to := 1 + w.rand.Uint64N(uint64(len(w.policies.revisions))-1)
			w.say("roll back to %d", to)
			must(t, w.policies.Rollback(ctx, to))
			w.mustDecide(20)
		}
	}
	w.mustDecide(300) // all windows pass
	w.mustHold()
	must(t, w.AwaitAgreement(within(t, 30*time.Second)))
}
