package router

import (
	"encoding/binary"

	"github.com/dchest/siphash"
)

// NumSlots is the number of slots that principals are hashed to.
const NumSlots = 1 << 14

// slotShift leaves the top 14 of 64 bits.
const slotShift = 64 - 14

// SlotOf is the slot of a principal in the cluster with this seed: the top 14 bits of SipHash-2-4 (Aumasson
// and Bernstein, 2012) of the principal's bytes.
func SlotOf(seed [16]byte, principal string) uint16 {
	k0, k1 := binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])
	return uint16(siphash.Hash(k0, k1, []byte(principal)) >> slotShift)
}
