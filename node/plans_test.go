package node

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/node/admin"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// callers ask each of some nodes for more than there is, each decision id at two of them, and count what is wrong: any
// error, a second verdict for an id, more than the cap.
type callers struct {
	t       *testing.T
	errs    bool // errors are to be expected
	nodes   []quoratev1.QuotaClient
	stop    context.CancelFunc
	callers sync.WaitGroup

	mu       sync.Mutex // guards the fields below
	asked    int
	slowest  time.Duration
	verdicts map[string]map[string]bool // by principal and decision id
}

// capped are the principals, each of which is to be allowed three times.
const capped = 30

// mustCall begins to call nodes. errs says whether errors are to be expected: then they are asked again.
func mustCall(t *testing.T, configs []*Config, errs bool) *callers {
	t.Helper()
	c := &callers{t: t, errs: errs, verdicts: map[string]map[string]bool{}}
	for _, cfg := range configs {
		conn, err := grpc.NewClient("passthrough:///"+cfg.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		c.nodes = append(c.nodes, quoratev1.NewQuotaClient(conn))
	}
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	for caller := range 6 {
		c.callers.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				principal, id := fmt.Sprint("u", (k+caller)%capped), fmt.Sprintf("%d-%d", caller, k)
				for again := range 2 {
					for ctx.Err() == nil && !c.ask(ctx, c.nodes[(k+again)%len(c.nodes)], principal, id) && errs {
						pauseFor(ctx, 20*time.Millisecond, nil)
					}
				}
			}
		})
	}
	return c
}

