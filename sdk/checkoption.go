package sdk

import (
	"encoding/binary"
	"fmt"

	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/sdk/internal/bound"
	"github.com/quorate/quorate/sdk/internal/ceiling"
	"github.com/quorate/quorate/sdk/internal/hints"
	"github.com/quorate/quorate/sdk/internal/link"
)

// check is what is asked for, with its options.
type check struct {
	principal, class, tier string
	cost                   int64
	id                     string
	ownID                  bool // the caller has given the id
	also                   []Charge
	flying                 *ceiling.Flying // while it is under way
}

// CheckOption is a further property of a check.
type CheckOption struct {
	of   property
	text string
	cost int64
	also []Charge
}

type property uint8

const (
	propertyCost property = iota + 1
	propertyTier
	propertyID
	propertyAlso
)

// WithCost is how much of the allowance the request takes, 1 to 2^53; 1 if not given.
func WithCost(cost int64) CheckOption { return CheckOption{of: propertyCost, cost: cost} }

// WithTier is the caller's tier; empty for none. A tier that the policy does not know is none.
func WithTier(tier string) CheckOption { return CheckOption{of: propertyTier, text: tier} }

// WithID gives the decision's id, at most 128 bytes: repeated with the same check within the class's replay horizon it
// gets the recorded decision and consumes nothing. It must not be of the public caller's choice. Hints are then not
// consulted. Without it the client makes one.
func WithID(id string) CheckOption { return CheckOption{of: propertyID, text: id} }

// WithAlso names up to 7 further charges of the same principal: all are made, or none.
func WithAlso(charges ...Charge) CheckOption { return CheckOption{of: propertyAlso, also: charges} }

func checkOf(principal, class string, options []CheckOption) (k check) {
	k.principal, k.class, k.cost = principal, class, 1
	for i := range options {
		switch o := &options[i]; o.of {
		case propertyCost:
			k.cost = o.cost
		case propertyTier:
			k.tier = o.text
		case propertyID:
			k.id, k.ownID = o.text, true
		case propertyAlso:
			k.also = append(k.also, o.also...)
		}
	}
	return k
}

// key is what a hint of the check is found by.
func (k *check) key() hints.Key {
	key := hints.Key{Principal: k.principal, Class: k.class, Tier: k.tier, Cost: k.cost}
	if len(k.also) == 0 {
		return key
	}
	var b []byte
	for _, c := range k.also {
		b = append(binary.AppendUvarint(b, uint64(len(c.Class))), c.Class...)
		b = append(binary.AppendUvarint(b, uint64(len(c.Tier))), c.Tier...)
		b = binary.AppendVarint(b, c.cost())
	}
	key.Also = string(b)
	return key
}

// request makes to the check as it is sent, but for what differs from attempt to attempt.
func (k *check) request(to *link.Check) {
	to.Principal, to.Class, to.ID, to.Tier, to.Cost = k.principal, k.class, k.id, k.tier, k.cost
	to.Also = nil
	for _, c := range k.also {
		to.Also = append(to.Also, link.Charge{Class: c.Class, Tier: c.Tier, Cost: c.cost()})
	}
}

// validate refuses what the owner would refuse as malformed, and does not send it.
func (k *check) validate() error {
	switch {
	case !bound.Proper(k.principal, 1, policy.MaxPrincipalBytes):
		return malformed("the principal", 1, policy.MaxPrincipalBytes)
	case k.ownID && !bound.Proper(k.id, 1, bound.DecisionIDBytes):
		return malformed("the decision id", 1, bound.DecisionIDBytes)
	case len(k.also) > bound.Also:
		return newError(quotaerr.InvalidArgument, fmt.Sprintf("a check has at most %d further charges", bound.Also))
	}
	if err := (Charge{Class: k.class, Tier: k.tier, Cost: k.cost}).validate(); err != nil {
		return err
	}
	for _, c := range k.also {
		if err := (Charge{Class: c.Class, Tier: c.Tier, Cost: c.cost()}).validate(); err != nil {
			return err
		}
	}
	return nil
}

func (c Charge) cost() int64 {
	if c.Cost == 0 {
		return 1
	}
	return c.Cost
}

func (c Charge) validate() error {
	switch {
	case !bound.Proper(c.Class, 1, policy.MaxClassBytes):
		return malformed("the apiClass", 1, policy.MaxClassBytes)
	case !bound.Proper(c.Tier, 0, policy.MaxTierBytes):
		return malformed("the tier", 0, policy.MaxTierBytes)
	case c.Cost < 1 || c.Cost > policy.MaxLimit:
		return newError(quotaerr.InvalidArgument, "the cost is not from 1 to 2^53")
	}
	return nil
}

// noContext is the error of who gives a nil context.
func noContext() error {
	return newError(quotaerr.InvalidArgument, "the context is nil: give the request's, or context.Background()")
}

func malformed(what string, least, most int) error {
	return newError(quotaerr.InvalidArgument,
		fmt.Sprintf("%s is not %d to %d bytes of UTF-8 without NUL", what, least, most))
}
