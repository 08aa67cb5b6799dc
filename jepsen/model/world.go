package model

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
)

const (
	numMachines   = 3
	birthEpoch    = fsm.Epoch(1)
	stepsOfRun    = 500
	callerGateway = "g"
)

// Counts are what happened in a run, so that a run that shows nothing is noticed.
type Counts struct {
	Allows, Denials, Replays, Edges             int
	Leaders, Held, Restarts, Snapshots, Outages int
	Installs, Policies, Moves, Undone, Forgiven int
}

// Add adds up runs.
func (c *Counts) Add(o Counts) {
	c.Allows += o.Allows
	c.Denials += o.Denials
	c.Replays += o.Replays
	c.Edges += o.Edges
	c.Leaders += o.Leaders
	c.Held += o.Held
	c.Restarts += o.Restarts
	c.Snapshots += o.Snapshots
	c.Outages += o.Outages
	c.Installs += o.Installs
	c.Policies += o.Policies
	c.Moves += o.Moves
	c.Undone += o.Undone
	c.Forgiven += o.Forgiven
}

// Report is what a run came to.
type Report struct {
	Seed       uint64
	Violations []Violation
	Counts     Counts
	Digest     [16]byte // of the first partition, at the end
}

// step is a step of a plan, and who got it.
type step struct {
	to *part
	e  *fsm.Entry
}

// assignment is how the callers know who decides for a principal.
type assignment struct {
	part  *part
	epoch fsm.Epoch
}

// world is the partitions, and the true time that they live in.
type world struct {
	rng      *rand.Rand
	ppm      int64 // the drift bound
	now      int64 // true nanoseconds
	machines []*machine
	parts    []*part
	judge    *judge
	counts   Counts
	installs []fsm.Install
	latest   fsm.Revision

	plan   *plan // under way; nil without
	plans  fsm.PlanID
	ranges map[fsm.PlanID][]fsm.SlotRange
	steps  []step
	routes map[string][]assignment // the newest last
	past   []fsm.Check
	ids    int
}

// Run runs one seed.
func Run(seed uint64, p Profile) (report Report) {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 0x6d6f64656c)), ppm: clock.DefaultMaxDriftPPM, latest: 1,
		ranges: map[fsm.PlanID][]fsm.SlotRange{}, routes: map[string][]assignment{},
	}
	w.judge = newJudge(w)
	defer func() {
		if e := recover(); e != nil {
			w.judge.breaks(NoPanic, "panic: %v", e)
		}
		report = Report{Seed: seed, Violations: w.judge.found, Counts: w.counts}
		if len(w.parts) > 0 {
			report.Digest = w.parts[0].leader.m.Digest()
		}
	}()
	var err error
	if w.installs, err = installs(); err != nil {
		w.judge.breaks(NoPanic, "%v", err)
		return report
	}
	if seed%4 == 1 {
		w.ppm = 20_000 // so that the drift and the slow-down weigh as much as the rest
	}
	w.bear()
	for range stepsOfRun {
		w.let(w.span())
		w.happen(p.draw(w.rng))
	}
	w.settle()
	return report
}

// bear makes the machines and the partitions: two that own half of the slots, and now and then one that owns none.
func (w *world) bear() {
	for range numMachines {
		w.machines = append(w.machines, newMachine(w.rng, w.ppm))
	}
	half := fsm.Slot(fsm.NumSlots / 2)
	owned := [][]fsm.OwnedRange{
		{{SlotRange: fsm.SlotRange{Last: half - 1}, Epoch: birthEpoch}},
		{{SlotRange: fsm.SlotRange{First: half, Last: fsm.NumSlots - 1}, Epoch: birthEpoch}}, nil,
	}
	for _, principal := range principals {
		w.judge.holders[principal] = &holder{part: int(slotOf(principal) / half), epoch: birthEpoch}
	}
	for id, ranges := range owned[:2+w.rng.IntN(2)] {
		w.parts = append(w.parts, newPart(w, id, &fsm.Birth{
			Cluster: "c", Partition: fmt.Sprint("p", id), Bounds: fsm.DefaultBounds(), Owned: ranges, Install: w.installs[1],
		}))
		w.let(w.rng.Int64N(5 * second))
	}
	for _, principal := range principals {
		w.routes[principal] = []assignment{{w.parts[slotOf(principal)/half], birthEpoch}}
	}
}

