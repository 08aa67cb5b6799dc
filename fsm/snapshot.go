package fsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"

	"github.com/quorate/quorate/policy"
)

// A snapshot is a magic number with the format's version, then frames: the configuration, each policy
// that is in force or carried, each shard, and the digest of it all. A frame is a length and a CRC-32C,
// four bytes each, little-endian, and its payload.
var snapshotMagic = [8]byte{'Q', 'U', 'O', 'R', 'F', 'S', 'M', 1}

// maxFrameBytes bounds a frame. The largest is a policy with all the overrides that one may have.
const maxFrameBytes = 1 << 30

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Snapshot is the state as of one entry, on its way out while later entries go on being applied: a
// shard that an entry is about to change is encoded before the change.
type Snapshot struct {
	m        *Machine
	config   []byte
	policies []*revision
	digest   [16]byte
	next     int               // frame
	encoded  [numShards][]byte // shards that changed before their turn
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
	s.config = append(s.config, m.config...)
	m.snapshot = s
	return s
}

// Release ends the snapshot, whether it was written to its end or not.
func (s *Snapshot) Release() {
	if s.m.snapshot == s {
		s.m.snapshot = nil
	}
	s.encoded = [numShards][]byte{}
}

// Next appends the next piece of the snapshot to b; more is false when it was the last. No entry may
// be applied meanwhile.
func (s *Snapshot) Next(b []byte) (piece []byte, more bool) {
	i := s.next
	s.next++
	switch shard := i - 1 - len(s.policies); {
	case i == 0:
		return appendFrame(append(b, snapshotMagic[:]...), s.config), true
	case shard < 0:
		r := s.policies[i-1]
		return appendFrame(b, r.policy.AppendBinary(binary.AppendUvarint(nil, uint64(r.number)))), true
	case shard < numShards:
		payload := s.encoded[shard]
		if payload == nil {
			payload = s.m.appendShard([]byte{}, s.m.shards[shard])
		}
		s.encoded[shard] = []byte{} // written: later changes are not ours
		return appendFrame(b, payload), true
	default:
		return appendFrame(b, s.digest[:]), false
	}
}

// touch must be called before any change to a shard.
func (m *Machine) touch(s *shard) {
	if m.snapshot != nil && m.snapshot.encoded[s.index] == nil {
		m.snapshot.encoded[s.index] = m.appendShard([]byte{}, s)
	}
}

func appendFrame(b, payload []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(payload, castagnoli))
	return append(b, payload...)
}

// liveRevisions are the revisions that are in force or may be carried, oldest first.
func (m *Machine) liveRevisions() []*revision {
	live := map[Revision]*revision{m.rev.number: m.rev}
	for _, nm := range m.allNames() {
		if nm.exact != nil {
			live[nm.exact.number] = nm.exact
		}
	}
	out := make([]*revision, 0, len(live))
	for _, n := range slices.Sorted(maps.Keys(live)) {
		out = append(out, live[n])
	}
	return out
}

// appendConfig encodes all that only births, installs and plans change.
func (m *Machine) appendConfig(b []byte) []byte {
	b = appendString(b, m.cluster)
	b = appendString(b, m.partition)
	b = binary.AppendVarint(b, int64(m.birth))
	b = append(b, m.seed[:]...)
	b = binary.AppendVarint(b, m.bounds.MaxKeys)
	b = binary.AppendVarint(b, m.bounds.MaxReplayRecords)
	b = appendOwned(b, m.owned)
	b = binary.AppendUvarint(b, uint64(m.endedPlan))
	b = binary.AppendUvarint(b, uint64(m.rev.number))
	sum := m.rev.policy.Digest()
	b = append(b, sum[:]...)
	b = binary.AppendUvarint(b, uint64(len(m.labels)))
	for _, l := range m.labels {
		b = binary.AppendUvarint(b, uint64(l.revision))
		b = appendString(b, l.version)
		b = binary.AppendVarint(b, int64(l.ended))
	}
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
	if nm.exact == nil {
		return binary.AppendUvarint(b, 0)
	}
	return binary.AppendUvarint(b, uint64(nm.exact.number))
}

func (m *Machine) appendShard(b []byte, s *shard) []byte {
	b = binary.AppendUvarint(b, uint64(len(s.principals)))
	for _, n := range slices.Sorted(maps.Keys(s.principals)) {
		p := s.principals[n]
		b = appendString(b, p.name)
		b = binary.AppendUvarint(b, uint64(len(p.keys)))
		for _, k := range p.keys {
			b = appendString(b, k.class.name)
			b = binary.AppendVarint(b, int64(k.lookAt))
			b = appendLog(b, &k.log)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(s.records)))
	for _, id := range sortedIDs(s.records) {
		b = m.appendRecord(b, id, s.records[id])
	}
	b = binary.AppendUvarint(b, uint64(len(s.denials)))
	for _, of := range sortedIDs(s.denials) {
		b = appendDenials(b, of, s.denials[of])
	}
	return b
}

