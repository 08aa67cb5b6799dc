package cluster

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

// moveCase is one plan that does not go undisturbed.
type moveCase struct {
	kind   string // what `partition` calls it
	step   string // before which its driver is held
	abort  bool   // the plan is aborted while the driver is held
	target string // whom the fault is for
	fault  string
}

// Whom faults are for.
const (
	driver      = "driver"
	source      = "source" // the leader of the partition that has the slots
	destination = "destination"
)

// What befalls them.
const (
	kill = "kill" // with SIGKILL, to be started again when the plan has ended
	stop = "stop" // with SIGSTOP, for some seconds
	cut  = "cut"  // off the network, for some seconds
)

var (
	moveKinds   = []string{"split", "merge", "move"}
	moveTargets = []string{driver, source, destination}
	moveFaults  = []string{kill, stop, cut}
	// moveSteps are all that a plan takes, in order; undecided are those of them before which it can be aborted.
	moveSteps = []string{"pull", "freeze", "open", "seal", "decide", "activate", "release", "close"}
	undecided = moveSteps[:5]
)

// moveCases enumerates all that there is. Each third of it has all but for the kinds, which take turns.
func moveCases() (cases []moveCase) {
	for shift := range moveKinds {
		next := shift
		add := func(k moveCase) {
			k.kind = moveKinds[next%len(moveKinds)]
			next++
			cases = append(cases, k)
		}
		for _, target := range moveTargets {
			for _, fault := range moveFaults {
				for _, step := range moveSteps {
					add(moveCase{step: step, target: target, fault: fault})
				}
				for _, step := range undecided {
					add(moveCase{step: step, abort: true, target: target, fault: fault})
				}
			}
		}
	}
	return cases
}

// name is the test's.
func (k moveCase) name() string {
	step := k.step
	if k.abort {
		step += "-abort"
	}
	return strings.Join([]string{k.kind, step, k.target, k.fault}, "/")
}

// mustEndDone reports whether the plan has been decided when the fault comes.
func (k moveCase) mustEndDone() bool { return !slices.Contains(undecided, k.step) }

// movePolicy is the basic one with a class whose window is longer than any run: whoever has used it up has done so for
// good, wherever his slot goes.
func movePolicy() history.Policy {
	p := basic()
	p.Classes["ledger"] = history.Class{Limits: []history.Limit{{Name: "ledger", Max: 12, Window: history.Window(24 * time.Hour)}}}
	return p
}

// moveLoad asks for more than movePolicy has, of a few principals most, and repeats old checks.
func moveLoad() LoadOptions {
	return LoadOptions{
		Clients: 10, Principals: 40, Hot: 6, Echo: 4, Pause: 60 * time.Millisecond,
		Classes: []string{"strict", "strict", "wide", "misc", "other", "ledger", "ledger"},
	}
}

// chaosMoves is for how long cases are begun without QUORATE_MOVES.
const chaosMoves = time.Minute

// TestMoves shows that slots move between partitions whatever befalls those that move them: before every single step of a
// plan its driver is held, and it, the source's leader or the destination's is killed, stopped or cut off, with and
// without an abort. Every plan ends, done or cleanly undone; a driver that is late changes nothing; each slot has one
// owner, and its epoch rises when that changes and only then; all replicas have the same; no cap is broken, no decision
// id is admitted twice, and what each principal has used is neither less nor more than before.
//
// Without QUORATE_MOVES=all it runs cases in random order for a minute.
func TestMoves(t *testing.T) {
	binary, err := process.ChaosProgram()
	must(t, err)
	w := mustWorld(t, Options{
		Binary: binary, Nodes: 5, First: 5, Partitions: 3, Policy: movePolicy(), Cuts: true, Moves: true,
	}, moveLoad())
	w.mustControlVoters(5)
	m := &movers{world: w, outcomes: map[string]int{}}
	cases, all := moveCases(), os.Getenv("QUORATE_MOVES") == "all"
	if !all {
		w.rand.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	}
	begun := w.load.Now()
	for _, k := range cases {
		if !all && w.load.Now()-begun > chaosMoves {
			break
		}
		fit := m.fit(k)
		t.Run(fit.name(), func(t *testing.T) {
			w.t = t
			m.mustMove(fit)
		})
		w.t = t
		if m.moved {
			m.moved = false
			m.mustMend()
			m.mustHaveNoPlan()
			w.load.Renew(2)
			m.ran++
			m.partitions = 0
		}
	}
	w.say("moves: %d cases of %d ran in %v: %v; in %d the fault was for a node that had more than one part",
		m.ran, len(cases), (w.load.Now() - begun).Round(time.Second), m.outcomes, m.shared)
	must(t, w.load.AskEach(within(t, 5*time.Minute), "ledger", w.rand, true))
	r := w.mustHold()
	if r.Exact < 100 {
		t.Errorf("too few sums could be compared exactly to be worth anything: %v", r)
	}
	must(t, w.AwaitAgreement(within(t, 60*time.Second)))
}

