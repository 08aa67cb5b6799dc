package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// Restored is what a cluster that is made of a backup takes over of the control state. Nodes, partitions and the
// audit trail are not part of it: they begin anew.
type Restored struct {
	Cluster       string
	Incarnation   uint32   // that the cluster had; the new one has a larger one
	Seed          [16]byte // of the slot hash: principals stay in their slots
	NextPartition PartitionID
	LastPlan      fsm.PlanID
	Revisions     []*Revision // the newest, oldest first, as many as have room
	Tokens        []*Token    // by id
	// Backup is the digest of the backup. A backup does not hold its own: whoever restores one sets it.
	Backup Digest
}

// restoredMapShift puts the incarnation above the map versions of a restored cluster, so that whoever has a map of
// an earlier incarnation takes a new one. An incarnation has 24 bits: versions stay below 2^53, exact in any JSON.
const restoredMapShift = 28

// Restored is what a backup keeps of the state.
func (s *State) Restored() *Restored {
	r := &Restored{
		Cluster: s.Cluster, Incarnation: s.Incarnation, Seed: s.Seed,
		NextPartition: s.NextPartition, LastPlan: s.LastPlan, Tokens: s.Tokens,
	}
	room := MaxRestoredBytes - len(AppendRestored(nil, r))
	from := len(s.Revisions)
	for from > 0 {
		w := &codec{}
		w.revision(s.Revisions[from-1])
		// The list's length takes a few bytes more, the longer it is.
		if room -= len(w.b); room < bits.Len(MaxRevisions)/7+1 {
			break
		}
		from--
	}
	r.Revisions = s.Revisions[from:]
	return r
}

// restoredVersion is the version of the encoding of what a backup keeps of the control state.
const restoredVersion = 1

// AppendRestored appends the durable encoding of r to b. It ends with a CRC-32C of the rest.
func AppendRestored(b []byte, r *Restored) []byte {
	w := &codec{b: append(b, restoredVersion)}
	w.restored(r)
	return binary.LittleEndian.AppendUint32(w.b, crc32.Checksum(w.b[len(b):], castagnoli))
}

// DecodeRestored reads what AppendRestored wrote. It refuses anything else, whatever the bytes.
func DecodeRestored(b []byte) (*Restored, error) {
	switch {
	case len(b) < 5:
		return nil, fmt.Errorf("control state of a backup: %w", errCut)
	case len(b) > MaxRestoredBytes:
		return nil, fmt.Errorf("control state of a backup: it has %d bytes, and at most %d", len(b), MaxRestoredBytes)
	case b[0] != restoredVersion:
		return nil, fmt.Errorf("control state of a backup: it is of version %d, this program knows version %d: "+
			"use the one that wrote it", b[0], restoredVersion)
	}
	body, stored := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != stored {
		return nil, errors.New("control state of a backup: its checksum is wrong: it is damaged")
	}
	d, r := &codec{b: body[1:], reading: true}, &Restored{}
	d.restored(r)
	if err := d.end(); err != nil {
		return nil, fmt.Errorf("control state of a backup: %w", err)
	}
	if refused := r.check(); refused != nil {
		return nil, fmt.Errorf("control state of a backup: %w", refused)
	}
	return r, nil
}

func (c *codec) restored(r *Restored) {
	c.string(&r.Cluster)
	number(c, &r.Incarnation)
	c.array(r.Seed[:])
	number(c, &r.NextPartition)
	number(c, &r.LastPlan)
	list(c, &r.Revisions, pointed((*codec).revision))
	list(c, &r.Tokens, pointed((*codec).token))
	c.array(r.Backup[:])
}

// pointed codes what an element of a list points to.
func pointed[E any](each func(*codec, *E)) func(*codec, **E) {
	return func(c *codec, p **E) { part(c, p, each) }
}

// check refuses what no state can have kept.
func (r *Restored) check() *Refusal {
	if f := checkID("cluster id", r.Cluster, false); f != nil {
		return f
	}
	switch {
	case r.Incarnation == 0:
		return refuse(CodeInvalid, "the incarnation is 0")
	case r.Seed == ([16]byte{}):
		return refuse(CodeInvalid, "the seed is zero")
	case len(r.Revisions) > MaxRevisions || len(r.Tokens) > MaxTokens:
		return refuse(CodeBound, "%d revisions and %d tokens: more than a cluster can have", len(r.Revisions), len(r.Tokens))
	case !ascending(r.Tokens, tokenID):
		return refuse(CodeInvalid, "the tokens are out of order")
	}
	for _, t := range r.Tokens {
		if f := t.check(); f != nil {
			return f
		}
	}
	labels := map[string]bool{}
	for i, v := range r.Revisions {
		if f := v.check(); f != nil {
			return f
		}
		if i > 0 && v.Number != r.Revisions[i-1].Number+1 || labels[v.Label] {
			return refuse(CodeInvalid, "revision %d, version %.128q, is out of order or there twice", v.Number, v.Label)
		}
		labels[v.Label] = true
	}
	return nil
}

// check refuses a revision that no command can have made.
func (r *Revision) check() *Refusal {
	if f := checkName("label", r.Label, MaxLabelBytes, false); f != nil {
		return f
	}
	if r.Number == 0 || r.Kind < RevisionPublish || r.Kind > RevisionRollback || r.Body == (Digest{}) ||
		r.Bytes < 1 || r.Bytes > MaxBodyBytes || len(r.Switches) > policy.MaxClasses+1 {
		return refuse(CodeInvalid, "revision %d, version %.128q, cannot be", r.Number, r.Label)
	}
	return nil
}

// takeOver fills a state that is being made with what a backup kept.
func (ch *change) takeOver(i *Init) *Refusal {
	r := i.Restored
	if f := r.check(); f != nil {
		return f
	}
	switch {
	case r.Cluster != i.Cluster:
		return refuse(CodeInvalid, "the backup is of cluster %s: give the new cluster that id, not %s", r.Cluster, i.Cluster)
	case i.Incarnation <= r.Incarnation:
		return refuse(CodeInvalid, "incarnation %d: the backup is of %d, take a larger one", i.Incarnation, r.Incarnation)
	case r.Backup == (Digest{}):
		return refuse(CodeInvalid, "the backup has no digest")
	case i.Seed != r.Seed && i.Seed != ([16]byte{}):
		return refuse(CodeInvalid, "the seed is not that of the backup: leave it zero")
	}
	ch.Seed, ch.RestoredFrom, ch.NextPartition, ch.LastPlan = r.Seed, r.Backup, r.NextPartition, r.LastPlan
	ch.Revisions, ch.Tokens = r.Revisions, r.Tokens
	for _, v := range r.Revisions {
		ch.elements.add(hashOf(tagRevision, v, (*codec).revision))
	}
	for _, t := range r.Tokens {
		ch.elements.add(hashOf(tagToken, t, (*codec).token))
	}
	ch.MapVersion = uint64(i.Incarnation) << restoredMapShift
	ch.message = fmt.Sprintf("incarnation %d, of a backup with digest %s of incarnation %d: %d revisions, %d tokens",
		i.Incarnation, r.Backup, r.Incarnation, len(r.Revisions), len(r.Tokens))
	return nil
}
