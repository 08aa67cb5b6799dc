package admin

import (
	"context"
	"fmt"
	"slices"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

const (
	// maxListed bounds the revisions, or audit records, of one answer; defaultListed is how many are meant by 0.
	maxListed     = 1000
	defaultListed = 100
	// maxListedBytes bounds their texts.
	maxListedBytes = 512 << 10
	// maxSwitchTries bounds how often a switch is tried anew against a newer revision.
	maxSwitchTries = 10
)

// RollbackPolicy puts an older revision's policy in force again.
func (a *Admin) RollbackPolicy(
	ctx context.Context, who rpc.Actor, req *quoratev1.RollbackPolicyRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	return a.publish(ctx, who, func(c *control.Control, s *state.State) (*change, error) {
		to, err := mayGoBack(s, req)
		if err != nil {
			return nil, a.refuse(ctx, who, "policy.rollback", fmt.Sprintf("revision %d", req.GetTo()), err)
		}
		p, err := a.policyOf(ctx, c, to)
		if err != nil {
			return nil, err
		}
		return &change{policy: p, body: to.Body, command: func(epoch uint64) *state.Command {
			return &state.Command{Kind: state.KindRollback, Comment: req.GetComment(), Rollback: &state.Rollback{
				Base: fsm.Revision(req.GetBase()), To: to.Number, Held: true, BodyEpoch: epoch,
			}}
		}}, nil
	})
}

// mayGoBack is the revision to go back to.
func mayGoBack(s *state.State, req *quoratev1.RollbackPolicyRequest) (*state.Revision, error) {
	if req.GetTo() == 0 {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "to: name the revision to go back to, see `quorate policy list`")
	}
	to, err := revisionOr(s, req.GetTo())
	if err != nil {
		return nil, err
	}
	if err := baseIs(s, req.GetBase()); err != nil {
		return nil, err
	}
	if to == s.InForce() {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "revision %d is in force: name an older one", to.Number)
	}
	return to, kept(s, to)
}

// kept refuses a revision whose body is too old to be kept.
func kept(s *state.State, r *state.Revision) error {
	if _, is := s.Wants()[r.Body]; !is {
		return quotaerr.New(quotaerr.InvalidArgument,
			"the policy of revision %d is too old to be kept: apply its file again, with another version", r.Number)
	}
	return nil
}

// SwitchClass disables or enables one class. One that is so already stays, and the answer has the revision in
// force.
func (a *Admin) SwitchClass(
	ctx context.Context, who rpc.Actor, req *quoratev1.SwitchClassRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	for tries := 1; ; tries++ {
		out, err := a.switchOnce(ctx, who, req)
		if err == nil || req.GetBase() != 0 || quotaerr.ReasonOf(err) != quotaerr.PolicyStale || tries == maxSwitchTries {
			return out, err
		}
	}
}

func (a *Admin) switchOnce(
	ctx context.Context, who rpc.Actor, req *quoratev1.SwitchClassRequest,
) (*quoratev1.ApplyPolicyResponse, error) {
	c, s, err := a.leading(ctx)
	if err != nil {
		return nil, err
	}
	refuse := func(err error) (*quoratev1.ApplyPolicyResponse, error) {
		return nil, a.refuse(ctx, who, "class.switch", "class "+req.GetApiClass(), err)
	}
	now, err := revisionOr(s, 0)
	if err != nil {
		return refuse(err)
	}
	if req.GetBase() != 0 {
		if err := baseIs(s, req.GetBase()); err != nil {
			return refuse(err)
		}
	}
	p, err := a.policyOf(ctx, c, now)
	if err != nil {
		return nil, err
	}
	class, path, err := listed(p, req.GetApiClass())
	if err != nil {
		return refuse(err)
	}
	var diff difference
	if class.Disabled == req.GetDisabled() {
		return diff.response(now), nil
	}
	diff.lines = []string{fmt.Sprintf("~ %s.disabled: %t -> %t", path, class.Disabled, req.GetDisabled())}
	r, err := a.propose(ctx, who, &state.Command{
		Kind: state.KindSwitchClass, Comment: req.GetComment(), Difference: diff.text(),
		Switch: &state.SwitchClass{Base: now.Number, Class: req.GetApiClass(), Disabled: req.GetDisabled()},
	}, c.Propose)
	if err != nil {
		return nil, err
	}
	return diff.made(c, r)
}

