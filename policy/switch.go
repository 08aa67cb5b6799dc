package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Switch sets whether a class, or DefaultClass, is disabled, whatever the policy says.
type Switch struct {
	Class    string
	Disabled bool
}

// With is the policy under another label and with classes switched; p stays as it is. It costs one pass over
// p, for the digest, and shares with p whatever does not differ.
//
// The error says which class p does not list or is switched twice, or what is wrong with the label.
func (p *Policy) With(version string, switches []Switch) (*Policy, error) {
	if fault := nameFault(version, MaxNameBytes); fault != "" {
		return nil, fmt.Errorf("the version %s %s", quoted(version), fault)
	}
	q := *p
	q.Version, q.body = version, p.digest
	q.switches = slices.Clone(switches)
	slices.SortFunc(q.switches, func(a, b Switch) int { return strings.Compare(a.Class, b.Class) })
	q.Classes = maps.Clone(p.Classes)
	for i, s := range q.switches {
		if i > 0 && q.switches[i-1].Class == s.Class {
			return nil, fmt.Errorf("the class %s is switched twice", quoted(s.Class))
		}
		if s.Class == DefaultClass {
			q.Default.Disabled = s.Disabled
			continue
		}
		class, listed := p.Classes[s.Class]
		if !listed {
			return nil, fmt.Errorf("the class %s is switched, and is not listed", quoted(s.Class))
		}
		switched := *class
		switched.Disabled = s.Disabled
		q.Classes[s.Class] = &switched
	}
	q.digest = q.computeDigest()
	return &q, nil
}

// Origin tells what With made p of: the digest of that policy, and the switches, sorted by class. Any other
// policy is its own, without switches. The slice is shared: read-only.
func (p *Policy) Origin() (body [32]byte, switches []Switch) { return p.body, p.switches }
