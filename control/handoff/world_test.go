package handoff_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/control/handoff"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// mustCluster is a cluster with the nodes a and b, and p0 and p1 that own half of the slots each.
func mustCluster(t testing.TB) (m *state.Machine, index uint64) {
	t.Helper()
	m = state.New()
	for _, c := range []*state.Command{
		{Kind: state.KindInit, Init: &state.Init{Cluster: "c", Incarnation: 3, Seed: [16]byte{1}}},
		{Kind: state.KindPutNode, Node: &state.PutNode{ID: "a", Instance: "a1", GRPC: "a:1", Raft: "a:2"}},
		{Kind: state.KindPutNode, Node: &state.PutNode{ID: "b", Instance: "b1", GRPC: "b:1", Raft: "b:2"}},
		{Kind: state.KindCreate, Create: &state.Create{
			Map: 3, Replicas: []string{"a"}, Ranges: []fsm.SlotRange{{First: 0, Last: fsm.NumSlots/2 - 1}},
		}},
		{Kind: state.KindCreate, Create: &state.Create{
			Map: 4, Replicas: []string{"b"}, Ranges: []fsm.SlotRange{{First: fsm.NumSlots / 2, Last: fsm.NumSlots - 1}},
		}},
	} {
		index++
		if r, _ := m.Apply(index, c); r.Refused != nil {
			t.Fatal(r.Refused)
		}
	}
	return m, index
}

func mustStart(t testing.TB, m *state.Machine, index *uint64, s *state.StartPlan) fsm.PlanID {
	t.Helper()
	*index++
	r, _ := m.Apply(*index, &state.Command{Kind: state.KindStartPlan, Start: s})
	if r.Refused != nil {
		t.Fatal(r.Refused)
	}
	return r.Plan
}

// blockSlots is how many slots are looked at as one.
const (
	blockSlots = fsm.NumSlots / 8
	blocks     = 8
)

// content is what a block holds: how often something was admitted in it.
type content [blocks]int

// replica is a model of a partition: what it serves and holds, block by block, and how it stands in a plan.
type replica struct {
	id       state.PartitionID
	serves   [blocks]bool
	holds    content
	frozenBy fsm.PlanID
	frozenAt int64
	moving   [blocks]bool // frozen
	revision fsm.Revision
	plan     fsm.PlanID // that is imported
	stands   fsm.PlanEnd
	staged   content
	manifest fsm.Manifest
	base     int64
	ended    fsm.PlanID
	born     bool
	dead     bool
	// disowned says that the map has given it no slots since disownedAt, after it had some.
	owned, disowned bool
	disownedAt      int64
}

func (r *replica) locked() bool { return r.frozenBy != 0 || r.stands >= fsm.PlanOpen }

func (r *replica) end(plan fsm.PlanID) fsm.PlanEnd {
	switch {
	case plan <= r.ended:
		return fsm.PlanEnded
	case r.frozenBy == plan:
		return fsm.PlanFrozen
	case r.plan == plan:
		return r.stands
	}
	return fsm.PlanNone
}

// world is the control group and all partitions, with a clock that goes on at each event.
type world struct {
	t        *rapid.T // draws; nil where nothing is drawn
	fatalf   func(format string, args ...any)
	m        *state.Machine
	index    uint64
	now      int64
	replicas map[state.PartitionID]*replica
	backup   content
	asleep   []func() // steps that were sent, and arrive late
	faults   bool
	freezes  map[fsm.PlanID]int64 // when the freeze was committed first
	doomed   int                  // partitions that may still die
	// undone and decided count the recoveries of a partition that was in another plan.
	undone, decided int
}

func blocksOf(ranges []fsm.SlotRange) (out [blocks]bool) {
	for _, r := range ranges {
		for b := int(r.First) / blockSlots; b <= int(r.Last)/blockSlots; b++ {
			out[b] = true
		}
	}
	return out
}

func digestOf(of [blocks]bool, c content) (d [16]byte) {
	d[15] = 1 // of the history: never zero
	for b := range blocks {
		if of[b] {
			d[b] = byte(c[b]) + 1
		}
	}
	return d
}

