package fsm

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/policy"
)

// Switch sets whether a class is disabled, whatever the body says.
type Switch = policy.Switch

// PolicyRef names a policy: a body under a label, with its switches set. Bodies can be large, so they are
// kept beside the log, by their digest; an entry only names one.
type PolicyRef struct {
	Revision Revision
	Version  string   // the label that it has in force
	Body     [32]byte // policy.Policy.Digest of the body
	Bytes    int64    // of the body's encoding
	Switches []Switch // sorted by class
}

// Install puts a policy revision in force, from this entry on.
type Install struct {
	PolicyRef
	// Policy is the named policy, see PolicyRef.Check. It is not in the encoding: whoever applies the entry
	// finds it, and only where Machine.Needs asks for it.
	Policy *policy.Policy
}

// NewInstall makes the install of a policy that is at hand.
func NewInstall(revision Revision, p *policy.Policy) Install {
	body, switches := p.Origin()
	return Install{
		PolicyRef: PolicyRef{
			Revision: revision, Version: p.Version, Body: body, Switches: switches,
			Bytes: int64(len(p.AppendBinary(nil))),
		},
		Policy: p,
	}
}

// Check says how p differs from the policy that r names; nil when it is that policy. Only a policy that
// policy.Policy.With made of the body, or the body itself where nothing is switched and the label is its
// own, is.
func (r *PolicyRef) Check(p *policy.Policy) error {
	if p == nil {
		return fmt.Errorf("policy revision %d was not found", r.Revision)
	}
	body, switches := p.Origin()
	switch {
	case body != r.Body:
		return fmt.Errorf("policy revision %d has body %x, and was taken for one with body %x", r.Revision, r.Body, body)
	case p.Version != r.Version:
		return fmt.Errorf("policy revision %d is %q, and was taken for %q", r.Revision, r.Version, p.Version)
	case !slices.Equal(switches, r.Switches):
		return fmt.Errorf("policy revision %d switches %v, and was taken for one that switches %v",
			r.Revision, r.Switches, switches)
	}
	return nil
}

// Needs are the installs in an entry whose policies Step will use; nil when it will use none. The Policy of each
// must be set before the Step.
func (m *Machine) Needs(entryTerm uint64, e *Entry) []*Install {
	switch {
	case e.Term != entryTerm && guard.On(guard.TermOfStamp):
	case e.Kind == KindBirth && m.rev == nil:
		return []*Install{&e.Birth.Install}
	case m.rev == nil:
	case e.Kind == KindInstall && e.Install.Revision > m.rev.number() && !m.holdsPolicy():
		return []*Install{e.Install}
	case e.Kind == KindSeal && m.PlanEnd(e.Plan) == PlanOpen:
		needed := make([]*Install, len(e.Policies))
		for i := range e.Policies {
			needed[i] = &e.Policies[i]
		}
		return needed
	}
	return nil
}

// replace puts a later revision in force, unless a plan holds the present one.
func (m *Machine) replace(i *Install) (Reason, string) {
	switch {
	case i.Revision <= m.rev.number():
	case m.holdsPolicy():
		return ReasonFrozen, fmt.Sprintf("plan %d moves slots under revision %d: install revision %d when it has ended",
			m.planHere(), m.rev.number(), i.Revision)
	default:
		m.force(i)
	}
	return ReasonUnspecified, ""
}

// force puts the policy of an install in force.
func (m *Machine) force(i *Install) {
	m.install(i.revision())
}

func (i *Install) revision() *revision {
	if i.Policy == nil {
		panic("fsm: an entry was applied without the policy that it names")
	}
	return &revision{i.PolicyRef, i.Policy}
}

// equal reports that r and o name one policy under one revision.
func (r *PolicyRef) equal(o *PolicyRef) bool {
	return r.Revision == o.Revision && r.Version == o.Version && r.Body == o.Body && r.Bytes == o.Bytes &&
		slices.Equal(r.Switches, o.Switches)
}

func appendPolicyRef(b []byte, r *PolicyRef) []byte {
	b = binary.AppendUvarint(b, uint64(r.Revision))
	b = appendString(b, r.Version)
	b = append(b, r.Body[:]...)
	b = binary.AppendVarint(b, r.Bytes)
	b = binary.AppendUvarint(b, uint64(len(r.Switches)))
	for _, s := range r.Switches {
		var disabled byte
		if s.Disabled {
			disabled = 1
		}
		b = append(appendString(b, s.Class), disabled)
	}
	return b
}

func (d *decoder) policyRef() PolicyRef {
	r := PolicyRef{Revision: Revision(d.uvarint()), Version: d.string()}
	d.array(r.Body[:])
	r.Bytes = d.varint()
	n := d.count()
	if n > policy.MaxClasses+1 {
		d.fail(fmt.Errorf("%d classes are switched", n))
	}
	for i := 0; i < n && d.err == nil; i++ {
		s := Switch{Class: d.string()}
		switch flag := d.byte(); flag {
		case 0, 1:
			s.Disabled = flag == 1
		default:
			d.fail(fmt.Errorf("class %q is switched to %d", s.Class, flag))
		}
		r.Switches = append(r.Switches, s)
	}
	return r
}