func sortedIDs[V any](of map[recordID]V) []recordID {
	ids := slices.Collect(maps.Keys(of))
	slices.SortFunc(ids, func(a, b recordID) int { return bytes.Compare(a[:], b[:]) })
	return ids
}

func appendLog(b []byte, l *rolling) []byte {
	b = binary.AppendUvarint(b, uint64(l.len()))
	var last Time
	for i := l.head; i < len(l.pairs); i++ {
		b = binary.AppendUvarint(b, uint64(l.pairs[i].at-last))
		b = binary.AppendUvarint(b, l.weight(i))
		last = l.pairs[i].at
	}
	return b
}

func (m *Machine) appendRecord(b []byte, id recordID, rec record) []byte {
	texts := &m.limitNames
	var allowed byte
	if rec.allowed {
		texts, allowed = &m.gateways, 1
	}
	b = append(b, id[:]...)
	b = append(b, allowed)
	b = binary.AppendUvarint(b, uint64(rec.slot))
	b = binary.LittleEndian.AppendUint64(b, rec.payload)
	b = binary.AppendVarint(b, int64(rec.ends))
	b = binary.AppendVarint(b, int64(rec.retryAt))
	b = binary.AppendVarint(b, rec.remaining)
	b = binary.AppendUvarint(b, uint64(rec.revision))
	return appendString(b, texts.text(rec.name))
}

func appendDenials(b []byte, of recordID, list denialList) []byte {
	b = append(b, of[:]...)
	b = binary.AppendUvarint(b, uint64(list.slot))
	b = binary.AppendVarint(b, int64(list.lookAt))
	b = binary.AppendUvarint(b, uint64(len(list.ends)))
	for _, t := range list.ends {
		b = binary.AppendVarint(b, int64(t))
	}
	return b
}

// Restore reads a snapshot back. It checks each frame, and at the end the digest of the state that it
// has built against the one that the snapshot was taken with.
func Restore(r io.Reader) (*Machine, error) {
	var magic [8]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	if magic != snapshotMagic {
		return nil, fmt.Errorf(
			"snapshot: it begins with %q: not a snapshot of this format, use the program that wrote it", magic[:])
	}
	m := New()
	restore := restorer{m: m, r: r}
	restore.config()
	for i := 0; i < numShards && restore.err == nil; i++ {
		restore.shard(m.shards[i])
	}
	want := restore.frame()
	if restore.err == nil && len(want) != 16 {
		restore.err = errCut
	}
	if restore.err != nil {
		return nil, fmt.Errorf("snapshot: %w", restore.err)
	}
	m.calendar = newCalendar(m.shards)
	m.shareKeys()
	if got := m.Digest(); !bytes.Equal(got[:], want) {
		return nil, fmt.Errorf("snapshot: its state has digest %x, it was taken with %x: it is damaged", got, want)
	}
	return m, nil
}

// restorer reads the frames of a snapshot into a machine. The first error stays.
type restorer struct {
	m   *Machine
	r   io.Reader
	err error
}

func (r *restorer) frame() []byte {
	var head [8]byte
	if r.err != nil {
		return nil
	}
	if _, r.err = io.ReadFull(r.r, head[:]); r.err != nil {
		return nil
	}
	n := binary.LittleEndian.Uint32(head[:4])
	if n > maxFrameBytes {
		r.err = fmt.Errorf("a frame of %d bytes: it is damaged", n)
		return nil
	}
	var payload bytes.Buffer // grows with what is there, not with what the head claims
	if _, r.err = io.CopyN(&payload, r.r, int64(n)); r.err != nil {
		return nil
	}
	if crc32.Checksum(payload.Bytes(), castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		r.err = fmt.Errorf("a frame with a wrong checksum: it is damaged")
		return nil
	}
	return payload.Bytes()
}

// close notes the error of a finished frame.
func (r *restorer) close(d *decoder) {
	if err := d.end(); r.err == nil && err != nil {
		r.err = err
	}
}