func (w *world) newTimeline(on *machine) *clock.Timeline {
	t, err := clock.NewTimeline(on, w.ppm, clock.TrustNever)
	if err != nil {
		panic(err)
	}
	return t
}

// span is how much true time passes before the next thing happens.
func (w *world) span() int64 {
	most := []int64{30e6, 60e6, 60e6, 60e6, 60e6, 60e6, 60e6, 300e6, 1e9, 3e9}[w.rng.IntN(10)]
	if w.rng.IntN(150) == 0 {
		most = 15e9
	}
	return w.rng.Int64N(most)
}

func (w *world) let(span int64) {
	w.now += span
	for _, m := range w.machines {
		m.pass(span)
	}
}

// happen lets one thing happen.
func (w *world) happen(e event) {
	p := w.parts[w.rng.IntN(len(w.parts))]
	n := p.replicas[w.rng.IntN(len(p.replicas))]
	switch e {
	case evRequest:
		w.ask()
	case evRound:
		p.round()
	case evWork:
		if b := p.believer(); b != nil {
			b.work()
		}
	case evCommit:
		p.commit(false)
	case evApply:
		p.apply(n)
		p.apply(p.leader)
	case evNotice:
		n.notice()
	case evElect:
		p.elect()
	case evSnapshot:
		n.snapshot()
	case evInstall:
		n.install()
	case evRestart:
		n.restart()
		w.rush(n)
	case evOutage:
		w.outage(p)
	case evTrouble:
		w.trouble(n)
	case evPolicy:
		w.publish()
	case evPlan:
		w.drive()
	case evEdge:
		w.edge()
	}
}

// drive takes the plan on, or begins one.
func (w *world) drive() {
	switch {
	case w.plan == nil:
		w.begin()
	case w.plan.at == done:
		w.plan = nil
	default:
		w.plan.poll()
	}
	if w.rng.IntN(20) == 0 {
		w.again()
	}
}

// rush sometimes makes a replica with a fresh state the leader at once.
func (w *world) rush(n *replica) {
	if w.rng.IntN(3) != 0 || n.on.asleep > 0 {
		return
	}
	n.part.lead(n)
	n.part.commit(true)
	n.catchUp()
	n.look()
}

// round is a time when all goes well in a partition: what waits is decided.
func (p *part) round() {
	if p.leader.leading != p.term {
		p.elect()
	}
	p.commit(true)
	p.leader.catchUp()
	for range 3 {
		p.leader.work()
	}
	p.commit(true)
	p.leader.catchUp()
}

// outage ends all processes of a partition, which begin again after a while.
func (w *world) outage(p *part) {
	w.let(w.rng.Int64N(3 * second))
	for _, n := range p.replicas {
		n.on.asleep, n.on.frozen = 0, 0
		if n.kept == nil && w.rng.IntN(2) == 0 {
			n.snapshot()
			n.write(1 << 30)
		}
		n.restart()
	}
	p.elect()
	p.round()
	w.counts.Outages++
}

// trouble does something to a node's clocks, or to the node.
func (w *world) trouble(n *replica) {
	switch w.rng.IntN(16) {
	case 0, 1, 6, 7, 8:
		n.on.setRates()
	case 2:
		n.on.frozen = w.rng.Int64N(8 * second)
	case 3:
		n.on.asleep = w.rng.Int64N(8 * second)
	case 4:
		n.on.stepBack(w.rng.Int64N(2 * second))
	case 5:
		n.on.boot()
		for _, p := range w.parts {
			for _, r := range p.replicas {
				if r.on == n.on {
					r.restart()
				}
			}
		}
	default:
		n.cut = n != n.part.leader && !n.cut
	}
}

