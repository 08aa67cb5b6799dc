package fsm

import (
	"encoding/binary"
	"math/bits"

	"github.com/dchest/siphash"
)

// Domains of the keyed hashes, so that equal bytes of different meaning never hash alike.
const (
	hashPayload byte = iota + 1
	hashReplay
	hashDenials
	hashElementPair
	hashElementKey
	hashElementRecord
	hashElementDenials
	hashConfig
	hashState
	hashHistory
	hashManifest
	hashImage
	hashPart
	hashPartData
)

// digest is a sum modulo 2^128 of the keyed hashes of all elements of the state: order-free, and each
// change costs one addition (an AdHash, Bellare and Micciancio, 1997; here against accidents, not
// against an adversary who chooses states).
type digest struct{ lo, hi uint64 }

func (d *digest) add(e digest) {
	var carry uint64
	d.lo, carry = bits.Add64(d.lo, e.lo, 0)
	d.hi, _ = bits.Add64(d.hi, e.hi, carry)
}

func (d *digest) sub(e digest) {
	var borrow uint64
	d.lo, borrow = bits.Sub64(d.lo, e.lo, 0)
	d.hi, _ = bits.Sub64(d.hi, e.hi, borrow)
}

func (d digest) bytes() (b [16]byte) {
	binary.LittleEndian.PutUint64(b[:8], d.lo)
	binary.LittleEndian.PutUint64(b[8:], d.hi)
	return b
}

// count and discount take an element of a slot into the digest of the slot and that of all, and out again.
func (m *Machine) count(s Slot, e digest) {
	m.slots[s].add(e)
	m.digest.add(e)
}

func (m *Machine) discount(s Slot, e digest) {
	m.slots[s].sub(e)
	m.digest.sub(e)
}

func (m *Machine) element(b []byte) digest {
	m.scratch = b
	lo, hi := siphash.Hash128(m.key0, m.key1, b)
	return digest{lo, hi}
}

func (m *Machine) hashPair(principal string, of *class, at Time, weight uint64) digest {
	b := append(m.scratch[:0], hashElementPair)
	b = appendString(b, principal)
	b = appendString(b, of.name)
	b = binary.LittleEndian.AppendUint64(b, uint64(at))
	return m.element(binary.LittleEndian.AppendUint64(b, weight))
}

// hashLog is the sum over the pairs of a log.
func (m *Machine) hashLog(principal string, k *key) (sum digest) {
	for i := int(k.log.head); i < len(k.log.pairs); i++ {
		sum.add(m.hashPair(principal, k.class, k.log.pairs[i].at, k.log.weight(i)))
	}
	return sum
}

func (m *Machine) hashKey(principal string, k *key) digest {
	b := append(m.scratch[:0], hashElementKey)
	b = appendString(b, principal)
	b = appendString(b, k.class.name)
	return m.element(binary.LittleEndian.AppendUint64(b, uint64(k.lookAt)))
}

func (m *Machine) hashRecord(rec *record, text string) digest {
	return m.element(appendRecord(append(m.scratch[:0], hashElementRecord), rec, text))
}

func (m *Machine) hashDenials(list *denialList) digest {
	return m.element(appendDenials(append(m.scratch[:0], hashElementDenials), list))
}

// Digest is a canonical digest of the whole state: equal states have equal digests, however they came
// about, and replicas that applied the same entries have equal states. It costs the same whatever the
// size of the state.
func (m *Machine) Digest() [16]byte {
	if m.rev == nil {
		return [16]byte{}
	}
	if m.config == nil {
		m.config = m.appendConfig(nil)
		m.configSum = m.sum128(append([]byte{hashConfig}, m.config...))
	}
	b := append(m.scratch[:0], hashState)
	b = append(b, m.configSum[:]...)
	waiting := m.waitingSum()
	for _, v := range []uint64{
		m.digest.lo, m.digest.hi, waiting.lo, waiting.hi, uint64(m.now), uint64(m.wallBound),
		uint64(m.keys), uint64(m.allows), uint64(m.denials), uint64(m.left),
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	m.scratch = b
	return m.sum128(b)
}
