package state

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// The kinds of elements, so that equal bytes of different meaning never hash alike. The numbers are durable, and
// the order of the frames of a snapshot, which tagEnd ends: a new kind gets the next number after the last.
const (
	tagHead      byte = 1
	tagNode      byte = 2
	tagPartition byte = 3
	tagPlan      byte = 4
	tagEnded     byte = 5
	tagRevision  byte = 6
	tagRecorded  byte = 7
	tagToken     byte = 8
	tagEnd       byte = 255
)

func (c *codec) node(n *Node) {
	for _, s := range []*string{&n.ID, &n.Instance, &n.GRPC, &n.HTTP, &n.Raft, &n.Zone} {
		c.string(s)
	}
	list(c, &n.Former, text)
	number(c, &n.State)
}

func (c *codec) partition(p *Partition) {
	number(c, &p.ID)
	list(c, &p.Ranges, ownedRange)
	list(c, &p.Replicas, text)
	c.uint(&p.ConfVersion)
	c.string(&p.Founder)
	number(c, &p.Plan)
	number(c, &p.Installed)
}

func (c *codec) plan(p *Plan) {
	number(c, &p.ID)
	number(c, &p.Kind)
	number(c, &p.Source)
	number(c, &p.Destination)
	c.bool(&p.Made)
	c.string(&p.From)
	c.bool(&p.AcceptLoss)
	list(c, &p.Ranges, ownedRange)
	number(c, &p.Phase)
	number(c, &p.Epoch)
	c.array(p.Proof[:])
	c.bool(&p.Closed)
	for _, s := range []*string{&p.Author, &p.Comment, &p.Message} {
		c.string(s)
	}
	c.int(&p.StartedWallNanos)
	c.int(&p.EndedWallNanos)
}

func (c *codec) revision(r *Revision) {
	number(c, &r.Number)
	c.string(&r.Label)
	number(c, &r.Kind)
	number(c, &r.Base)
	c.array(r.Body[:])
	c.int(&r.Bytes)
	list(c, &r.Switches, func(c *codec, s *Switch) {
		c.string(&s.Class)
		c.bool(&s.Disabled)
	})
	number(c, &r.Of)
	c.string(&r.Author)
	c.int(&r.WallNanos)
	c.string(&r.Comment)
}

func (c *codec) token(t *Token) {
	c.string(&t.ID)
	c.string(&t.Name)
	c.string(&t.Role)
	c.array(t.Hash[:])
	c.int(&t.CreatedNanos)
	c.int(&t.ExpiresNanos)
	c.bool(&t.Revoked)
}

func (c *codec) recorded(r *recorded) {
	c.array(r.id[:])
	c.uint(&r.result.Index)
	c.uint(&r.result.Version)
	c.uint(&r.result.Map)
	number(c, &r.result.Revision)
	number(c, &r.result.Partition)
	number(c, &r.result.Plan)
	refused := r.result.Refused != nil
	c.bool(&refused)
	if refused {
		part(c, &r.result.Refused, func(c *codec, f *Refusal) {
			number(c, &f.Code)
			c.string(&f.Message)
			c.uint(&f.Current)
			if f.Code == CodeNone || f.Code > lastCode {
				c.fail(fmt.Errorf("refusal code %d is unknown", f.Code))
			}
		})
	}
}

// head is everything but the lists.
func (c *codec) head(s *State) {
	c.bool(&s.Born)
	c.string(&s.Cluster)
	number(c, &s.Incarnation)
	c.array(s.Seed[:])
	number(c, &s.Level)
	c.uint(&s.Version)
	c.uint(&s.MapVersion)
	c.uint(&s.Counter)
	number(c, &s.NextPartition)
	number(c, &s.LastPlan)
	c.uint(&s.BodyEpoch)
	c.array(s.RestoredFrom[:])
	c.uint(&s.AuditCount)
	c.array(s.AuditHash[:])
}

// sum is a sum modulo 2^128 of the hashes of the elements: free of order, and each change costs one
// addition (an AdHash, Bellare and Micciancio, 1997; here against accidents only).
type sum struct{ lo, hi uint64 }

func (s *sum) add(e sum) {
	var carry uint64
	s.lo, carry = bits.Add64(s.lo, e.lo, 0)
	s.hi, _ = bits.Add64(s.hi, e.hi, carry)
}

func (s *sum) sub(e sum) {
	var borrow uint64
	s.lo, borrow = bits.Sub64(s.lo, e.lo, 0)
	s.hi, _ = bits.Sub64(s.hi, e.hi, borrow)
}

// hashOf is the hash of one element; zero for nil.
func hashOf[E any](tag byte, e *E, each func(*codec, *E)) sum {
	if e == nil {
		return sum{}
	}
	w := &codec{b: []byte{tag}}
	each(w, e)
	h := sha256.Sum256(w.b)
	return sum{binary.LittleEndian.Uint64(h[:8]), binary.LittleEndian.Uint64(h[8:16])}
}

// Digest is a canonical digest of the whole state, the audit trail included: replicas that applied the
// same commands have equal digests.
func (s *State) Digest() [16]byte {
	w := &codec{b: []byte{tagHead}}
	w.head(s)
	w.uint(&s.elements.lo)
	w.uint(&s.elements.hi)
	h := sha256.Sum256(w.b)
	return [16]byte(h[:16])
}

// recordVersion is the version of the encoding of audit records.
const recordVersion = 1

// AppendRecord appends the durable encoding of r to b.
func AppendRecord(b []byte, r *Record) []byte {
	w := &codec{b: append(b, recordVersion)}
	w.record(r)
	return w.b
}

// DecodeRecord reads what AppendRecord wrote, and nothing else.
func DecodeRecord(b []byte) (*Record, error) {
	if len(b) == 0 {
		return nil, fmt.Errorf("audit record: %w", errCut)
	}
	if b[0] != recordVersion {
		return nil, fmt.Errorf("audit record of version %d: this program knows version %d, use the one that wrote it",
			b[0], recordVersion)
	}
	d, r := &codec{b: b[1:], reading: true}, &Record{}
	d.record(r)
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("audit record: %w", err)
	}
	if r.Index == 0 {
		return nil, errors.New("audit record: it has no index")
	}
	return r, nil
}

func (c *codec) record(r *Record) {
	c.uint(&r.Index)
	c.int(&r.WallNanos)
	for _, s := range []*string{
		&r.Actor, &r.Action, &r.Object, &r.Comment, &r.Difference, &r.Result, &r.Message,
	} {
		c.string(s)
	}
}

// NextHash is the running hash of the audit trail after one more record.
func NextHash(before Digest, r *Record) Digest {
	return sha256.Sum256(AppendRecord(before[:len(before):len(before)], r))
}