// ask asks once; false is an error.
func (c *callers) ask(ctx context.Context, node quoratev1.QuotaClient, principal, id string) bool {
	call, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	began := time.Now()
	d, err := node.CheckAndConsume(call, &quoratev1.CheckRequest{
		Principal: principal, ApiClass: "convert", DecisionId: id,
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil {
		return true
	}
	if err != nil {
		if !c.errs {
			c.t.Errorf("%s of %s: %v", id, principal, err)
		}
		return false
	}
	c.asked++
	c.slowest = max(c.slowest, time.Since(began))
	allowed := d.GetOutcome() == quoratev1.Outcome_OUTCOME_ALLOWED
	of := c.verdicts[principal]
	if of == nil {
		of = map[string]bool{}
		c.verdicts[principal] = of
	}
	if was, known := of[id]; known && was != allowed {
		c.t.Errorf("%s of %s: allowed %t, then %t", id, principal, was, allowed)
	}
	of[id] = allowed
	return true
}

// progress waits for so many answers more.
func (c *callers) progress(n int) {
	c.t.Helper()
	count := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.asked
	}
	from := count()
	eventually(c.t, "checks are answered", func() bool { return count() >= from+n }, func() any { return count() - from })
}

// end stops the callers and counts.
func (c *callers) end() {
	c.t.Helper()
	c.stop()
	c.callers.Wait()
	for principal, of := range c.verdicts {
		allowed := 0
		for _, was := range of {
			if was {
				allowed++
			}
		}
		if allowed != 3 {
			c.t.Errorf("%s: %d of %d were allowed, want 3", principal, allowed, len(of))
		}
	}
	c.t.Logf("%d checks were answered, the slowest after %s", c.asked, c.slowest)
}

// controlLeader is the node that leads the control group.
func controlLeader(t *testing.T, nodes []*running) (leader *running) {
	t.Helper()
	eventually(t, "the control group has a leader", func() bool {
		for _, n := range nodes {
			if r := n.hosted.of(controlID); r != nil && r.leads() && n.control() != nil {
				leader = n
				return true
			}
		}
		return false
	}, func() any { return nil })
	return leader
}

// mustStart begins a plan.
func mustStart(t *testing.T, nodes []*running, start state.StartPlan) (plan *state.Plan) {
	t.Helper()
	eventually(t, "a plan begins", func() bool {
		n := controlLeader(t, nodes)
		if start.Kind == state.PlanSplit {
			start.New = (*cluster)(n.Node).PlanReplicas()
		}
		r, err := n.control().Propose(t.Context(), &state.Command{Kind: state.KindStartPlan, Actor: "test", Start: &start})
		if err == nil {
			plan, _ = n.control().State().Plan(r.Plan)
		}
		return err == nil && plan != nil
	}, func() any { return start })
	return plan
}

// untilEnded waits until a plan has ended, as each node knows it, and returns it.
func untilEnded(t *testing.T, nodes []*running, id fsm.PlanID) (ended *state.Plan) {
	t.Helper()
	for _, n := range nodes {
		eventually(t, fmt.Sprintf("plan %d has ended at %s", id, n.cfg.ID), func() bool {
			if n.control() == nil {
				return false
			}
			p, ok := n.control().State().AnyPlan(id)
			ended = p
			return ok && p.Closed
		}, func() any { return (*cluster)(controlLeader(t, nodes).Node).PlanProgress(id) })
	}
	return ended
}

// mustBeGone waits until nothing is left of a partition on any node.
func mustBeGone(t *testing.T, nodes []*running, id string) {
	t.Helper()
	for _, n := range nodes {
		left := func() (out []string) {
			for _, path := range []string{filepath.Join(groupsFolder, id), filepath.Join(memoryFolder, id+".json")} {
				if exists(filepath.Join(n.cfg.DataDir, path)) {
					out = append(out, path)
				}
			}
			if n.hosted.of(id) != nil || n.claim.Has(id) {
				out = append(out, "the claim")
			}
			return out
		}
		eventually(t, n.cfg.ID+" has nothing of "+id, func() bool { return len(left()) == 0 }, func() any { return left() })
	}
}

// owners are the partitions and how many slots each owns.
func owners(n *running) map[string]int {
	out := map[string]int{}
	for _, p := range n.control().State().Partitions {
		id := p.ID.String()
		out[id] = 0
		for _, r := range p.Ranges {
			out[id] += int(r.Last-r.First) + 1
		}
	}
	return out
}

// Shows a partition being split, slots moved between two, two merged, and a plan undone, on three nodes under a load of
// contended checks: no check fails or waits for long, no principal gets more than its cap, no decision id two verdicts;
// a partition that has ended leaves nothing on any node; and all of it is so again after a restart of all.
func TestPlans(t *testing.T) {
	configs := mustConfigs(t, 3)
	start := func() (nodes []*running) {
		for _, cfg := range configs {
			nodes = append(nodes, mustRun(t, cfg))
		}
		return nodes
	}
	nodes := start()
	mustInit(t, nodes, 2)
	untilReady(t, nodes...)
	eventually(t, "three voters each", func() bool { return settled(nodes[0], 2, 3) }, func() any { return standings(nodes[0]) })
	calls := mustCall(t, configs, false)
	calls.progress(4 * capped)

	p0, _ := nodes[0].control().State().Partition(0)
	split := mustStart(t, nodes, state.StartPlan{Kind: state.PlanSplit, Source: 0, Ranges: p0.UpperHalf()})
	if p := untilEnded(t, nodes, split.ID); p.Standing() != "done" {
		t.Fatalf("the split: %+v", p)
	}
	calls.progress(capped)
	moved := []fsm.SlotRange{{First: 9000, Last: 9999}, {First: 12000, Last: 12000}}
	for done := false; !done; {
		move := mustStart(t, nodes, state.StartPlan{Kind: state.PlanMove, Source: 1, Destination: 2, Ranges: moved})
		between := controlLeader(t, nodes).control().State().RevisionNumber() == 1
		if between {
			mustPublish(t, controlLeader(t, nodes), 1, "v2", 3)
		}
		// It waits for the policy, or the policy for it; or the policy has come to one end, and can to the other no more.
		p := untilEnded(t, nodes, move.ID)
		if done = p.Standing() == "done"; !done && (!between || !strings.Contains(p.Message, "policy revision 2")) {
			t.Fatalf("the move: %+v", p)
		}
	}
	calls.progress(capped)
	for _, id := range []string{"p0", "p1", "p2"} {
		eventually(t, id+" has the policy", func() bool {
			a, err := (*cluster)(nodes[0].Node).PartitionPolicy(t.Context(), id)
			return err == nil && a.GetInstalled() == 2
		}, func() any { return nil })
	}
	want := map[string]int{"p0": 4096, "p1": 8192 - 1001, "p2": 4096 + 1001}
	if got := owners(nodes[1]); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("owners are %v, want %v", got, want)
	}
	undone := mustStart(t, nodes, state.StartPlan{Kind: state.PlanMerge, Source: 1, Destination: 0})
	_, err := controlLeader(t, nodes).control().Propose(t.Context(), &state.Command{
		Kind: state.KindAbortPlan, Actor: "test", Plan: undone.ID, Comment: "it was a mistake",
	})
	if err != nil {
		t.Fatalf("the abort: %v", err)
	}
	if p := untilEnded(t, nodes, undone.ID); p.Standing() != "undone" || p.Message != "it was a mistake" {
		t.Fatalf("the plan that was aborted: %+v", p)
	}
	merge := mustStart(t, nodes, state.StartPlan{Kind: state.PlanMerge, Source: 2, Destination: 1})
	if p := untilEnded(t, nodes, merge.ID); p.Standing() != "done" {
		t.Fatalf("the merge: %+v", p)
	}
	mustBeGone(t, nodes, "p2")
	calls.progress(4 * capped)
	calls.end()
	want = map[string]int{"p0": 4096, "p1": 12288}
	if got := owners(nodes[1]); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("owners are %v, want %v", got, want)
	}
	mustEnd(t, nodes...)
	nodes = start()
	untilReady(t, nodes...)
	for k := range capped {
		if mustDecide(t, nodes, fmt.Sprint("u", k), "after the restart") {
			t.Errorf("u%d is allowed once more", k)
		}
	}
	mustEnd(t, nodes...)
}

