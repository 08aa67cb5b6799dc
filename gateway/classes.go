package gateway

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/policy"
)

// charged are the classes that routes charge, each with the first place that does.
func (c *Config) charged() map[string]string {
	out := map[string]string{}
	take := func(place string, r *RouteConfig) {
		for i := range r.Charges {
			if class := r.Charges[i].Class; out[class] == "" {
				out[class] = index(place+".charges", i) + ".class"
			}
		}
	}
	for i := range c.Routes {
		take(index("routes", i), &c.Routes[i])
	}
	if c.Fallback != nil {
		take("fallback", c.Fallback)
	}
	return out
}

// Warnings are what is no error and yet hardly meant, a line for each, with file, line and column: classes of routes
// that cluster.policy_file does not list. The policy of the cluster may be another; Gateway watches that.
func (c *Config) Warnings() []string {
	p, err := policy.Parse(c.Cluster.PolicyFile, []byte(c.policy))
	if c.Cluster.PolicyFile == "" || err != nil { // the SDK has told what is wrong with it
		return nil
	}
	listed := append(p.ClassNames(), policy.DefaultClass)
	var found problems
	for class, place := range c.charged() {
		if !slices.Contains(listed, class) {
			found.add(place, "%s does not list the class %q: its checks count by the rules of the class %s",
				c.Cluster.PolicyFile, class, policy.DefaultClass)
		}
	}
	return c.source.lines(found)
}

// unlisted are the classes that routes charge and the policy in force does not list; none while there is no policy.
func (g *Gateway) unlisted() (out []string) {
	gen := g.current.Load()
	if !g.configured.Load() && gen.config.Cluster.PolicyFile == "" {
		return nil
	}
	listed := g.client.Stats().Classes
	for _, name := range gen.classes {
		if _, ok := listed[name]; !ok {
			out = append(out, name)
		}
	}
	return out
}

// tellUnlisted logs which classes are unlisted when they are others than were told, and gives what is told now.
func (g *Gateway) tellUnlisted(told string) string {
	names := g.unlisted()
	g.metrics.unlisted.Set(float64(len(names)))
	now := fmt.Sprintf("%q", names)
	switch {
	case now == told || told == "" && len(names) == 0:
		return told
	case len(names) == 0:
		g.log.Info("the policy lists all classes that routes charge now")
	default:
		g.log.Warn("the policy does not list all classes that routes charge: the rules of its class default hold for these",
			"classes", strings.Join(names, ", "), "revision", g.client.Stats().PolicyRevision)
	}
	return now
}
