package admin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	kindSplit   = quoratev1.PlanKind_PLAN_KIND_SPLIT
	kindMerge   = quoratev1.PlanKind_PLAN_KIND_MERGE
	kindMove    = quoratev1.PlanKind_PLAN_KIND_MOVE
	kindRecover = quoratev1.PlanKind_PLAN_KIND_RECOVER
)

// slots are one range, as it is asked for.
func slots(first, last uint32) []*quoratev1.SlotRange {
	return []*quoratev1.SlotRange{{FirstSlot: first, LastSlot: last}}
}

// startPlan asks for a plan.
func (n *node) startPlan(t *testing.T, req *quoratev1.StartPlanRequest) (*quoratev1.Plan, error) {
	t.Helper()
	out, err := n.StartPlan(t.Context(), ops, req)
	return out.GetPlan(), err
}

// mustStart begins a plan.
func (n *node) mustStart(t *testing.T, req *quoratev1.StartPlanRequest) *quoratev1.Plan {
	t.Helper()
	p, err := n.startPlan(t, req)
	must(t, err)
	return p
}

// mustEnd has a plan decided, or aborted, and closed.
func (n *node) mustEnd(t *testing.T, plan uint64, done bool) {
	t.Helper()
	last := &state.Command{Kind: state.KindAbortPlan, Plan: fsm.PlanID(plan), Comment: "it was in the way"}
	if done {
		same := [16]byte{9}
		last = &state.Command{
			Kind: state.KindDecidePlan, Plan: fsm.PlanID(plan), Decide: &state.Decide{Exported: same, Imported: same},
		}
	}
	must(t, second(n.control.Propose(t.Context(), last)))
	must(t, second(n.control.Propose(t.Context(), &state.Command{Kind: state.KindClosePlan, Plan: fsm.PlanID(plan)})))
}

// planned is a cluster of one node, with a policy in force and places for new partitions.
func planned(t *testing.T) (*cluster, *node) {
	t.Helper()
	c := newCluster(t, 1)
	c.replicas = []string{"a"}
	n := c.leader(t)
	n.mustApply(t, source(t, "p1", 3), 0)
	return c, n
}

// told is a plan in short.
func told(p *quoratev1.Plan) string {
	var ranges []string
	for _, r := range p.GetRanges() {
		ranges = append(ranges, fmt.Sprintf("%d-%d", r.GetFirstSlot(), r.GetLastSlot()))
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s %s>%s %s %s: %s %s", p.GetId(), p.GetKind(), p.GetSource(), p.GetDestination(),
		strings.Join(ranges, ","), p.GetPhase(), p.GetProgress(), p.GetMessage()))
}

// plans are the plans as they are listed, in short.
func (n *node) plans(t *testing.T) (out []string) {
	t.Helper()
	list, err := n.ListPlans(t.Context(), ops, &quoratev1.ListPlansRequest{})
	must(t, err)
	for _, p := range list.GetPlans() {
		out = append(out, told(p))
	}
	return out
}