// publish numbers the next policy, or has a partition that is behind install the newest.
func (w *world) publish() {
	if w.latest < mostRevisions && w.rng.IntN(3) == 0 {
		w.latest++
		w.counts.Policies++
	}
	for _, p := range w.parts {
		if p.leader.m.Revision() < w.latest {
			w.install(p)
		}
	}
}

func (w *world) install(p *part) {
	w.order(p, &fsm.Entry{Kind: fsm.KindInstall, Install: &fsm.Install{PolicyRef: w.installs[w.latest].PolicyRef}})
}

// order has the leader of a partition propose an entry, if there is one.
func (w *world) order(p *part, e *fsm.Entry) bool {
	n := p.leader
	if n.leading != p.term || n.on.asleep > 0 || len(n.orders) > 4 {
		return false
	}
	n.orders = append(n.orders, e)
	if e.Plan != 0 {
		w.steps = append(w.steps, step{p, e})
		w.steps = w.steps[max(0, len(w.steps)-30):]
	}
	return true
}

// outcome is what an ordered entry came to; nil while it has come to nothing. The log has it decoded, so it is found by
// its term and stamp.
func (w *world) outcome(e *fsm.Entry) *fsm.Answers {
	for _, p := range w.parts {
		for i := len(p.log) - 1; i >= max(0, len(p.log)-60); i-- {
			of := p.log[i]
			if of.answers != nil && of.command.Kind == e.Kind && of.command.Plan == e.Plan &&
				of.command.Term == e.Term && of.command.Stamp == e.Stamp {
				return of.answers
			}
		}
	}
	return nil
}

// route tells the callers who decides for slots.
func (w *world) route(ranges []fsm.SlotRange, p *part, epoch fsm.Epoch) {
	w.judge.eachOf(ranges, func(principal string, _ *holder) {
		w.routes[principal] = append(w.routes[principal], assignment{p, epoch})
	})
}

// settle heals everything, and wants it to come to rest: the plan ends, replicas agree, and nothing is left when all
// windows and horizons have passed.
func (w *world) settle() {
	for _, m := range w.machines {
		m.asleep, m.frozen = 0, 0
		m.Freeze(false)
		m.Rates(0, 0)
	}
	for _, p := range w.parts {
		for _, r := range p.replicas {
			r.cut = false
		}
		p.lead(p.replicas[w.rng.IntN(numMachines)])
		p.round()
	}
	w.latest = slices.MaxFunc(w.parts, func(a, b *part) int {
		return int(a.leader.m.Revision()) - int(b.leader.m.Revision())
	}).leader.m.Revision()
	for i := 0; w.plan != nil && i < 400; i++ {
		w.let(second / 50)
		for _, p := range w.parts {
			p.round()
			if p.leader.m.Revision() < w.latest {
				w.install(p)
				p.round()
			}
		}
		w.drive1()
	}
	if w.plan != nil {
		w.judge.breaks(Lives, "plan %d does not come to an end: it is at stage %d", w.plan.id, w.plan.at)
		return
	}
	w.let(2*longestWindow + 60*second)
	for i := 0; i < 60 && !w.idle(); i++ {
		w.let(second)
		for _, p := range w.parts {
			p.round()
		}
	}
	for _, p := range w.parts {
		for _, r := range p.replicas {
			r.catchUp()
		}
	}
	if !w.idle() {
		w.judge.breaks(AllExpires, "something is left: %s", w.left())
	}
}

// drive1 takes the plan on, and begins none.
func (w *world) drive1() {
	if w.plan.at == done {
		w.plan = nil
		return
	}
	w.plan.poll()
}

func (w *world) idle() bool {
	for _, p := range w.parts {
		if !p.leader.m.Idle() {
			return false
		}
	}
	return true
}

func (w *world) left() string {
	text := ""
	for _, p := range w.parts {
		s := p.leader.m.Status()
		text += fmt.Sprintf("%v has %d keys, %d allows, %d denials, %d packed slots; ",
			p, s.Keys, s.Allows, s.Denials, s.PackedSlots)
	}
	return text
}
