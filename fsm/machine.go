package fsm

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/policy"
)

// Machine is the state of one partition. The zero value is not usable; New makes an unborn one. It is
// not safe for concurrent use: its owner applies one entry at a time.
type Machine struct {
	now       Time
	wallBound int64

	// Set by the birth, and never changed.
	cluster   string
	partition string
	birth     Time
	seed      [16]byte
	key0      uint64 // the seed as hash key
	key1      uint64
	bounds    Bounds

	level     Level
	owned     ownership
	frozenBy  PlanID      // the plan that this partition is the source of; 0 without
	frozenAt  Time        // when it froze
	inbound   *inbound    // of the plan that this partition is the destination of; nil without
	packed    *packed     // what has arrived and is not unpacked yet; nil without
	leaving   []SlotRange // that were released and are not dropped yet
	left      int         // shards that leaving was dropped of
	endedPlan PlanID      // the highest
	endedBy   Kind        // the step that ended it

	rev      *revision // nil until the birth
	labels   []label   // of ended revisions, oldest first
	classes  map[string]*class
	names    map[string]*name // that are listed, or were
	unlisted name             // all others
	// lost is the latest instant before which admissions may be missing; always when none are.
	lost        Time
	mostCarried int // revisions for one name

	shards     []*shard
	calendar   calendar
	keys       int64
	reserved   int64 // sum of the classes' reserves
	unreserved int64 // keys beyond their class's reserve
	allows     int64 // recorded
	denials    int64
	gateways   names // of recorded allows
	limitNames names // of recorded denials

	digest    digest   // of all slots
	slots     []digest // of each slot
	config    []byte   // encoding of all that only rare entries change; nil when it changed
	configSum recordID

	snapshot *Snapshot // being written

	// What is worked with, and is no state.
	rulings map[string]*ruling // on listed classes, as looked up since the last entry that was no batch
	caller  caller             // of the peek
	callers []caller           // of the checks of a batch
	touched uint64             // see prepare
	charges []charged
	limits  []applied // of charges
	made    []*class
	states  []LimitState // that no answer has yet
	scratch []byte
}

// New makes a machine that waits for its birth.
func New() *Machine {
	m := &Machine{
		classes: map[string]*class{}, names: map[string]*name{},
		unlisted: name{since: always}, lost: always,
		shards: newShards(), slots: make([]digest, NumSlots),
		gateways: newNames(), limitNames: newNames(), rulings: map[string]*ruling{},
	}
	m.calendar = newCalendar(m.shards)
	return m
}

// Step applies one entry, which the log holds in entryTerm, and returns its answers. It is a function
// of the state and the entry alone. A policy that Needs asks for must have been set.
func (m *Machine) Step(entryTerm uint64, e *Entry) *Answers {
	if e.Term != entryTerm && guard.On(guard.TermOfStamp) {
		return &Answers{Refused: ReasonStaleTerm, Time: m.now}
	}
	if m.rev == nil && e.Kind != KindBirth {
		return &Answers{Refused: ReasonUnborn}
	}
	if e.Stamp > m.now || !guard.On(guard.MonotoneTime) {
		m.now = e.Stamp
	}
	m.wallBound = e.WallBound
	a := &Answers{}
	if e.Kind != KindBatch {
		clear(m.rulings)
	}
	switch e.Kind {
	case KindBirth:
		m.bear(e.Birth)
	case KindBatch:
		m.batch(e, a)
	case KindInstall:
		a.Refused, a.Detail = m.replace(e.Install)
	case KindFreeze, KindStage, KindOpen, KindSeal, KindActivate, KindRelease, KindAbort:
		m.planStep(e, a)
	case KindRaise:
		m.level = max(m.level, e.Level)
		m.config = nil
	case KindForgive:
		a.Forgiven = m.forgive(e.Forgive)
	default:
		panic("fsm: entry of an unknown kind")
	}
	a.Time = m.now
	return a
}

func (m *Machine) bear(b *Birth) {
	if m.rev != nil {
		return
	}
	m.cluster, m.partition, m.birth = b.Cluster, b.Partition, m.now
	m.seed = b.Seed
	m.key0 = binary.LittleEndian.Uint64(b.Seed[:8])
	m.key1 = binary.LittleEndian.Uint64(b.Seed[8:])
	m.bounds, m.level = b.Bounds, BirthLevel
	m.owned = slices.Clone(ownership(b.Owned))
	m.classFor(policy.DefaultClass)
	m.force(&b.Install)
}

// sweptPerEntry is how many ended things an entry forgets at least: more than enough for ticks alone to
// clear what a busy time has left behind within minutes.
const sweptPerEntry = 4096