// Shows that plans end although all nodes are stopped in the middle of them, and go on when they are started again: the
// plan is done or undone, who owns the slots is as it says, and no principal gets more than its cap.
func TestPlansThroughRestarts(t *testing.T) {
	configs := mustConfigs(t, 3)
	start := func() (nodes []*running) {
		for _, cfg := range configs {
			nodes = append(nodes, mustRun(t, cfg))
		}
		return nodes
	}
	nodes := start()
	mustInit(t, nodes, 1)
	untilReady(t, nodes...)
	eventually(t, "three voters", func() bool { return settled(nodes[0], 1, 3) }, func() any { return standings(nodes[0]) })
	calls := mustCall(t, configs, true)
	calls.progress(2 * capped)
	interrupted := 0
	for _, at := range []string{"look", "pull", "seal", "activate"} {
		p0, _ := nodes[0].control().State().Partition(0)
		plan := mustStart(t, nodes, state.StartPlan{Kind: state.PlanSplit, Source: 0, Ranges: p0.UpperHalf()})
		leader := controlLeader(t, nodes)
		for begun := time.Now(); time.Since(begun) < patience; {
			s, changed := leader.control().Changed()
			p, ok := s.AnyPlan(plan.ID)
			if !ok || p.Closed || strings.HasPrefix((*cluster)(leader.Node).PlanProgress(plan.ID), at) {
				break
			}
			pauseFor(t.Context(), time.Millisecond, changed) // a step takes a few, so one may be missed
		}
		controls := []*control.Control{nodes[0].control(), nodes[1].control(), nodes[2].control()}
		mustEnd(t, nodes...)
		if !slices.ContainsFunc(controls, func(c *control.Control) bool { // as they knew it last
			p, ok := c.State().AnyPlan(plan.ID)
			return ok && p.Closed
		}) {
			interrupted++
		}
		nodes = start()
		ended := untilEnded(t, nodes, plan.ID)
		id := ended.Destination.String()
		if has := owners(nodes[0])[id] > 0; has != (ended.Standing() == "done") {
			t.Errorf("stopped at %s: the plan is %s, and %s owns %d slots", at, ended.Standing(), id, owners(nodes[0])[id])
		}
		if ended.Standing() == "undone" {
			mustBeGone(t, nodes, id)
		}
		t.Logf("stopped at %s: %s, %s", at, ended.Standing(), ended.Message)
		calls.progress(capped)
	}
	if interrupted == 0 {
		t.Error("no plan was under way when the nodes were stopped")
	}
	calls.end()
	mustEnd(t, nodes...)
}