// Shows plans from their beginning to their end as they are listed: a split of the upper half and one of named slots,
// a move, a merge, one undone; with who began each and why, what is being done, when it began and ended; and each in
// the audit trail.
func TestLifeOfPlans(t *testing.T) {
	c, n := planned(t)
	c.leaders["p1"], c.leaders["p2"] = "a", "a"
	split := n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p0", Comment: "hot"})
	if split.GetAuthor() != ops.Name || split.GetComment() != "hot" || split.GetStarted() == nil || split.GetEnded() != nil {
		t.Errorf("begun: %v", split)
	}
	c.progress = map[fsm.PlanID]string{1: "pulling, 3 MiB so far"}
	want := []string{"1 PLAN_KIND_SPLIT p0>p1 8192-16383 open: pulling, 3 MiB so far"}
	if diff := cmp.Diff(want, n.plans(t)); diff != "" {
		t.Fatal(diff)
	}
	c.progress = nil
	n.mustEnd(t, 1, true)
	n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p0", Ranges: slots(100, 199)})
	n.mustEnd(t, 2, true)
	n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindMove, Source: "p1", Destination: "p2", Ranges: []*quoratev1.SlotRange{
		{FirstSlot: 9000, LastSlot: 9099}, {FirstSlot: 8192, LastSlot: 8192}, {FirstSlot: 9100, LastSlot: 9101},
	}})
	abort := &quoratev1.AbortPlanRequest{Plan: 3}
	must(t, second(n.AbortPlan(t.Context(), ops, abort)))
	must(t, second(n.AbortPlan(t.Context(), ops, abort))) // again
	must(t, second(n.control.Propose(t.Context(), &state.Command{Kind: state.KindClosePlan, Plan: 3})))
	must(t, second(n.AbortPlan(t.Context(), ops, abort))) // and once it is undone
	n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindMerge, Source: "p2", Destination: "p1"})
	n.mustEnd(t, 4, true)
	n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p1"})
	want = []string{
		"5 PLAN_KIND_SPLIT p1>p3 12238-16383 open: about to go on",
		"4 PLAN_KIND_MERGE p2>p1 100-199 done:",
		"3 PLAN_KIND_MOVE p1>p2 8192-8192,9000-9101 undone:  aborted by admin/ops",
		"2 PLAN_KIND_SPLIT p0>p2 100-199 done:",
		"1 PLAN_KIND_SPLIT p0>p1 8192-16383 done:",
	}
	if diff := cmp.Diff(want, n.plans(t)); diff != "" {
		t.Error(diff)
	}
	one, err := n.ListPlans(t.Context(), ops, &quoratev1.ListPlansRequest{Plan: 2})
	if err != nil || len(one.GetPlans()) != 1 || one.GetPlans()[0].GetId() != 2 || one.GetPlans()[0].GetEnded() == nil {
		t.Errorf("one alone: %v %v", one, err)
	}
	trail := []string{
		"admin/ops plan.start partition p0: done", " plan.decide plan 1: done", " plan.close plan 1: done",
		"admin/ops plan.start partition p0: done", " plan.decide plan 2: done", " plan.close plan 2: done",
		"admin/ops plan.start partition p1 to p2: done", "admin/ops plan.abort plan 3: done", " plan.close plan 3: done",
		"admin/ops plan.start partition p2 to p1: done", " plan.decide plan 4: done", " plan.close plan 4: done",
		"admin/ops plan.start partition p1: done",
	}
	if diff := cmp.Diff(trail, n.trail(t, uint32(len(trail)))); diff != "" {
		t.Error(diff)
	}
}

// Shows each plan that is refused: the answer names the object and what to do, nothing is changed, and it is in the
// audit trail.
func TestPlansThatAreRefused(t *testing.T) {
	c, n := planned(t)
	c.leaders["p1"], c.leaders["p2"] = "a", "a"
	n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p0"})
	n.mustEnd(t, 1, true) // p0 has 0-8191, p1 the rest
	n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p1", Ranges: slots(16383, 16383)})
	n.mustEnd(t, 2, true) // p2 has 16383
	for what, req := range map[string]*quoratev1.StartPlanRequest{
		"say split, merge":                            {Source: "p0"},
		"`quorate snapshot restore`":                  {Kind: quoratev1.PlanKind_PLAN_KIND_RESTORE, Source: "p0"},
		`"p7" is not there: see ` + "`quorate":        {Kind: kindSplit, Source: "p7"},
		"control group owns no slots":                 {Kind: kindSplit, Source: "control"},
		"partition p2 owns a single slot":             {Kind: kindSplit, Source: "p2"},
		"are all that p0 owns: a split":               {Kind: kindSplit, Source: "p0", Ranges: slots(0, 8191)},
		"`quorate partition merge p0 p1`":             {Kind: kindMove, Source: "p0", Destination: "p1", Ranges: slots(0, 8191)},
		"slots 8192-9000 are p1's, not p0's":          {Kind: kindSplit, Source: "p0", Ranges: slots(8000, 9000)},
		"from 0 to 16383":                             {Kind: kindSplit, Source: "p0", Ranges: slots(0, 16384)},
		"the lower first":                             {Kind: kindSplit, Source: "p0", Ranges: slots(7, 5)},
		"have some in common":                         {Kind: kindSplit, Source: "p0", Ranges: append(slots(1, 5), slots(5, 6)...)},
		"name the slots that are to move from p0":     {Kind: kindMove, Source: "p0", Destination: "p1"},
		"destination: a plan to split":                {Kind: kindSplit, Source: "p0", Destination: "p1"},
		"both p0: name two partitions":                {Kind: kindMerge, Source: "p0", Destination: "p0"},
		`"" is not there`:                             {Kind: kindMerge, Source: "p0"},
		"a plan to merge moves all slots of p0":       {Kind: kindMerge, Source: "p0", Destination: "p1", Ranges: slots(0, 1)},
		"node and accept_loss belong to a recovery":   {Kind: kindSplit, Source: "p0", Node: "a"},
		"node: name the one whose replica of p0":      {Kind: kindRecover, Source: "p0"},
		`node "x" is not known`:                       {Kind: kindRecover, Source: "p0", Node: "x"},
		"partition p0 is led by a, so it has":         {Kind: kindRecover, Source: "p0", Node: "a"},
		"comment: use at most":                        {Kind: kindSplit, Source: "p0", Comment: strings.Repeat("c", state.MaxCommentBytes+1)},
		"ranges: a plan to recover moves all slots":   {Kind: kindRecover, Source: "p0", Node: "a", Ranges: slots(0, 1)},
		"belong to a recovery: a plan to move":        {Kind: kindMove, Source: "p0", Destination: "p1", Ranges: slots(1, 1), AcceptLoss: true},
		"ranges: there are 16385, at most 16384 are ": {Kind: kindSplit, Source: "p0", Ranges: make([]*quoratev1.SlotRange, fsm.NumSlots+1)},
	} {
		before := n.control.State()
		_, err := n.startPlan(t, req)
		wantReason(t, err, quotaerr.InvalidArgument, what)
		if err != nil && !strings.Contains(err.Error(), what) {
			t.Errorf("%q is not in: %v", what, err)
		}
		now := n.control.State()
		if now.LastPlan != before.LastPlan || now.AuditCount != before.AuditCount+1 {
			t.Errorf("%s: plan %d after %d, %d records more", what, now.LastPlan, before.LastPlan, now.AuditCount-before.AuditCount)
		}
		if got := n.trail(t, 1)[0]; !strings.HasPrefix(got, "admin/ops plan.start partition ") || !strings.HasSuffix(got, ": refused") {
			t.Errorf("%s: the trail has %s", what, got)
		}
	}
}

