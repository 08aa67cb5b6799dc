package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// StartPlan begins a plan, which the node that leads the control group then drives.
func (a *Admin) StartPlan(
	ctx context.Context, who rpc.Actor, req *quoratev1.StartPlanRequest,
) (*quoratev1.StartPlanResponse, error) {
	c, s, err := a.leading(ctx)
	if err != nil {
		return nil, err
	}
	start, err := a.mayStart(s, req)
	if err != nil {
		return nil, a.refuseAsked(ctx, who, askedPlan(req), err)
	}
	r, err := a.propose(ctx, who, &state.Command{
		Kind: state.KindStartPlan, Comment: req.GetComment(), Start: start,
	}, c.Propose)
	if err != nil {
		return nil, err
	}
	p, ok := c.State().AnyPlan(r.Plan)
	if !ok {
		return nil, quotaerr.New(quotaerr.OutcomeUnknown,
			"the plan was begun, and this node knows no more of it: see `quorate partition list`")
	}
	return &quoratev1.StartPlanResponse{Plan: a.planOf(p, nil)}, nil
}

// askedPlan is a plan that was asked for, for the audit trail.
func askedPlan(req *quoratev1.StartPlanRequest) asked {
	out := asked{action: "plan.start", object: "partition " + req.GetSource(), comment: req.GetComment()}
	if to := req.GetDestination(); to != "" {
		out.object += " to " + to
	}
	out.difference = strings.ToLower(strings.TrimPrefix(req.GetKind().String(), "PLAN_KIND_"))
	if wanted, err := joined(req.GetRanges()); err == nil && len(wanted) > 0 {
		out.difference += ": slots " + state.InWords(wanted)
	}
	if req.GetNode() != "" {
		out.difference += ": from the replica on " + req.GetNode()
	}
	if req.GetAcceptLoss() {
		out.difference += " (--accept-loss)"
	}
	return out
}

// AbortPlan undoes a plan. Asking again is harmless.
func (a *Admin) AbortPlan(
	ctx context.Context, who rpc.Actor, req *quoratev1.AbortPlanRequest,
) (*quoratev1.AbortPlanResponse, error) {
	c, s, err := a.leading(ctx)
	if err != nil {
		return nil, err
	}
	p, err := mayAbort(s, req)
	if err != nil {
		return nil, a.refuseAsked(ctx, who, asked{
			action: "plan.abort", object: fmt.Sprintf("plan %d", req.GetPlan()), comment: req.GetComment(),
		}, err)
	}
	if p.Phase == state.PlanAborted { // it has been done
		return &quoratev1.AbortPlanResponse{}, nil
	}
	why := req.GetComment()
	if why == "" {
		why = "aborted by " + who.Name // it is all that the plan says of why it was undone
	}
	_, err = a.propose(ctx, who, &state.Command{Kind: state.KindAbortPlan, Plan: p.ID, Comment: why}, c.Propose)
	if err != nil {
		return nil, err
	}
	return &quoratev1.AbortPlanResponse{}, nil
}

// mayAbort is the plan that is to be undone, if it is not too late.
func mayAbort(s *state.State, req *quoratev1.AbortPlanRequest) (*state.Plan, error) {
	if err := checkWhy("comment", req.GetComment()); err != nil {
		return nil, err
	}
	p, err := thePlan(s, req.GetPlan())
	switch {
	case err != nil:
		return nil, err
	case p.Phase == state.PlanAborted:
		return p, nil
	case p.Closed:
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"plan %d is done, %s owns its slots: move them back by another plan", p.ID, p.Destination)
	case p.Phase == state.PlanDecided:
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"plan %d is decided, its slots are %s's already: wait until it is done, then move them back by another plan",
			p.ID, p.Destination)
	case p.Kind == state.PlanRestore:
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"plan %d restores %s: without it this cluster is not whole; to begin anew, empty all nodes' data directories",
			p.ID, p.Source)
	}
	return p, nil
}

