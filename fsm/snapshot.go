package fsm

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/guard"
)

// A snapshot is a magic number with the format's version, then frames: the configuration, each policy
// that is in force or carried, each shard, each image that is staged, packed or begun, and the digest of it all.
// A frame is a length and a CRC-32C, four bytes each, little-endian, and its payload.
var snapshotMagic = [8]byte{'Q', 'U', 'O', 'R', 'F', 'S', 'M', 3}

// maxFrameBytes bounds a frame. The largest is a policy with all the overrides that one may have.
const maxFrameBytes = 1 << 30

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot is the state as of one entry, on its way out while later entries go on being applied: what
// an entry is about to change in a shard that is not written yet is kept as it was.
type Snapshot struct {
	m        *Machine
	config   []byte
	policies []*revision
	images   []*image // staged, then packed; neither they nor what parts hold is changed later
	parts    []part
	digest   [16]byte
	next     int // frame
	written  int // shards
	before   [numShards]*before
	scratch  scratch
}

// scratch is memory that one shard after the other is put in order in, so that a snapshot makes little work for the
// garbage collector: that would hold entries up.
type scratch struct {
	names []thing[string]
	ids   []thing[recordID]
}

// before is what has changed in a shard since the snapshot began, encoded as it was then; nil stands for
// what was not there.
type before struct {
	principals map[string][]byte
	records    map[recordID][]byte
	denials    map[recordID][]byte
}

// BeginSnapshot captures the state. There can be one snapshot at a time, and it must be released. The
// machine must be born.
func (m *Machine) BeginSnapshot() *Snapshot {
	if m.snapshot != nil || m.rev == nil {
		panic("fsm: a snapshot of an unborn machine, or beside another")
	}
	s := &Snapshot{m: m, digest: m.Digest(), policies: m.liveRevisions()}
	s.config = binary.AppendVarint(nil, int64(m.now))
	s.config = binary.AppendVarint(s.config, m.wallBound)
	s.config = binary.AppendUvarint(s.config, uint64(len(s.policies)))
	staged, packed, parts := m.imagesAndParts()
	s.images, s.parts = slices.Concat(staged, packed), parts
	for _, n := range []int{len(staged), len(packed), len(parts), m.left} {
		s.config = binary.AppendUvarint(s.config, uint64(n))
	}
	s.config = append(s.config, m.config...)
	m.snapshot = s
	return s
}

// Release ends the snapshot, whether it was written to its end or not.
func (s *Snapshot) Release() {
	if s.m.snapshot == s {
		s.m.snapshot = nil
	}
	s.before = [numShards]*before{}
}

// Next appends the next piece of the snapshot to b; more is false when it was the last. No entry may
// be applied meanwhile.
func (s *Snapshot) Next(b []byte) (piece []byte, more bool) {
	i := s.next
	s.next++
	shard := i - 1 - len(s.policies)
	begun := shard - numShards - len(s.images)
	switch {
	case i == 0:
		return appendFrame(append(b, snapshotMagic[:]...), s.config), true
	case shard < 0:
		r := s.policies[i-1]
		return appendFrame(b, r.policy.AppendBinary(binary.AppendUvarint(nil, uint64(r.number())))), true
	case shard < numShards:
		at := len(b)
		b = s.m.appendShard(append(b, make([]byte, frameHeadBytes)...), s.m.shards[shard], s.before[shard], &s.scratch)
		putFrameHead(b[at:])
		s.written, s.before[shard] = shard+1, nil // later changes are not ours
		return b, true
	case begun < 0:
		img := s.images[shard-numShards]
		return appendFrame(b, append(appendSlotDigest(nil, img.SlotDigest), img.data...)), true
	case begun < len(s.parts):
		return appendFrame(b, appendPart(nil, &s.parts[begun])), true
	default:
		return appendFrame(b, s.digest[:]), false
	}
}

// changing is what is kept of a shard that is about to change; nil when nothing has to be.
func (m *Machine) changing(s *shard) *before {
	if m.snapshot == nil || s.index < m.snapshot.written {
		return nil
	}
	b := m.snapshot.before[s.index]
	if b == nil {
		b = &before{map[string][]byte{}, map[recordID][]byte{}, map[recordID][]byte{}}
		m.snapshot.before[s.index] = b
	}
	return b
}

// keepPrincipal must be called before a principal's keys change, keepRecord before a record comes or
// goes, keepDenials before a list of denials changes; with 0 where there is none yet.
func (m *Machine) keepPrincipal(s *shard, name string, r ref) {
	if b := m.changing(s); b != nil {
		keep(b.principals, strings.Clone(name), r != 0, func() []byte {
			p := s.principals.at(r)
			return appendPrincipal(nil, p.name, s.keysOf(nil, p))
		})
	}
}