// Shows what is refused for what else is going on: ends that are in a plan, with how to undo it while it can be, a
// partition that was merged away, one without a leader, no node for a replica, no policy; and what can be aborted when.
func TestPlansInEachOthersWay(t *testing.T) {
	c, n := planned(t)
	c.leaders["p1"] = "a"
	refused := func(req *quoratev1.StartPlanRequest, reason quotaerr.Reason, want string) {
		t.Helper()
		_, err := n.startPlan(t, req)
		wantReason(t, err, reason, want)
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	abort := func(plan uint64, want string) {
		t.Helper()
		_, err := n.AbortPlan(t.Context(), ops, &quoratev1.AbortPlanRequest{Plan: plan})
		wantReason(t, err, quotaerr.InvalidArgument, want)
		if err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
		if got := n.trail(t, 1)[0]; got != fmt.Sprintf("admin/ops plan.abort plan %d: refused", plan) {
			t.Errorf("the trail has %s", got)
		}
	}
	splits := &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p0"}
	c.replicas = nil
	refused(splits, quotaerr.InvalidArgument, "no node can take a replica of a new partition")
	c.replicas, c.down["b"] = []string{"a", "b"}, 3*time.Second
	refused(splits, quotaerr.InvalidArgument, "node b, which has not answered for 3s: start it, or have others take its "+
		"place with `quorate node drain b`")
	c.replicas = []string{"a"}
	delete(c.leaders, "p0")
	refused(splits, quotaerr.NoQuorum, "`quorate partition recover p0 --from NODE`")
	c.leaders["p0"] = "a"

	n.mustStart(t, splits)
	refused(splits, quotaerr.InvalidArgument, "partition p0 is in plan 1 (split, by admin/ops): wait for it, see "+
		"`quorate partition list`, or undo it with `quorate partition abort 1`")
	delete(c.leaders, "p0")
	refused(&quoratev1.StartPlanRequest{Kind: kindRecover, Source: "p0", Node: "a"}, quotaerr.InvalidArgument, "abort 1`")
	c.leaders["p0"] = "a"
	same := [16]byte{1}
	must(t, second(n.control.Propose(t.Context(), &state.Command{
		Kind: state.KindDecidePlan, Plan: 1, Decide: &state.Decide{Exported: same, Imported: same},
	})))
	abort(1, "plan 1 is decided, its slots are p1's already: wait until it is done")
	refused(&quoratev1.StartPlanRequest{Kind: kindMerge, Source: "p1", Destination: "p0"}, quotaerr.InvalidArgument,
		"partition p1 is in plan 1 (split), which is decided: wait until it has ended")
	must(t, second(n.control.Propose(t.Context(), &state.Command{Kind: state.KindClosePlan, Plan: 1})))
	abort(1, "plan 1 is done, p1 owns its slots: move them back by another plan")
	refused(&quoratev1.StartPlanRequest{
		Kind: kindMove, Source: "p1", Destination: "p0", Ranges: append(slots(7, 9), slots(1, 6)...), Comment: "noon",
	}, quotaerr.InvalidArgument, "slots 1-9 are p0's")
	found, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Limit: 1})
	must(t, err)
	if r := found.GetRecords()[0]; r.GetComment() != "noon" || r.GetDifference() != "move: slots 1-9" ||
		r.GetObject() != "partition p1 to p0" || !strings.Contains(r.GetMessage(), "slots 1-9 are p0's") {
		t.Errorf("of a refusal the trail has %v", r)
	}
	abort(2, "plan 2 is not there")
	abort(0, "plan 0 is not there")

	n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindMerge, Source: "p1", Destination: "p0"})
	n.mustEnd(t, 2, true)
	refused(&quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p1"}, quotaerr.InvalidArgument,
		"partition p1 is no more, plan 2 has moved its last slots to p0")
	_, err = n.ListPlans(t.Context(), ops, &quoratev1.ListPlansRequest{Plan: 9})
	wantReason(t, err, quotaerr.InvalidArgument, "an unknown plan")

	bare := newCluster(t, 1)
	bare.replicas = []string{"a"}
	_, err = bare.leader(t).startPlan(t, splits)
	wantReason(t, err, quotaerr.InvalidArgument, "no policy")
}

