package workload

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// Kind is one way of asking. Its principals begin with its name.
type Kind struct {
	Name  string
	About string // what it is for, in a line
	// Classes and Groups are its part of the policy.
	Classes map[string]history.Class
	Groups  map[string]history.Group

	clients int
	gateway bool // its clients go through the SDK
	publish bool // its first client publishes policies where nobody else does
	// ask is what one client does until ctx ends.
	ask func(ctx context.Context, c *client)
}

// Kinds are all, in the order of their names as they are listed.
func Kinds() []Kind {
	return []Kind{
		saturate(), boundary(), replay(), unknownRetry(), policyChurn(), move(), weighted(), groups(), hotKey(),
		idleBurst(), sdkCalls(),
	}
}

// Names are those of kinds.
func Names(kinds []Kind) (names []string) {
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// Pick finds kinds by their names; none are all.
func Pick(names []string) ([]Kind, error) {
	all := Kinds()
	if len(names) == 0 {
		return all, nil
	}
	var picked []Kind
	for _, name := range names {
		i := slices.IndexFunc(all, func(k Kind) bool { return k.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no workload %q: there are %s", name, strings.Join(Names(all), ", "))
		}
		if slices.ContainsFunc(picked, func(k Kind) bool { return k.Name == name }) {
			return nil, fmt.Errorf("workload %q is named twice", name)
		}
		picked = append(picked, all[i])
	}
	return picked, nil
}

// PolicyOf is the first policy of a run: the classes and groups of kinds, and a default that admits little.
func PolicyOf(kinds []Kind) history.Policy {
	p := history.Policy{
		Version: "chaos-1", Default: history.Class{Limits: limit("default", 100, time.Minute)},
		Classes: map[string]history.Class{}, Groups: map[string]history.Group{},
	}
	for _, k := range kinds {
		maps.Copy(p.Classes, k.Classes)
		maps.Copy(p.Groups, k.Groups)
	}
	return p.Clone()
}

// limit is a list of one.
func limit(name string, n int64, window time.Duration) []history.Limit {
	return []history.Limit{{Name: name, Max: n, Window: history.Window(window)}}
}

// class has one limit and a replay horizon.
func class(n int64, window, horizon time.Duration) history.Class {
	return history.Class{Limits: limit("rolling", n, window), ReplayHorizon: history.Window(horizon)}
}