// movers runs cases, one after another, on one cluster.
type movers struct {
	*world
	ran        int
	outcomes   map[string]int
	shared     int   // faults for a node that had more than one part in the plan
	applied    int   // policies
	partitions int   // how many there are; 0: that has to be asked
	moved      bool  // a case was begun, and is not cleared up
	faulted    *Node // nil once it is well again
}

// fit makes the kind of a case one that leaves neither too few partitions nor too many.
func (m *movers) fit(k moveCase) moveCase {
	m.t.Helper()
	if m.partitions == 0 {
		s, err := m.Status(within(m.t, 30*time.Second))
		must(m.t, err)
		m.partitions = len(s.Partitions)
	}
	switch {
	case m.partitions <= 2 && k.kind == "merge":
		k.kind = "split"
	case m.partitions >= 5 && k.kind == "split":
		k.kind = "merge"
	}
	return k
}

// mustMove runs a case.
func (m *movers) mustMove(k moveCase) {
	m.t.Helper()
	m.moved = true
	before, err := m.Slots(within(m.t, 30*time.Second))
	must(m.t, err)
	args, from := m.arrange(k, before)
	// Where the fault is for the driver, all of it stands still, but for one that is to hear of an abort and die.
	alone := k.target != driver || k.abort && k.fault == kill
	must(m.t, m.Hold("plan."+k.step, alone))
	id, err := m.StartPlan(within(m.t, 30*time.Second), args...)
	must(m.t, err)
	held := m.mustHeld(k, id, alone)
	m.say("plan %d, %v: %s, its driver, is held before %s", id, args, held.ID, k.step)
	target := held
	switch k.target {
	case source:
		target = m.leader(from)()
	case destination:
		plan, err := m.Plan(within(m.t, 20*time.Second), id)
		must(m.t, err)
		target = m.leader(plan.Destination)()
	}
	if k.target != driver && target == held {
		m.shared++
	}
	published := m.publish()
	m.say("%s of %s, the %s", k.fault, target.ID, k.target)
	if k.abort {
		m.mustAbort(k, id, target)
	} else {
		m.mustFault(target, k.fault)
	}
	must(m.t, m.Unhold()) // a driver that waits goes on
	if k.target == driver && k.fault == cut {
		must(m.t, held.Resume())
	}
	plan := m.mustEnd(id, k)
	ended, err := m.Slots(within(m.t, 60*time.Second))
	must(m.t, err)
	m.mustMend() // a driver that stood still makes its step now
	must(m.t, m.AwaitWhole(within(m.t, 60*time.Second), 3))
	must(m.t, <-published)
	m.mustBeRight(k, before, ended, plan)
}

// mustHeld waits until a driver of a plan is held.
func (m *movers) mustHeld(k moveCase, id uint64, alone bool) *Node {
	m.t.Helper()
	held, err := m.AwaitHeld(within(m.t, 30*time.Second), alone, id)
	if err != nil {
		m.t.Fatalf("plan %d is not held before %s: %v", id, k.step, err)
	}
	return held
}