func (m *Machine) keepRecord(s *shard, id recordID, r ref) {
	if b := m.changing(s); b != nil {
		keep(b.records, id, r != 0, func() []byte {
			rec := s.records.at(r)
			return appendRecord(nil, rec, m.textOf(rec))
		})
	}
}

func (m *Machine) keepDenials(s *shard, of recordID, r ref) {
	if b := m.changing(s); b != nil {
		keep(b.denials, of, r != 0, func() []byte { return appendDenials(nil, s.denials.at(r)) })
	}
}

// keep notes how a thing was before its first change.
func keep[K comparable](in map[K][]byte, id K, there bool, encode func() []byte) {
	if _, known := in[id]; known {
		return
	}
	in[id] = nil
	if there {
		in[id] = encode()
	}
}

// frameHeadBytes are before a frame's payload: its length and its CRC.
const frameHeadBytes = 8

func appendFrame(b, payload []byte) []byte {
	at := len(b)
	b = append(append(b, make([]byte, frameHeadBytes)...), payload...)
	putFrameHead(b[at:])
	return b
}

// putFrameHead completes a frame whose payload follows the room for its head.
func putFrameHead(frame []byte) {
	payload := frame[frameHeadBytes:]
	binary.LittleEndian.PutUint32(frame, uint32(len(payload)))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(payload, castagnoli))
}

// liveRevisions are the revisions that are in force or may be carried, those of a sealed import included, oldest
// first.
func (m *Machine) liveRevisions() []*revision {
	live := map[Revision]*revision{m.rev.number(): m.rev}
	if m.inbound != nil {
		for _, r := range m.inbound.carried {
			live[r.number()] = r
		}
	}
	for _, nm := range m.allNames() {
		for _, r := range nm.exact {
			live[r.number()] = r
		}
	}
	out := make([]*revision, 0, len(live))
	for _, n := range slices.Sorted(maps.Keys(live)) {
		out = append(out, live[n])
	}
	return out
}

// appendConfig encodes all that only rare entries change: births, installs, plans, raises.
func (m *Machine) appendConfig(b []byte) []byte {
	b = appendString(b, m.cluster)
	b = appendString(b, m.partition)
	b = binary.AppendVarint(b, int64(m.birth))
	b = append(b, m.seed[:]...)
	b = binary.AppendVarint(b, m.bounds.MaxKeys)
	b = binary.AppendVarint(b, m.bounds.MaxReplayRecords)
	b = binary.AppendUvarint(b, uint64(m.level))
	b = appendOwned(b, m.owned)
	b = binary.AppendUvarint(b, uint64(m.endedPlan))
	b = append(b, byte(m.endedBy))
	b = binary.AppendUvarint(b, uint64(m.frozenBy))
	b = binary.AppendVarint(b, int64(m.frozenAt))
	b = binary.AppendVarint(b, int64(m.lost))
	b = binary.AppendUvarint(b, uint64(m.rev.number()))
	live := m.liveRevisions()
	b = binary.AppendUvarint(b, uint64(len(live)))
	for _, r := range live {
		sum := r.policy.Digest()
		b = append(appendPolicyRef(b, &r.ref), sum[:]...)
	}
	b = m.inbound.append(b)
	b = m.packed.append(b)
	b = appendRanges(b, m.leaving)
	b = appendLabels(b, m.labels)
	b = binary.AppendUvarint(b, uint64(len(m.classes)))
	for _, c := range m.sortedClasses() {
		b = appendString(b, c.name)
		b = binary.AppendVarint(b, int64(c.knownSince))
		b = appendHolds(b, c.removed)
		b = appendHolds(b, c.carried)
	}
	b = appendName(b, &m.unlisted)
	b = binary.AppendUvarint(b, uint64(len(m.names)))
	for _, n := range m.sortedNames() {
		b = appendName(appendString(b, n), m.names[n])
	}
	return b
}

func appendLabels(b []byte, labels []label) []byte {
	b = binary.AppendUvarint(b, uint64(len(labels)))
	for _, l := range labels {
		b = binary.AppendUvarint(b, uint64(l.revision))
		b = appendString(b, l.version)
		b = binary.AppendVarint(b, int64(l.ended))
	}
	return b
}

func appendHolds(b []byte, holds []hold) []byte {
	b = binary.AppendUvarint(b, uint64(len(holds)))
	for _, h := range holds {
		b = binary.AppendVarint(b, h.windowNanos)
		b = binary.AppendVarint(b, int64(h.until))
	}
	return b
}