// batch answers the checks and peeks of an entry. It first forgets twice as much as the entry can add, so
// that what has ended does not pile up.
func (m *Machine) batch(e *Entry, a *Answers) {
	room := sweptPerEntry / 2
	for i := range e.Checks {
		// A check adds a record, a list of denials, and for each charge a key in its class and in those of
		// the rules that are carried.
		room += 2 + (1+m.mostCarried)*(1+len(e.Checks[i].Also))
	}
	m.sweep(2 * room)
	if len(e.Checks)+len(e.Peeks) == 0 {
		m.unpackSome(unpackedPerTick)
		m.dropSome(droppedPerTick)
	} else {
		m.unpackSome(unpackedPerBatch)
		m.dropSome(droppedPerBatch)
	}
	a.Decisions = make([]Decision, len(e.Checks))
	callers := m.prepare(e.Checks)
	for i := range e.Checks {
		a.Decisions[i] = m.decide(&callers[i], &e.Checks[i])
	}
	clear(callers) // which would keep the entry's strings
	if len(e.Peeks) > 0 {
		a.Usages = make([]Usage, len(e.Peeks))
	}
	for i := range e.Peeks {
		a.Usages[i] = m.peek(&e.Peeks[i])
	}
}

// Born reports whether the partition has been made.
func (m *Machine) Born() bool { return m.rev != nil }

// Revision is the policy revision in force; 0 before the birth.
func (m *Machine) Revision() Revision {
	if m.rev == nil {
		return 0
	}
	return m.rev.number()
}

// Now is the partition time of the last entry.
func (m *Machine) Now() Time { return m.now }

// WallBound is Entry.WallBound of the last entry.
func (m *Machine) WallBound() int64 { return m.wallBound }

// Level is the feature level that the log has reached; 0 before the birth. A program that does not know it
// must not go on with this state.
func (m *Machine) Level() Level { return m.level }

// Idle reports that there is nothing that time could end, or that batches have to clear: no key, no record, no
// loss that a limit has to allow for, and nothing that is left of a plan.
func (m *Machine) Idle() bool {
	if m.keys > 0 || m.allows > 0 || m.denials > 0 || m.packed != nil || len(m.leaving) > 0 {
		return false
	}
	for _, c := range m.classes {
		if m.now < m.lost+c.keep(m.now) {
			return false
		}
	}
	return true
}

// Status tells what the machine is and how full it is.
func (m *Machine) Status() Status {
	s := Status{
		Cluster: m.cluster, Partition: m.partition, Time: m.now, Bounds: m.bounds,
		Owned: slices.Clone(m.owned), Keys: m.keys, Allows: m.allows, Denials: m.denials,
		Plan: m.planHere(), EndedPlan: m.endedPlan, Level: m.level, Digest: m.Digest(),
	}
	if m.packed != nil {
		c := m.packed.counts
		s.Keys, s.Allows, s.Denials = s.Keys+c.keys, s.Allows+c.allows, s.Denials+c.denials
		s.PackedSlots = m.packed.left
	}
	if m.rev != nil {
		s.Revision, s.Version, s.PolicyDigest = m.rev.number(), m.rev.policy.Version, m.rev.policy.Digest()
	}
	return s
}

// Status is a machine as it stands.
type Status struct {
	Cluster      string
	Partition    string
	Time         Time
	Level        Level
	Bounds       Bounds
	Owned        []OwnedRange
	Revision     Revision
	Version      string
	PolicyDigest [32]byte
	Plan         PlanID // the one under way here; 0 without
	EndedPlan    PlanID // the highest that has ended here; 0 without
	Keys         int64  // live keys
	Allows       int64  // recorded allows
	Denials      int64  // recorded denials
	PackedSlots  int    // that a plan brought and that are not unpacked yet
	Digest       [16]byte
}

// SlotOf is the slot of a principal, by the seed of the partition's state.
func (m *Machine) SlotOf(principal string) Slot { return SlotOf(m.seed, principal) }

// EpochOf is the epoch under which the partition owns a slot.
func (m *Machine) EpochOf(s Slot) (Epoch, bool) {
	r, ok := m.owned.find(s)
	return r.Epoch, ok
}

// HorizonOf is the replay horizon in force for an apiClass, in nanoseconds; 0 before the birth.
func (m *Machine) HorizonOf(apiClass string) int64 {
	if m.rev == nil {
		return 0
	}
	_, settings := m.rev.policy.ClassOf(apiClass)
	return settings.ReplayHorizonNanos
}

func (m *Machine) sortedClasses() []*class {
	out := make([]*class, 0, len(m.classes))
	if !guard.On(guard.SortedWalk) {
		return slices.AppendSeq(out, maps.Values(m.classes))
	}
	for _, n := range slices.Sorted(maps.Keys(m.classes)) {
		out = append(out, m.classes[n])
	}
	return out
}

func (m *Machine) sortedNames() []string { return slices.Sorted(maps.Keys(m.names)) }

// allNames are the names that are known apart and the one that stands for all others.
func (m *Machine) allNames() []*name {
	out := []*name{&m.unlisted}
	for _, n := range m.sortedNames() {
		out = append(out, m.names[n])
	}
	return out
}
