package fsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/quorate/quorate/policy"
)

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
	m.level = d.level()
	m.owned, m.endedPlan = d.owned(), PlanID(d.uvarint())
	current := Revision(d.uvarint())
	sums := map[Revision][32]byte{}
	for range d.count() {
		number, sum := Revision(d.uvarint()), [32]byte{}
		d.array(sum[:])
		sums[number] = sum
	}
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
	for nm, number := range exact {
		nm.exact = revisions[number]
		r.must(number == 0 || nm.exact != nil, number)
	}
	for number, rev := range revisions {
		r.must(rev.policy != nil && rev.policy.Digest() == sums[number], number)
	}
	r.must(m.rev != nil, current)
	if r.err == nil {
		r.link()
	}
}

// must notes that the policy of a revision is missing or another.
func (r *restorer) must(ok bool, number Revision) {
	if r.err == nil && !ok {
		r.err = fmt.Errorf("the policy of revision %d is missing, or is another: it is damaged", number)
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

// policy reads the policy that takes the rest of a frame.
func (d *decoder) policy() *policy.Policy {
	if d.err != nil {
		return nil
	}
	p, err := policy.Decode(d.b)
	if err != nil {
		d.fail(err)
		return nil
	}
	d.b = nil
	return p
}
