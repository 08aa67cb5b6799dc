package cluster

import (
	"testing"
	"time"
)

// change is one way to change a policy. Whatever order they come in, each leaves a valid policy.
type change struct {
	name string
	make func(p *Policy)
}

// limits sets the limits of a listed class; a class that is not listed becomes so.
func limits(class string, l ...Limit) func(*Policy) {
	return func(p *Policy) {
		c := p.Classes[class]
		c.Limits = l
		p.Classes[class] = c
	}
}

// regroup puts classes into one group, those of them that are listed.
func regroup(n int64, window time.Duration, classes ...string) func(*Policy) {
	return func(p *Policy) {
		var listed []string
		for _, class := range classes {
			if _, ok := p.Classes[class]; ok {
				listed = append(listed, class)
			}
		}
		p.Groups = map[string]Group{"account": {listed, []Limit{{"account", n, Window(window)}}}}
	}
}

var changes = []change{
	{"lower", limits("strict", Limit{"room", 2, Window(4 * time.Second)})},
	{"raise", limits("strict", Limit{"room", 8, Window(4 * time.Second)})},
	{"add a limit", limits("strict",
		Limit{"room", 6, Window(4 * time.Second)}, Limit{"burst", 2, Window(time.Second)})},
	{"remove a limit", limits("strict", Limit{"burst", 2, Window(time.Second)})},
	{"lengthen a window", limits("strict", Limit{"long", 7, Window(7 * time.Second)})},
	{"rename", limits("wide", Limit{"renamed", 10, Window(3 * time.Second)})},
	{"block", limits("wide", Limit{"renamed", 0, Window(3 * time.Second)})},
	{"group strict with wide", regroup(7, 3*time.Second, "strict", "wide")},
	{"group wide with misc", regroup(5, 4*time.Second, "wide", "misc")},
	{"no group", func(p *Policy) { p.Groups = map[string]Group{} }},
	{"list misc", limits("misc", Limit{"misc", 4, Window(3 * time.Second)})},
	{"list misc anew", limits("misc", Limit{"misc", 3, Window(2 * time.Second)})},
	{"unlist misc", func(p *Policy) {
		delete(p.Classes, "misc")
		p.Groups = map[string]Group{}
	}},
	{"lower the default", func(p *Policy) { p.Default.Limits = []Limit{{"default", 3, Window(3 * time.Second)}} }},
}

// TestPolicyChanges shows that usage is never reset, by whatever change of the policy: what was admitted before
// counts under the new rule, and where the new rule cannot know it, the rule before it is still enforced.
func TestPolicyChanges(t *testing.T) {
	first := basic()
	first.Groups = map[string]Group{}
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