// ListPlans tells how plans stand. What is being done for them at present only the node that drives them knows, which
// leads the control group.
func (a *Admin) ListPlans(
	ctx context.Context, _ rpc.Actor, req *quoratev1.ListPlansRequest,
) (*quoratev1.ListPlansResponse, error) {
	_, s, old, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	if req.GetPlan() != 0 {
		p, err := thePlan(s, req.GetPlan())
		if err != nil {
			return nil, err
		}
		return &quoratev1.ListPlansResponse{Plans: []*quoratev1.Plan{a.planOf(p, old)}}, nil
	}
	plans := slices.Concat(s.Plans, s.Ended)
	slices.SortFunc(plans, func(p, q *state.Plan) int {
		if p.Closed != q.Closed { // those under way first: what is left out for want of room is the oldest
			return map[bool]int{false: -1, true: 1}[p.Closed]
		}
		return cmp.Compare(q.ID, p.ID)
	})
	out, size := &quoratev1.ListPlansResponse{}, 0
	for _, p := range plans {
		told := a.planOf(p, old)
		if size += proto.Size(told) + 8; size > maxListedBytes {
			break
		}
		out.Plans = append(out.Plans, told)
	}
	slices.SortFunc(out.Plans, func(p, q *quoratev1.Plan) int { return cmp.Compare(q.GetId(), p.GetId()) })
	return out, nil
}

// planKinds are the kinds as they are told.
var planKinds = map[state.PlanKind]quoratev1.PlanKind{
	state.PlanSplit: quoratev1.PlanKind_PLAN_KIND_SPLIT, state.PlanMerge: quoratev1.PlanKind_PLAN_KIND_MERGE,
	state.PlanMove: quoratev1.PlanKind_PLAN_KIND_MOVE, state.PlanRecover: quoratev1.PlanKind_PLAN_KIND_RECOVER,
	state.PlanRestore: quoratev1.PlanKind_PLAN_KIND_RESTORE,
}

// planOf is a plan as it is told; old says why the state is an old one, where it is.
func (a *Admin) planOf(p *state.Plan, old error) *quoratev1.Plan {
	out := &quoratev1.Plan{
		Id: uint64(p.ID), Kind: planKinds[p.Kind], Destination: p.Destination.String(), Phase: p.Standing(),
		Epoch: uint64(p.Epoch), Started: timestamppb.New(time.Unix(0, p.StartedWallNanos)), Author: p.Author,
		Comment: p.Comment, Message: p.Message, Node: p.From, AcceptLoss: p.AcceptLoss,
	}
	if p.Kind != state.PlanRestore {
		out.Source = p.Source.String()
	}
	for _, r := range p.Ranges {
		out.Ranges = append(out.Ranges, &quoratev1.SlotRange{
			FirstSlot: uint32(r.First), LastSlot: uint32(r.Last), Epoch: uint64(r.Epoch),
		})
	}
	switch {
	case p.Closed:
		out.Ended = timestamppb.New(time.Unix(0, p.EndedWallNanos))
	case old != nil:
		out.Progress = "waits for a leader of the control group"
	default:
		out.Progress = cmp.Or(a.cluster.PlanProgress(p.ID), "about to go on")
	}
	return out
}

// thePlan is a plan that is known still.
func thePlan(s *state.State, id uint64) (*state.Plan, error) {
	if p, ok := s.AnyPlan(fsm.PlanID(id)); ok {
		return p, nil
	}
	if id != 0 && id <= uint64(s.LastPlan) {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"plan %d has ended too long ago: see `quorate audit --object \"plan %d\"`", id, id)
	}
	return nil, quotaerr.New(quotaerr.InvalidArgument, "plan %d is not there: see `quorate partition list`", id)
}

// thePartition is a partition by its name. One that a plan has ended is told so.
func thePartition(s *state.State, name string) (*state.Partition, error) {
	for _, p := range s.Partitions {
		if p.ID.String() == name {
			return p, nil
		}
	}
	if name == control.GroupID {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"the control group owns no slots: name one of `quorate partition list`")
	}
	for _, p := range slices.Backward(s.Ended) {
		if p.Source.String() == name && p.Kind != state.PlanRestore && p.Phase == state.PlanDecided {
			return nil, quotaerr.New(quotaerr.InvalidArgument,
				"partition %s is no more, plan %d has moved its last slots to %s: see `quorate partition list`",
				name, p.ID, p.Destination)
		}
	}
	return nil, quotaerr.New(quotaerr.InvalidArgument, "partition %.63q is not there: see `quorate partition list`", name)
}