// mustAbort aborts a plan whose driver is held, and has a fault befall a node. If the driver stands still, so that it
// does not hear of it, the next one is held before the same step: else it would be done too soon to be aborted.
func (m *movers) mustAbort(k moveCase, id uint64, target *Node) {
	m.t.Helper()
	unheard := target.Stands()
	if unheard {
		must(m.t, m.Hold("plan."+k.step, true))
		m.mustFault(target, k.fault)
		m.say("%s drives the plan now, and is held there as well", m.mustHeld(k, id, true).ID)
	}
	_, err := m.Command(within(m.t, 30*time.Second), "partition", "abort", fmt.Sprint(id))
	must(m.t, err)
	if !unheard {
		m.mustFault(target, k.fault)
	}
}

// arrange chooses the partitions, and sees that as few of the parts as possible are on one node. It returns the
// command that begins the plan, and the source.
func (m *movers) arrange(k moveCase, slots Slots) (args []string, from string) {
	m.t.Helper()
	s, err := m.Status(within(m.t, 30*time.Second))
	must(m.t, err)
	// The source is one of those that have most, so that something always moves.
	slices.SortFunc(s.Partitions, func(a, b GroupState) int { return size(b.Ranges...) - size(a.Ranges...) })
	m.rand.Shuffle(2, func(i, j int) { s.Partitions[i], s.Partitions[j] = s.Partitions[j], s.Partitions[i] })
	m.rand.Shuffle(len(s.Partitions)-1, func(i, j int) {
		s.Partitions[1+i], s.Partitions[1+j] = s.Partitions[1+j], s.Partitions[1+i]
	})
	src, dst := &s.Partitions[0], &s.Partitions[1]
	from = src.ID
	switch k.kind {
	case "split":
		args, dst = []string{"split", from}, src
	case "merge":
		args = []string{"merge", from, dst.ID}
	case "move":
		r := slices.MaxFunc(slots.Partition(from), func(a, b Range) int { return size(a) - size(b) })
		half := (r.First + r.Last) / 2
		part := fmt.Sprintf("%d-%d", r.First, half)
		if m.rand.IntN(2) == 0 {
			part = fmt.Sprintf("%d-%d", min(half+1, r.Last), r.Last)
		}
		args = []string{"move", from, part, dst.ID}
	}
	if dst != src && dst.Leader == src.Leader {
		m.handOver(src, dst.Leader)
	}
	if s.Control.Leader == src.Leader || s.Control.Leader == dst.Leader {
		m.handOver(s.Control, src.Leader, dst.Leader)
	}
	return args, from
}

// size is the number of slots in ranges.
func size(ranges ...Range) (n int) {
	for _, r := range ranges {
		n += int(r.Last-r.First) + 1
	}
	return n
}

// handOver has another node lead a group, none of those named. It may fail, which does no harm.
func (m *movers) handOver(g *GroupState, not ...string) {
	m.t.Helper()
	for _, id := range g.nodes() {
		if id == g.Leader || slices.Contains(not, id) {
			continue
		}
		_, err := m.Command(within(m.t, 20*time.Second), "partition", "transfer-leader", g.ID, id)
		if err == nil {
			g.Leader = id
			return
		}
		m.say("%v", err)
	}
}

// publish puts another policy in force in some of the cases, while the plan is under way. What it returns has its
// outcome.
func (m *movers) publish() <-chan error {
	done := make(chan error, 1)
	if m.rand.IntN(6) != 0 {
		done <- nil
		return done
	}
	m.applied++
	next := m.policies.Present()
	next.Version = fmt.Sprint("move-", m.applied)
	next.Classes["wide"] = history.Class{Limits: []history.Limit{
		{Name: "room", Max: int64(8 + m.applied%5), Window: history.Window(3 * time.Second)},
	}}
	m.say("policy apply, meanwhile")
	ctx := within(m.t, 2*time.Minute)
	go func() { done <- m.policies.Apply(ctx, next) }()
	return done
}

// mustFault has a fault befall a node.
func (m *movers) mustFault(n *Node, fault string) {
	m.t.Helper()
	m.faulted = n
	switch fault {
	case kill:
		must(m.t, n.Kill())
	case stop:
		must(m.t, n.Pause(within(m.t, 10*time.Second)))
	case cut:
		m.Network.Cut(&n.Node)
	}
}