// apply applies a command to the control state, and makes the partitions that it asks for.
func (w *world) apply(c *state.Command) state.Result {
	w.index++
	before := w.m.State()
	r, _ := w.m.Apply(w.index, c)
	w.count(before, c, r)
	if now := w.m.State(); now.Counter < before.Counter || now.MapVersion < before.MapVersion {
		w.fatalf("epoch or map went back: %+v", c)
	}
	for _, p := range w.m.State().Partitions {
		r := w.replicas[p.ID]
		if r == nil {
			r = &replica{id: p.ID, revision: w.newest()}
			w.replicas[p.ID] = r
		}
		if r.owned && !r.disowned && len(p.Ranges) == 0 {
			r.disowned, r.disownedAt = true, w.now
		}
		if len(p.Ranges) > 0 {
			r.owned, r.disowned = true, false
		}
	}
	return r
}

// count counts recoveries that end while their source is in another plan.
func (w *world) count(before *state.State, c *state.Command, r state.Result) {
	p, ok := before.Plan(c.Plan)
	if !ok || p.Kind != state.PlanRecover || r.Refused != nil {
		return
	}
	source, there := before.Partition(p.Source)
	switch {
	case !there || source.Plan == p.ID:
	case c.Kind == state.KindAbortPlan:
		w.undone++
	case c.Kind == state.KindDecidePlan:
		w.decided++
	}
}

func (w *world) newest() (r fsm.Revision) {
	for _, p := range w.replicas {
		r = max(r, p.revision)
	}
	return r
}

// step makes a step at an end, as its state machine does. It is called when the step arrives, be that late.
func (w *world) step(p *state.Plan, s handoff.Step) handoff.Answer {
	r := w.replicas[p.Destination]
	switch s.Kind {
	case handoff.LookSource, handoff.Freeze, handoff.Release, handoff.AbortSource:
		r = w.replicas[p.Source]
	}
	if r.dead || !r.born {
		return handoff.Answer{Failed: "no leader"}
	}
	if _, there := w.m.State().Partition(r.id); !there {
		return handoff.Answer{Failed: "no such partition"}
	}
	a := handoff.Answer{}
	if s.Kind != handoff.LookSource && s.Kind != handoff.LookDestination {
		a = w.make(r, p, s)
	}
	a.End, a.Revision = r.end(p.ID), r.revision
	w.check()
	return a
}

func refused(format string, args ...any) handoff.Answer {
	return handoff.Answer{Refused: fmt.Sprintf(format, args...)}
}

func (w *world) make(r *replica, p *state.Plan, s handoff.Step) handoff.Answer {
	of := blocksOf(p.Slots())
	if p.ID <= r.ended {
		return refused("plan %d has ended", p.ID)
	}
	switch s.Kind {
	case handoff.Freeze:
		return w.freeze(r, p, s)
	case handoff.Pull:
		return w.pull(r, p)
	case handoff.Open:
		return w.open(r, p, s)
	case handoff.Seal:
		switch {
		case r.end(p.ID) < fsm.PlanOpen:
			return refused("not open")
		case digestOf(of, r.staged) != r.manifest.Digest:
			return refused("it has not what the manifest names")
		}
		r.stands = fsm.PlanSealed
		return handoff.Answer{Manifest: fsm.Manifest{Digest: digestOf(of, r.staged)}}
	case handoff.Activate:
		if r.end(p.ID) != fsm.PlanSealed {
			return refused("not sealed")
		}
		w.activate(r, p)
	case handoff.Release:
		if r.frozenBy != p.ID {
			return refused("not frozen")
		}
		if _, d := w.m.State().Ends(p); d != nil && p.ID > w.replicas[d.ID].ended {
			w.fatalf("plan %d is released before it was activated", p.ID)
		}
		for b := range blocks {
			if r.moving[b] {
				r.serves[b], r.holds[b] = false, 0
			}
		}
		r.frozenBy, r.moving, r.ended = 0, [blocks]bool{}, p.ID
	case handoff.AbortSource, handoff.AbortDestination:
		if q, _ := w.m.State().AnyPlan(p.ID); q.Phase != state.PlanAborted {
			w.fatalf("plan %d is undone, and is %s", p.ID, q.Phase)
		}
		if r.frozenBy == p.ID {
			r.frozenBy, r.moving = 0, [blocks]bool{}
		}
		if r.plan == p.ID {
			r.plan, r.stands = 0, fsm.PlanNone
		}
		r.ended = p.ID
	}
	return handoff.Answer{}
}