// Shows that a partition is made anew only of a replica on a node that answers and is to hold one, and how the plan
// tells whose and that the loss was accepted, also in the audit trail.
func TestRecover(t *testing.T) {
	c := newCluster(t, 3)
	c.replicas = []string{"a", "b", "c"}
	n := c.leader(t)
	n.mustApply(t, source(t, "p1", 3), 0)
	delete(c.leaders, "p0")
	from := c.follower(t).id
	req := &quoratev1.StartPlanRequest{Kind: kindRecover, Source: "p0", Node: from, AcceptLoss: true, Comment: "two disks"}
	c.down[from] = time.Minute
	_, err := n.startPlan(t, req)
	wantReason(t, err, quotaerr.InvalidArgument, "its node is down")
	delete(c.down, from)
	p := n.mustStart(t, req)
	if got := told(p); got != "1 PLAN_KIND_RECOVER p0>p1 0-16383 open: about to go on" || p.GetNode() != from || !p.GetAcceptLoss() {
		t.Errorf("%s from %s, %v", got, p.GetNode(), p.GetAcceptLoss())
	}
	found, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Limit: 1})
	must(t, err)
	r := found.GetRecords()[0]
	if r.GetAction() != "plan.start" || r.GetActor() != ops.Name || r.GetComment() != "two disks" ||
		!strings.Contains(r.GetDifference(), "--accept-loss") || !strings.Contains(r.GetDifference(), "replica of p0 on "+from) {
		t.Errorf("the trail has %v", r)
	}
}

// Shows that a partition is recovered out of a plan that was aborted and waits for it, by one recovery at a time, and
// that the plan stays under way.
func TestRecoverOutOfAPlan(t *testing.T) {
	c, n := planned(t)
	n.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p0"})
	must(t, second(n.AbortPlan(t.Context(), ops, &quoratev1.AbortPlanRequest{Plan: 1, Comment: "no answer"})))
	delete(c.leaders, "p0")
	req := &quoratev1.StartPlanRequest{Kind: kindRecover, Source: "p0", Node: "a"}
	n.mustStart(t, req)
	_, err := n.startPlan(t, req)
	wantReason(t, err, quotaerr.InvalidArgument, "it is being recovered")
	if !strings.Contains(err.Error(), "abort 2`") {
		t.Error(err)
	}
	must(t, second(n.AbortPlan(t.Context(), ops, &quoratev1.AbortPlanRequest{Plan: 2})))
	n.mustStart(t, req)
	if s := n.control.State(); len(s.Plans) != 3 || s.Partitions[0].Plan != 1 {
		t.Errorf("%d plans, %+v", len(s.Plans), s.Partitions[0])
	}
}

// Shows that a node that does not lead the control group names the one that does, whose progress it is to tell; and
// that without any leader the plans are told as they were, with what they wait for.
func TestPlansAreTheLeadersToTell(t *testing.T) {
	c := newCluster(t, 3)
	c.replicas = []string{"a", "b", "c"}
	leader := c.leader(t)
	leader.mustApply(t, source(t, "p1", 3), 0)
	leader.mustStart(t, &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p0"})
	last := c.follower(t)
	_, err := last.ListPlans(t.Context(), ops, &quoratev1.ListPlansRequest{})
	wantReason(t, err, quotaerr.NotLeader, "on another node")
	_, err = last.startPlan(t, &quoratev1.StartPlanRequest{Kind: kindSplit, Source: "p0"})
	wantReason(t, err, quotaerr.NotLeader, "on another node")
	eventually(t, "the follower knows of it", func() bool { return len(last.control.State().Plans) == 1 })
	for _, n := range c.nodes {
		if n != last {
			must(t, n.control.Close())
		}
	}
	eventually(t, "it tells what it waits for", func() bool {
		list, err := last.ListPlans(t.Context(), ops, &quoratev1.ListPlansRequest{})
		if quotaerr.ReasonOf(err) == quotaerr.NotLeader {
			return false // it takes the old one for the leader still
		}
		must(t, err)
		return list.GetPlans()[0].GetProgress() == "waits for a leader of the control group"
	})
}