// Shows that partitions which lost their majority for good are made anew of the replica that is left, under the policy
// that this has, although a later one is in force: with the loss given up they go on with the usage that it knows,
// without that they deny everything at first; and that the lost nodes, when they come back after all, decide nothing,
// and keep nothing of the old partitions.
func TestRecover(t *testing.T) {
	configs := mustConfigs(t, 5)
	var nodes []*running
	for _, cfg := range configs {
		nodes = append(nodes, mustRun(t, cfg))
	}
	mustInit(t, nodes, 2) // p0 on n0, n1 and n2; p1 on n1, n2 and n3
	untilReady(t, nodes...)
	eventually(t, "three voters each", func() bool { return settled(nodes[0], 2, 3) }, func() any { return standings(nodes[0]) })
	of := map[string][]string{}
	for k := 0; len(of["p0"]) < 3 || len(of["p1"]) < 3; k++ {
		principal := fmt.Sprint("r", k)
		route, _ := nodes[0].routes.Lookup(principal)
		of[route.Partition] = append(of[route.Partition], principal)
		for i := range 2 {
			if !mustDecide(t, nodes, principal, fmt.Sprint(i)) {
				t.Fatalf("%s is denied", principal)
			}
		}
	}
	for id, at := range map[string][]int{"p0": {0, 1, 2}, "p1": {1, 2, 3}} { // what a replica has not applied is lost
		eventually(t, "all replicas of "+id+" have applied the same", func() bool {
			first := nodes[at[0]].hosted.of(id).partition.Load().Status()
			return !slices.ContainsFunc(at, func(k int) bool {
				s := nodes[k].hosted.of(id).partition.Load().Status()
				return s.Digest != first.Digest || s.Keys == 0
			})
		}, func() any { return nil })
	}
	mustEnd(t, nodes[1:3]...)
	left := []*running{nodes[0], nodes[3], nodes[4]}
	leader := controlLeader(t, left)
	for _, id := range []string{"n1", "n2"} {
		eventually(t, id+" is down", func() bool { return leader.down(id) > 0 }, func() any { return nil })
	}
	mustPublish(t, leader, 1, "v2", 4)
	var plans []*state.Plan
	for source, start := range []state.StartPlan{{From: "n0"}, {From: "n3", AcceptLoss: true}} {
		start.Kind, start.Source = state.PlanRecover, state.PartitionID(source)
		start.New = (*cluster)(leader.Node).PlanReplicas()
		plans = append(plans, mustStart(t, left, start))
	}
	for _, plan := range plans {
		if p := untilEnded(t, left, plan.ID); p.Standing() != "done" {
			t.Fatalf("the recovery: %+v", p)
		}
	}
	untilReady(t, left...)
	for i := 1; i <= 2; i++ {
		nodes[i] = mustRun(t, configs[i])
	}
	mustBeGone(t, nodes, "p0")
	mustBeGone(t, nodes, "p1")
	for k := range 3 {
		if mustDecide(t, nodes, of["p0"][k], "new") {
			t.Errorf("%s is allowed, although admissions may be lost", of["p0"][k])
		}
		for i := range 4 { // two of four are used up
			if allowed := mustDecide(t, nodes, of["p1"][k], fmt.Sprint("new-", i)); allowed != (i < 2) {
				t.Errorf("%s: check %d is allowed: %t", of["p1"][k], i, allowed)
			}
		}
	}
	mustEnd(t, nodes...)
}

// Shows that a partition whose keys have reached the configured mark is split in two, once, in the cluster's own name.
func TestSplitByMark(t *testing.T) {
	cfg := mustConfigs(t, 1)[0]
	cfg.Placement.Replicas, cfg.Placement.SplitKeys = 1, 30
	n := mustRun(t, cfg)
	mustInit(t, []*running{n}, 1)
	untilReady(t, n)
	for k := range 40 {
		if !mustDecide(t, []*running{n}, fmt.Sprint("s", k), "1") {
			t.Fatal("a first check is denied")
		}
		if k == 28 && len(n.control().State().Plans)+len(n.control().State().Ended) > 0 {
			t.Error("it was split below the mark")
		}
	}
	eventually(t, "it was split", func() bool {
		s := n.control().State()
		return len(s.Ended) == 1 && len(s.Plans) == 0 && len(s.Partitions) == 2
	}, func() any { return n.control().State().Plans })
	s := n.control().State()
	if p := s.Ended[0]; p.Standing() != "done" || p.Author != admin.ItselfName || !strings.Contains(p.Comment, "the marks are 30") {
		t.Errorf("%+v", p)
	}
	keys := func() (of []int64) {
		for _, p := range n.ledHere() {
			of = append(of, p.Load().Keys)
		}
		return of
	}
	eventually(t, "each has some of the keys, and both have all", func() bool { // what has moved goes bit by bit
		of := keys()
		return len(of) == 2 && of[0] > 0 && of[1] > 0 && of[0]+of[1] == 40
	}, func() any { return keys() })
	mustEnd(t, n)
}
