package envoy

import (
	"context"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// maxCharges is how many descriptors of one principal are decided as one.
const maxCharges = 1 + fsm.MaxAlso

// subject is whose usage a descriptor is about.
type subject struct{ principal, class, tier string }

// plan is what there is to do for a request. Descriptors are told by their index.
type plan struct {
	unlimited []int // let through by their rule
	passed    []int // let through by the domain, or since another rule replaces theirs
	unmatched []int // denied by the domain
	looks     []look
	groups    []*group
}

// look is a peek, and the descriptors that it is for.
type look struct {
	subject
	members []int
}

// group is a check, and the descriptor that each of its charges is for.
type group struct {
	principal  string
	decisionID string
	charges    []fsm.Charge
	members    []int
}

// read makes the plan of a request. It refuses one that is malformed, or asks for what its caller may not ask for.
func (s *Service) read(ctx context.Context, p *policy.Policy, req *ratelimitv3.RateLimitRequest) (*plan, error) {
	domain, err := domainOf(p, req.GetDomain())
	if err != nil {
		return nil, err
	}
	descriptors, requestID, err := descriptorsOf(req, domain.RequestID)
	if err != nil {
		return nil, err
	}
	out := planOf(domain, descriptors)
	id := decisionIDs(req.GetDomain(), requestID, descriptors)
	for i, g := range out.groups {
		g.decisionID = id(i)
		if err := g.validate(); err != nil {
			return nil, err
		}
		for _, c := range g.charges {
			if err := s.desk.MayAsk(ctx, c.Class); err != nil {
				return nil, err
			}
		}
	}
	for _, l := range out.looks {
		if err := fsm.ValidatePeek(&fsm.Peek{Principal: l.principal, Class: l.class, Tier: l.tier}); err != nil {
			return nil, malformed("descriptor %d: %v", l.members[0], err)
		}
		if err := s.desk.MayAsk(ctx, l.class); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// planOf sorts descriptors by what there is to do for them.
func planOf(domain *policy.EnvoyDomain, descriptors []descriptor) *plan {
	rules := make([]*policy.EnvoyRule, len(descriptors))
	for i, d := range descriptors {
		rules[i] = domain.Match(d.keys, d.values)
	}
	replaced := replacedOf(rules)
	out := &plan{}
	looks, open := map[subject]int{}, map[string]*group{}
	for i, d := range descriptors {
		switch r := rules[i]; {
		case r == nil && !domain.PassUnmatched:
			out.unmatched = append(out.unmatched, i)
		case r == nil, replaced[i]:
			out.passed = append(out.passed, i)
		case r.Unlimited:
			out.unlimited = append(out.unlimited, i)
		default:
			principal, tier := r.Identify(d.values)
			of := subject{principal, r.Class, tier}
			if d.hits > 0 {
				out.charge(open, i, of, d.hits)
				continue
			}
			at, known := looks[of]
			if !known {
				at = len(out.looks)
				looks[of], out.looks = at, append(out.looks, look{subject: of})
			}
			out.looks[at].members = append(out.looks[at].members, i)
		}
	}
	return out
}

// charge puts a descriptor to the others of its principal; open has, for each principal, the group that has room.
func (p *plan) charge(open map[string]*group, i int, of subject, hits int64) {
	g := open[of.principal]
	if g == nil || len(g.charges) == maxCharges {
		g = &group{principal: of.principal}
		open[of.principal], p.groups = g, append(p.groups, g)
	}
	g.charges = append(g.charges, fsm.Charge{Class: of.class, Tier: of.tier, Cost: hits})
	g.members = append(g.members, i)
}

// replacedOf tells the descriptors whose rule another rule of the request replaces. Rules that replace each other, by
// whatever detour, do not: else none of them would hold.
func replacedOf(rules []*policy.EnvoyRule) []bool {
	reach := make([]uint64, len(rules)) // by bits, MaxDescriptors at most: whose rules a descriptor's replaces
	for i, r := range rules {
		if r == nil {
			continue
		}
		for _, name := range r.Replaces {
			for k, other := range rules {
				if other != nil && other != r && other.Name == name {
					reach[i] |= 1 << k
				}
			}
		}
	}
	direct := append([]uint64(nil), reach...)
	for via := range reach {
		for i := range reach {
			if reach[i]&(1<<via) != 0 {
				reach[i] |= reach[via]
			}
		}
	}
	out := make([]bool, len(rules))
	for i := range rules {
		for k := range rules {
			if direct[i]&(1<<k) != 0 && reach[k]&(1<<i) == 0 {
				out[k] = true
			}
		}
	}
	return out
}

// validate refuses what no owner would decide, before anything else is asked.
func (g *group) validate() error {
	err := fsm.ValidateCheck(&fsm.Check{
		Principal: g.principal, Gateway: "-", DecisionID: g.decisionID, Charge: g.charges[0], Also: g.charges[1:],
	})
	if err != nil {
		return malformed("descriptor %d, or one of the same principal: %v", g.members[0], err)
	}
	return nil
}

// request is the check.
func (g *group) request() *quoratev1.CheckRequest {
	first := g.charges[0]
	out := &quoratev1.CheckRequest{
		Principal: g.principal, DecisionId: g.decisionID, ApiClass: first.Class, Tier: first.Tier, Cost: &first.Cost,
	}
	for _, c := range g.charges[1:] {
		out.Also = append(out.Also, &quoratev1.Charge{ApiClass: c.Class, Tier: c.Tier, Cost: &c.Cost})
	}
	return out
}

// timeout is the shortest of the charges' classes. Each has a replay horizon of several times its timeout, so that no
// attempt within it comes after the end of the first one's record.
func (g *group) timeout(p *policy.Policy) time.Duration {
	out := policy.MaxReplayHorizonNanos // above every timeout
	for _, c := range g.charges {
		_, class := p.ClassOf(c.Class)
		out = min(out, class.TimeoutNanos)
	}
	return time.Duration(out)
}