func (r *restorer) config() {
	m, d := r.m, &decoder{b: r.frame()}
	m.now, m.wallBound = d.time(), d.varint()
	policies := d.count()
	m.cluster, m.partition, m.birth = d.string(), d.string(), d.time()
	d.array(m.seed[:])
	m.key0 = binary.LittleEndian.Uint64(m.seed[:8])
	m.key1 = binary.LittleEndian.Uint64(m.seed[8:])
	m.bounds = Bounds{MaxKeys: d.varint(), MaxReplayRecords: d.varint()}
	m.owned, m.endedPlan = d.owned(), PlanID(d.uvarint())
	current := Revision(d.uvarint())
	var sum [32]byte
	d.array(sum[:])
	for range d.count() {
		m.labels = append(m.labels, label{Revision(d.uvarint()), d.string(), d.time()})
	}
	for range d.count() {
		c := m.classFor(d.string())
		c.knownSince, c.removed, c.carried = d.time(), d.holds(), d.holds()
	}
	exact := map[*name]Revision{}
	m.unlisted = d.name(exact)
	exact[&m.unlisted] = exact[nil]
	for range d.count() {
		apiClass, nm := d.string(), d.name(exact)
		m.names[apiClass] = &nm
		exact[&nm] = exact[nil]
	}
	delete(exact, nil)
	r.close(d)
	revisions := r.policies(policies)
	m.rev = revisions[current]
	if r.err == nil && (m.rev == nil || m.rev.policy.Digest() != sum) {
		r.err = fmt.Errorf("the policy of revision %d is missing: it is damaged", current)
	}
	for nm, number := range exact {
		nm.exact = revisions[number]
		if r.err == nil && number != 0 && nm.exact == nil {
			r.err = fmt.Errorf("the policy of revision %d is missing: it is damaged", number)
		}
	}
	if r.err == nil {
		r.link()
	}
}

// link derives what follows from the policy in force.
func (r *restorer) link() {
	m := r.m
	for _, c := range m.classes {
		if c.listed(m.rev.policy) {
			c.windows = m.rev.policy.Windows(c.name)
		}
	}
	for _, n := range append(m.rev.policy.ClassNames(), policy.DefaultClass) {
		if m.classes[n] == nil || n != policy.DefaultClass && m.names[n] == nil {
			r.err = fmt.Errorf("the history of class %q is missing: it is damaged", n)
		}
	}
}

func (r *restorer) policies(n int) map[Revision]*revision {
	out := map[Revision]*revision{}
	for i := 0; i < n && r.err == nil; i++ {
		d := &decoder{b: r.frame()}
		rev := &revision{Revision(d.uvarint()), d.policy()}
		r.close(d)
		out[rev.number] = rev
	}
	return out
}

func (d *decoder) holds() []hold {
	var out []hold
	for range d.count() {
		out = append(out, hold{d.varint(), d.time()})
	}
	return out
}

// name reads a name, and leaves the number of its exact revision at exact[nil].
func (d *decoder) name(exact map[*name]Revision) name {
	nm := name{since: d.time(), settled: d.time()}
	exact[nil] = Revision(d.uvarint())
	return nm
}

func (r *restorer) shard(s *shard) {
	d := &decoder{b: r.frame()}
	for range d.count() {
		r.principal(s, d)
	}
	for range d.count() {
		r.record(s, d)
	}
	for range d.count() {
		var of recordID
		d.array(of[:])
		list := denialList{slot: Slot(d.uvarint()), lookAt: d.time()}
		for range d.count() {
			list.ends = append(list.ends, d.time())
		}
		r.m.setDenials(s, of, list)
		s.agenda.push(due{at: list.lookAt, kind: dueDenials, id: of})
	}
	r.close(d)
}

func (r *restorer) principal(s *shard, d *decoder) {
	m := r.m
	p := &principal{name: d.string()}
	p.slot = m.SlotOf(p.name)
	for range d.count() {
		className, lookAt := d.string(), d.time()
		c := m.classes[className]
		if c == nil {
			d.fail(fmt.Errorf("a key of class %q, which has no history", className))
			return
		}
		k := &key{owner: p, class: c, lookAt: lookAt}
		p.keys = append(p.keys, k)
		d.log(&k.log)
		c.keys++
		m.keys++
		m.digest.add(m.hashKey(k))
		m.hashLog(k, m.digest.add)
		s.agenda.push(due{at: lookAt, kind: dueKey, key: k})
	}
	s.principals[p.name] = p
}

func (d *decoder) log(l *rolling) {
	var at Time
	for range d.count() {
		at += Time(d.uvarint())
		l.append(at, d.uvarint())
	}
}

func (r *restorer) record(s *shard, d *decoder) {
	m := r.m
	var id recordID
	d.array(id[:])
	rec := record{allowed: d.byte() == 1, slot: Slot(d.uvarint())}
	var payload [8]byte
	d.array(payload[:])
	rec.payload = binary.LittleEndian.Uint64(payload[:])
	rec.ends, rec.retryAt, rec.remaining = d.time(), d.time(), d.varint()
	rec.revision = Revision(d.uvarint())
	text := d.string()
	if d.err != nil {
		return
	}
	if rec.allowed {
		rec.name = m.gateways.use(text)
		m.allows++
	} else {
		rec.name = m.limitNames.use(text)
		m.denials++
	}
	s.records[id] = rec
	m.digest.add(m.hashRecord(id, rec))
	s.agenda.push(due{at: rec.ends, kind: dueRecord, id: id})
}
