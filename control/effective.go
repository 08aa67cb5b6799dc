package control

import (
	"bytes"
	"fmt"
	"maps"

	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/policy"
)

// Effective is the policy that a revision puts in force: its body under its label, with its switches set.
func Effective(body *policy.Policy, r *state.Revision) (*policy.Policy, error) {
	if state.Digest(body.Digest()) != r.Body {
		return nil, errBody(r, bodies.ErrMismatch)
	}
	parts := *body
	parts.Version = r.Label
	parts.Classes = maps.Clone(body.Classes)
	for _, s := range r.Switches {
		if s.Class == policy.DefaultClass {
			parts.Default.Disabled = s.Disabled
			continue
		}
		class, ok := parts.Classes[s.Class]
		if !ok {
			return nil, errBody(r, fmt.Errorf("it switches class %q, which its body does not list", s.Class))
		}
		switched := *class
		switched.Disabled = s.Disabled
		parts.Classes[s.Class] = &switched
	}
	p, err := policy.New(parts)
	if err != nil {
		return nil, errBody(r, err)
	}
	return p, nil
}

// Policy is the policy that a revision puts in force, if its body is on this node; else bodies.ErrNotFound.
func (c *Control) Policy(r *state.Revision) (*policy.Policy, error) {
	f, size, err := c.bodies.Get(r.Body)
	if err != nil {
		return nil, errBody(r, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	var encoded bytes.Buffer
	encoded.Grow(int(size) + bytes.MinRead)
	if _, err := encoded.ReadFrom(f); err != nil {
		return nil, errBody(r, err)
	}
	body, err := policy.Decode(encoded.Bytes())
	if err != nil {
		return nil, errBody(r, err)
	}
	return Effective(body, r)
}