// mustMend ends all faults.
func (m *movers) mustMend() {
	m.t.Helper()
	m.faulted = nil
	must(m.t, m.Unhold())
	for _, n := range m.Nodes {
		m.Network.Heal(&n.Node)
		must(m.t, n.Resume())
		if n.Ended() {
			m.t.Fatalf("node %s has ended by itself; its log ends:\n%s", n.ID, n.Tail())
		}
		if !n.Up() {
			must(m.t, n.Start())
		}
	}
}

// mustEnd waits for the end of a plan. A driver that stands still or is dead stays so until then, and so does
// whoever was killed: a majority is there. Another node goes on after some seconds.
func (m *movers) mustEnd(id uint64, k moveCase) Plan {
	m.t.Helper()
	begun, lasts := m.load.Now(), time.Duration(2000+m.rand.IntN(4000))*time.Millisecond
	ctx := within(m.t, 75*time.Second)
	var plan Plan
	var last error
	err := process.Await(ctx, fmt.Sprintf("plan %d ends", id), func() bool {
		if n := m.faulted; n != nil && k.target != driver && k.fault != kill && m.load.Now()-begun > lasts {
			m.Network.Heal(&n.Node)
			must(m.t, n.Resume())
			m.say("%s is back", n.ID)
			m.faulted = nil
		}
		var p Plan
		if p, last = m.Plan(ctx, id); last == nil {
			plan = p
		}
		return plan.ended()
	})
	if err != nil {
		m.t.Fatalf("%v: it is %+v; %v", err, plan, last)
	}
	m.say("plan %d is %s, %v after: %s", id, plan.Phase, (m.load.Now() - begun).Round(time.Millisecond), plan.Message)
	m.outcomes[plan.Phase]++
	return plan
}

// mustHaveNoPlan waits until no plan is under way, so that a case that failed does not spoil the next.
func (m *movers) mustHaveNoPlan() {
	m.t.Helper()
	var plans []Plan
	err := process.Await(within(m.t, 90*time.Second), "no plan is under way", func() bool {
		var err error
		plans, err = m.Plans(m.t.Context())
		return err == nil && !slices.ContainsFunc(plans, func(p Plan) bool { return !p.ended() })
	})
	if err != nil {
		m.t.Fatalf("%v: %+v", err, plans)
	}
}

// mustBeRight judges a case: before are the owners before it, ended those at the plan's end.
func (m *movers) mustBeRight(k moveCase, before, ended Slots, plan Plan) {
	m.t.Helper()
	if k.abort && plan.Phase != planUndone || k.mustEndDone() && plan.Phase != planDone {
		m.t.Errorf("plan %d has ended as %+v", plan.ID, plan)
	}
	moved := plan.Ranges
	if plan.Phase == planUndone {
		moved = nil
	}
	if err := before.Follow(ended, moved, plan.Destination); err != nil {
		m.t.Errorf("the owners after plan %d: %v", plan.ID, err)
	}
	must(m.t, m.load.Quiet(func() error {
		if err := m.AwaitAgreement(within(m.t, 30*time.Second)); err != nil {
			return err
		}
		return m.load.AskEach(within(m.t, 30*time.Second), "ledger", m.rand, false)
	}))
	after, err := m.Slots(within(m.t, 60*time.Second))
	must(m.t, err)
	if err := ended.Follow(after, nil, ""); err != nil {
		m.t.Errorf("after plan %d had ended something changed: %v", plan.ID, err)
	}
	if p, err := m.Plan(within(m.t, 20*time.Second), plan.ID); err != nil || p.Phase != plan.Phase {
		m.t.Errorf("plan %d was %s, and is %+v: %v", plan.ID, plan.Phase, p, err)
	}
	s, err := m.Status(within(m.t, 20*time.Second))
	must(m.t, err)
	for _, g := range s.Partitions {
		if len(g.Ranges) == 0 {
			m.t.Errorf("after plan %d %s is left, and owns nothing", plan.ID, g.ID)
		}
	}
	m.mustRun()
}