// listed is a class that a policy lists, or default, and where it is in the file.
func listed(p *policy.Policy, name string) (c *policy.Class, path string, err error) {
	if name == policy.DefaultClass {
		return &p.Default, name, nil
	}
	if c, ok := p.Classes[name]; ok {
		return c, "classes." + plain(name), nil
	}
	return nil, "", quotaerr.New(quotaerr.InvalidArgument,
		"class %.128q is not listed in policy %s: name one that is, or %s for all that are not", name, p.Version,
		policy.DefaultClass)
}

// ListPolicies tells the history of revisions, the newest first.
func (a *Admin) ListPolicies(
	ctx context.Context, _ rpc.Actor, req *quoratev1.ListPoliciesRequest,
) (*quoratev1.ListPoliciesResponse, error) {
	_, s, _, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	limit, err := limitOf(req.GetLimit())
	if err != nil {
		return nil, err
	}
	out, size := &quoratev1.ListPoliciesResponse{}, 0
	for _, r := range slices.Backward(s.Revisions) {
		if req.GetBefore() != 0 && uint64(r.Number) >= req.GetBefore() {
			continue
		}
		if size += len(r.Label) + len(r.Author) + len(r.Comment) + 128; len(out.Revisions) == limit || size > maxListedBytes {
			break
		}
		out.Revisions = append(out.Revisions, revisionOf(r))
	}
	return out, nil
}

// limitOf is how many an answer may have.
func limitOf(limit uint32) (int, error) {
	switch {
	case limit == 0:
		return defaultListed, nil
	case limit > maxListed:
		return 0, quotaerr.New(quotaerr.InvalidArgument, "limit: %d are too many for one answer, use at most %d", limit,
			maxListed)
	}
	return int(limit), nil
}

// DiffPolicies tells what differs between two revisions.
func (a *Admin) DiffPolicies(
	ctx context.Context, _ rpc.Actor, req *quoratev1.DiffPoliciesRequest,
) (*quoratev1.DiffPoliciesResponse, error) {
	c, s, _, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	to, err := revisionOr(s, req.GetTo())
	if err != nil {
		return nil, err
	}
	var from *state.Revision // none before the first
	if number := req.GetFrom(); number != 0 || to.Base != 0 {
		if number == 0 {
			number = uint64(to.Base)
		}
		if from, err = revisionOr(s, number); err != nil {
			return nil, err
		}
	}
	done, err := a.alone(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	var diff difference
	if diff, err = a.between(ctx, c, s, from, to); err != nil {
		return nil, err
	}
	return &quoratev1.DiffPoliciesResponse{
		Changes: diff.lines, MoreChanges: moreOf(diff.more), From: revisionOf(from), To: revisionOf(to),
	}, nil
}

// between compares the policies of two revisions.
func (a *Admin) between(
	ctx context.Context, c *control.Control, s *state.State, from, to *state.Revision,
) (difference, error) {
	var policies [2]*policy.Policy
	for i, r := range []*state.Revision{from, to} {
		if r == nil {
			continue
		}
		if err := kept(s, r); err != nil {
			return difference{}, err
		}
		var err error
		if policies[i], err = a.policyOf(ctx, c, r); err != nil {
			return difference{}, err
		}
	}
	if from == nil {
		return differenceFromNone(policies[1]), nil
	}
	return cutChanges(policy.Compare(policies[0], policies[1])), nil
}
