package caller

import (
	"errors"
	"fmt"

	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/internal/bound"
)

// maxCharges is how many classes one decision can be about.
const maxCharges = 1 + bound.Also

// Charge is one allowance that a request takes from: whose, and of which class.
type Charge struct {
	// Class is the API class. It is a constant of the program: no part of a request becomes a class.
	Class string
	// Key finds whose allowance it is.
	Key Key
	// Tier is the caller's tier, empty for none; nil: none. It must not be of the caller's choice.
	Tier func(*Request) (string, error)
	// Cost is how much the request takes, 1 to 2^53; nil: 1.
	Cost func(*Request) (int64, error)
}

// Rule is what a kind of request takes: one or more charges, or explicitly nothing. The zero Rule is an error.
type Rule struct {
	// Charges are decided in order, and all must be allowed. Put the one that a stranger can cause without a
	// credential first: where a later one of another principal is denied, the earlier ones stay consumed. The charges of
	// one principal are decided together. Those of different principals are decided one after another, each within its
	// own class's timeout, so that their timeouts add up where owners are away.
	Charges []Charge
	// Unlimited lets the request pass unasked; only without charges.
	Unlimited bool
}

// Limit is the rule that takes 1 from the allowance of whoever key finds, in class.
func Limit(class string, key Key) Rule { return Rule{Charges: []Charge{{Class: class, Key: key}}} }

// Unlimited is the rule that asks nobody, for what must answer always, as a health check.
func Unlimited() Rule { return Rule{Unlimited: true} }

// Err is all that is wrong with the rule; nil when it can be used.
func (r Rule) Err() error {
	var problems []error
	switch n := len(r.Charges); {
	case n == 0 && !r.Unlimited:
		problems = append(problems, errors.New("the rule charges nobody: use caller.Limit, or say caller.Unlimited"))
	case n > 0 && r.Unlimited:
		problems = append(problems, errors.New("the rule is unlimited and has charges: choose one"))
	case n > maxCharges:
		problems = append(problems, fmt.Errorf("the rule has %d charges: at most %d are decided together", n, maxCharges))
	}
	for _, c := range r.Charges {
		if !bound.Proper(c.Class, 1, policy.MaxClassBytes) {
			problems = append(problems, fmt.Errorf("the class %q must have 1 to %d bytes of UTF-8 without NUL",
				c.Class, policy.MaxClassBytes))
		}
		if err := c.Key.Err(); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// Identities is what is asked of the cluster for req, or an *Error. All of it is found before anything is asked, so
// that a request which fails here has consumed nothing.
func (r Rule) Identities(req *Request) ([]sdk.Identity, error) {
	out := make([]sdk.Identity, 0, len(r.Charges))
	for i := range r.Charges {
		one, err := r.Charges[i].identity(req)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

func (c *Charge) identity(req *Request) (sdk.Identity, error) {
	id := sdk.Identity{Class: c.Class, Cost: 1}
	var err error
	if id.Principal, err = c.Key.Principal(req); err != nil {
		return sdk.Identity{}, err
	}
	if c.Tier != nil {
		if id.Tier, err = c.Tier(req); err != nil {
			return sdk.Identity{}, asError(err)
		}
		if !bound.Proper(id.Tier, 0, policy.MaxTierBytes) {
			return sdk.Identity{}, &Error{Kind: ErrMalformed, Detail: "the caller's tier is none that can be"}
		}
	}
	if c.Cost != nil {
		if id.Cost, err = c.Cost(req); err != nil {
			return sdk.Identity{}, asError(err)
		}
		if id.Cost < 1 || id.Cost > policy.MaxLimit {
			return sdk.Identity{}, &Error{Kind: ErrMalformed, Detail: "the request's cost is out of bounds"}
		}
	}
	return id, nil
}
