package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/quorate/quorate/internal/guard"
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
		restore.shard()
	}
	restore.staged()
	want := restore.frame()
	if restore.err == nil && len(want) != 16 {
		restore.err = errCut
	}
	if restore.err != nil {
		return nil, fmt.Errorf("snapshot: %w", restore.err)
	}
	m.calendar = newCalendar(m.shards)
	m.shareKeys()
	if got := m.Digest(); !bytes.Equal(got[:], want) && keptWhole() {
		return nil, fmt.Errorf("snapshot: its state has digest %x, it was taken with %x: it is damaged", got, want)
	}
	return m, nil
}

// keptWhole reports that a snapshot has to be read back as it was, which it always has in the product.
func keptWhole() bool {
	return guard.On(guard.ReplayInSnapshot) && guard.On(guard.ReplayAtRestart) && guard.On(guard.NewestInSnapshot)
}

// restorer reads the frames of a snapshot into a machine. The first error stays.
type restorer struct {
	m   *Machine
	r   io.Reader
	err error
	// images, packed and parts is how many are to come.
	images, packed, parts int
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
	r.images, r.packed, r.parts = int(d.slot(NumSlots+1)), int(d.slot(NumSlots)), int(d.slot(NumSlots+1))
	m.left = int(d.slot(numShards))
	m.cluster, m.partition, m.birth = d.string(), d.string(), d.time()
	d.array(m.seed[:])
	m.key0 = binary.LittleEndian.Uint64(m.seed[:8])
	m.key1 = binary.LittleEndian.Uint64(m.seed[8:])
	m.bounds = Bounds{MaxKeys: d.varint(), MaxReplayRecords: d.varint()}
	m.level = d.level()
	m.owned, m.endedPlan, m.endedBy = d.owned(), PlanID(d.uvarint()), Kind(d.byte())
	m.frozenBy, m.frozenAt, m.lost = PlanID(d.uvarint()), d.time(), d.time()
	current := Revision(d.uvarint())
	refs := d.liveRefs()
	inbound, sealed := d.inbound()
	m.inbound, m.packed, m.leaving = inbound, d.packed(), d.ranges()
	for range d.count() {
		m.labels = append(m.labels, label{Revision(d.uvarint()), d.string(), d.time()})
	}
	for range d.count() {
		c := m.classFor(d.string())
		c.knownSince, c.removed, c.carried = d.time(), d.holds(), d.holds()
	}
	exact := map[*name][]Revision{}
	m.unlisted, exact[&m.unlisted] = d.name()
	for range d.count() {
		apiClass := d.string()
		nm, carried := d.name()
		m.names[apiClass], exact[&nm] = &nm, carried
	}
	r.close(d)
	revisions := r.policies(policies, refs)
	m.rev = r.revision(revisions, current)
	for nm, carried := range exact {
		for _, number := range carried {
			nm.exact = append(nm.exact, r.revision(revisions, number))
		}
	}
	for _, number := range sealed {
		m.inbound.carried = append(m.inbound.carried, r.revision(revisions, number))
	}
	if r.err == nil {
		r.link()
	}
}

// liveRef is a policy that a snapshot holds.
type liveRef struct {
	PolicyRef
	sum [32]byte // digest of the policy itself
}

func (d *decoder) liveRefs() map[Revision]liveRef {
	out := map[Revision]liveRef{}
	for range d.count() {
		ref := liveRef{PolicyRef: d.policyRef()}
		d.array(ref.sum[:])
		out[ref.Revision] = ref
	}
	return out
}

// packed reads what packed.append wrote.
func (d *decoder) packed() *packed {
	if d.byte() == 0 {
		return nil
	}
	return &packed{images: make([]*image, NumSlots), shift: d.time()}
}

// image reads an image; nil when there is none.
func (r *restorer) image() *image {
	d := &decoder{b: r.frame()}
	of := d.slotDigest()
	if r.err == nil {
		r.err = d.err
	}
	if r.err != nil {
		return nil
	}
	img, err := r.m.complete(of, d.b)
	r.err = err
	return img
}

// revision finds a revision, and notes that it is missing.
func (r *restorer) revision(in map[Revision]*revision, number Revision) *revision {
	if r.err == nil && in[number] == nil {
		r.err = fmt.Errorf("the policy of revision %d is missing: it is damaged", number)
	}
	return in[number]
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
	m.measureCarried()
}