func (w *world) freeze(r *replica, p *state.Plan, s handoff.Step) handoff.Answer {
	of := blocksOf(p.Slots())
	if r.frozenBy != p.ID {
		switch {
		case r.frozenBy != 0:
			return refused("frozen by plan %d", r.frozenBy)
		case r.revision != s.Revision:
			return refused("revision %d", r.revision)
		}
		r.frozenBy, r.moving, r.frozenAt = p.ID, of, w.now
		w.freezes[p.ID] = w.now
	}
	return handoff.Answer{Manifest: fsm.Manifest{
		FrozenAt: fsm.Time(r.frozenAt), Revision: r.revision, Digest: digestOf(of, r.holds),
	}}
}

// read is what a pull reads.
func (w *world) read(p *state.Plan) (content, bool) {
	source := w.replicas[p.Source]
	switch {
	case p.Kind == state.PlanRestore:
		return w.backup, true
	case p.Kind == state.PlanRecover: // one replica of it still can be read
		return source.holds, true
	case source.dead || !source.born:
		return content{}, false
	}
	return source.holds, true
}

// pull stages what it has read; a pull that is slow stages it later, maybe over what is newer.
func (w *world) pull(r *replica, p *state.Plan) handoff.Answer {
	of := blocksOf(p.Slots())
	what, ok := w.read(p)
	switch {
	case !ok:
		return handoff.Answer{Failed: "the source has no leader"}
	case w.faults && rapid.IntRange(0, 60).Draw(w.t, "capacity") == 0:
		return refused("capacity")
	case r.plan != p.ID && r.plan != 0:
		return refused("in plan %d", r.plan)
	}
	a := handoff.Answer{}
	for b := range blocks {
		if of[b] && (r.plan != p.ID || r.staged[b] != what[b]) {
			a.Slots++
			a.Bytes += handoff.SmallPullBytes / 2
		}
	}
	if p.Copies() {
		a.Manifest = fsm.Manifest{FrozenAt: fsm.Time(w.now), Revision: r.revision, Digest: digestOf(of, what)}
	}
	if r.stands == fsm.PlanSealed {
		if a.Slots > 0 {
			return refused("sealed")
		}
		return a
	}
	stage := func() {
		if p.ID > r.ended && (r.plan == p.ID || r.plan == 0) && r.stands != fsm.PlanSealed {
			r.plan, r.stands, r.staged = p.ID, max(r.stands, fsm.PlanStaging), what
		}
	}
	if w.faults && rapid.IntRange(0, 9).Draw(w.t, "a slow pull too") == 0 {
		w.asleep = append(w.asleep, stage)
	}
	stage()
	return a
}

func (w *world) open(r *replica, p *state.Plan, s handoff.Step) handoff.Answer {
	switch at := r.end(p.ID); {
	case at >= fsm.PlanOpen:
		if s.Manifest != r.manifest {
			return refused("opened with another manifest")
		}
		return handoff.Answer{}
	case at < fsm.PlanStaging:
		return refused("nothing is staged")
	case s.Manifest.Revision != r.revision:
		return refused("revision %d", r.revision)
	}
	if at, ok := w.freezes[p.ID]; !p.Copies() && (!ok || at >= w.now) {
		w.fatalf("plan %d: ages are counted back from %d, and it was frozen at %d", p.ID, w.now, at)
	}
	r.stands, r.manifest, r.base = fsm.PlanOpen, s.Manifest, w.now
	return handoff.Answer{}
}

func (w *world) activate(r *replica, p *state.Plan) {
	now, _ := w.m.State().AnyPlan(p.ID)
	if now.Phase != state.PlanDecided {
		w.fatalf("plan %d is activated, and is %s", p.ID, now.Phase)
	}
	what, _ := w.read(p)
	for b, moves := range blocksOf(p.Slots()) {
		if !moves {
			continue
		}
		if source, _ := w.m.State().Ends(p); !p.Copies() && source != nil && r.staged[b] != what[b] {
			w.fatalf("plan %d: block %d had %d admissions, and arrived with %d", p.ID, b, what[b], r.staged[b])
		}
		r.serves[b], r.holds[b] = true, r.staged[b]
	}
	r.plan, r.stands, r.ended = 0, fsm.PlanNone, p.ID
}