func appendName(b []byte, nm *name) []byte {
	b = binary.AppendVarint(b, int64(nm.since))
	b = binary.AppendVarint(b, int64(nm.settled))
	b = binary.AppendUvarint(b, uint64(len(nm.exact)))
	for _, r := range nm.exact {
		b = binary.AppendUvarint(b, uint64(r.number()))
	}
	return b
}

// appendShard encodes a shard as it was when was began to be kept; nil for as it is.
func (m *Machine) appendShard(b []byte, s *shard, was *before, memory *scratch) []byte {
	if was == nil {
		was = &before{}
	}
	var keys []*key
	b, memory.names = appendAll(b, memory.names, &s.byName, was.principals, strings.Compare,
		func(r ref) string { return s.principals.at(r).name },
		func(b []byte, r ref) []byte {
			p := s.principals.at(r)
			keys = s.keysOf(keys[:0], p)
			return appendPrincipal(b, p.name, keys)
		})
	compare := func(x, y recordID) int { return bytes.Compare(x[:], y[:]) }
	if !guard.On(guard.ReplayInSnapshot) {
		return append(b, 0, 0)
	}
	b, memory.ids = appendAll(b, memory.ids, &s.byID, was.records, compare,
		func(r ref) recordID { return s.records.at(r).id },
		func(b []byte, r ref) []byte { return appendRecord(b, s.records.at(r), m.textOf(s.records.at(r))) })
	b, memory.ids = appendAll(b, memory.ids, &s.byCaller, was.denials, compare,
		func(r ref) recordID { return s.denials.at(r).of },
		func(b []byte, r ref) []byte { return appendDenials(b, s.denials.at(r)) })
	clear(memory.names[:cap(memory.names)]) // the names are those of the shard
	return b
}

// thing is what a shard has under an id.
type thing[K comparable] struct {
	id  K
	ref ref // 0: as it was
}

// appendAll encodes what is there, but as it was where that is known, in the order of the ids. It puts them in order in
// the memory of things, which it returns.
func appendAll[K comparable](
	b []byte, things []thing[K], now *index, was map[K][]byte, compare func(x, y K) int, idOf func(ref) K,
	encode func([]byte, ref) []byte,
) ([]byte, []thing[K]) {
	things = slices.Grow(things[:0], now.n+len(was))
	for r := range now.each {
		if id := idOf(r); len(was) == 0 {
			things = append(things, thing[K]{id, r})
		} else if _, changed := was[id]; !changed {
			things = append(things, thing[K]{id, r})
		}
	}
	for id, old := range was {
		if old != nil {
			things = append(things, thing[K]{id, 0})
		}
	}
	slices.SortFunc(things, func(x, y thing[K]) int { return compare(x.id, y.id) })
	b = binary.AppendUvarint(b, uint64(len(things)))
	for _, t := range things {
		if t.ref == 0 {
			b = append(b, was[t.id]...)
		} else {
			b = encode(b, t.ref)
		}
	}
	return b, things
}

func appendPrincipal(b []byte, name string, keys []*key) []byte {
	b = appendString(b, name)
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, k := range keys {
		b = appendString(b, k.class.name)
		b = binary.AppendVarint(b, int64(k.lookAt))
		b = appendLog(b, &k.log)
	}
	return b
}

func appendLog(b []byte, l *rolling) []byte {
	b = binary.AppendUvarint(b, uint64(l.len()))
	var last Time
	for i := int(l.head); i < len(l.pairs); i++ {
		b = binary.AppendUvarint(b, uint64(l.pairs[i].at-last))
		b = binary.AppendUvarint(b, l.weight(i))
		last = l.pairs[i].at
	}
	return b
}

func appendRecord(b []byte, rec *record, text string) []byte {
	var allowed byte
	if rec.allowed {
		allowed = 1
	}
	b = append(b, rec.id[:]...)
	b = append(b, allowed)
	b = binary.AppendUvarint(b, uint64(rec.slot))
	b = binary.LittleEndian.AppendUint64(b, rec.payload)
	b = binary.AppendVarint(b, int64(rec.ends))
	b = binary.AppendVarint(b, int64(rec.retryAt))
	b = binary.AppendVarint(b, rec.remaining)
	b = binary.AppendUvarint(b, uint64(rec.revision))
	return appendString(b, text)
}

func appendDenials(b []byte, list *denialList) []byte {
	b = append(b, list.of[:]...)
	b = binary.AppendUvarint(b, uint64(list.slot))
	b = binary.AppendVarint(b, int64(list.lookAt))
	b = binary.AppendUvarint(b, uint64(len(list.ends)))
	for _, t := range list.ends {
		b = binary.AppendVarint(b, int64(t))
	}
	return b
}