func (r *restorer) policies(n int, refs map[Revision]liveRef) map[Revision]*revision {
	out := map[Revision]*revision{}
	for i := 0; i < n && r.err == nil; i++ {
		d := &decoder{b: r.frame()}
		number := Revision(d.uvarint())
		rev := &revision{refs[number].PolicyRef, d.policy()}
		r.close(d)
		if r.err == nil && (rev.number() != number || rev.policy.Digest() != refs[number].sum) {
			r.err = fmt.Errorf("the policy of revision %d is another: it is damaged", number)
		}
		out[number] = rev
	}
	return out
}

// staged reads the images that are staged, and those that are begun.
func (r *restorer) staged() {
	if r.err == nil && (r.m.inbound == nil && r.images+r.parts > 0 || (r.m.packed == nil) != (r.packed == 0)) {
		r.err = errors.New("images without a plan: it is damaged")
	}
	for i := 0; i < r.images && r.err == nil; i++ {
		if img := r.image(); img != nil {
			r.m.unstage(img.Slot)
			r.m.keepImage(img)
		}
	}
	for i := 0; i < r.packed && r.err == nil; i++ {
		img := r.image()
		if r.err != nil {
			return
		}
		unknown := func(n string) bool { return r.m.classes[n] == nil }
		if img.Slot == HistorySlot || r.m.packed.images[img.Slot] != nil || slices.ContainsFunc(img.classes, unknown) {
			r.err = fmt.Errorf("slot %d is packed and cannot be: it is damaged", img.Slot)
			return
		}
		r.m.pack(img)
	}
	if in := r.m.inbound; r.err == nil && in != nil && in.phase == PlanSealed &&
		r.m.hashSlots(in.staged()) != in.manifest.Digest {
		r.err = errors.New("what is staged is not what was sealed: it is damaged")
	}
	for i := 0; i < r.parts && r.err == nil; i++ {
		d := &decoder{b: r.frame()}
		at := d.part()
		if r.close(d); r.err == nil {
			r.m.unstagePart(at.Slot)
			r.m.keepPart(at)
		}
	}
}

func (d *decoder) holds() []hold {
	var out []hold
	for range d.count() {
		out = append(out, hold{d.varint(), d.time()})
	}
	return out
}

// name reads a name, and the numbers of the revisions that are carried for it.
func (d *decoder) name() (nm name, exact []Revision) {
	nm = name{since: d.time(), settled: d.time()}
	for range d.count() {
		exact = append(exact, Revision(d.uvarint()))
	}
	return nm, exact
}

func (r *restorer) shard() {
	d := &decoder{b: r.frame()}
	for range d.count() {
		r.principal(d)
	}
	for range d.count() {
		if rec := d.record(); d.err == nil && guard.On(guard.ReplayAtRestart) {
			r.m.bringRecord(&rec)
		}
	}
	for range d.count() {
		if list := d.denials(); d.err == nil {
			r.m.bringDenials(list)
		}
	}
	r.close(d)
}

func (r *restorer) principal(d *decoder) {
	m := r.m
	c := m.callerOf(d.string())
	for range d.count() {
		className, lookAt := d.string(), d.time()
		k := key{class: m.classes[className], lookAt: lookAt}
		if k.class == nil {
			d.fail(fmt.Errorf("a key of class %q, which has no history", className))
			return
		}
		d.log(&k.log)
		m.bringKey(&c, k)
	}
}

func (d *decoder) log(l *rolling) {
	var at Time
	for range d.count() {
		at += Time(d.uvarint())
		l.append(at, d.uvarint())
	}
	if n := len(l.pairs); n > 1 && !guard.On(guard.NewestInSnapshot) {
		l.pairs = l.pairs[:n-1]
	}
}

func (d *decoder) denials() (list denialList) {
	d.array(list.of[:])
	list.slot, list.lookAt = d.slot(NumSlots-1), d.time()
	for range d.count() {
		list.ends = append(list.ends, d.time())
	}
	return list
}

func (d *decoder) record() (rec heldRecord) {
	d.array(rec.id[:])
	switch flag := d.byte(); flag {
	case 0, 1:
		rec.allowed = flag == 1
	default:
		d.fail(fmt.Errorf("what a record is, is said by %d", flag))
	}
	rec.slot = d.slot(NumSlots - 1)
	var payload [8]byte
	d.array(payload[:])
	rec.payload = binary.LittleEndian.Uint64(payload[:])
	rec.ends, rec.retryAt, rec.remaining = d.time(), d.time(), d.varint()
	rec.revision = Revision(d.uvarint())
	rec.text = d.string()
	return rec
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
