package sim

import (
	"io"
	"math/rand/v2"
	"slices"
)

// sectorBytes is what a disk writes whole or not at all.
const sectorBytes = 512

// file is a file's bytes as processes see them, and as they are on the platter.
type file struct {
	data    []byte
	durable []byte
	dirty   []span // of data, written since the last sync
}

type span struct{ from, to int }

func (f *file) writeAt(p []byte, off int) {
	if need := off + len(p); need > len(f.data) {
		f.data = append(f.data, make([]byte, need-len(f.data))...)
	}
	copy(f.data[off:], p)
	f.dirty = append(f.dirty, span{off, off + len(p)})
}

func (f *file) readAt(p []byte, off int) (int, error) {
	if off >= len(f.data) {
		return 0, io.EOF
	}
	n := copy(p, f.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// sync makes what was written durable.
func (f *file) sync() {
	if n := len(f.data) - len(f.durable); n > 0 {
		f.durable = append(f.durable, make([]byte, n)...)
	}
	for _, s := range f.dirty {
		copy(f.durable[s.from:s.to], f.data[s.from:s.to])
	}
	f.dirty = f.dirty[:0]
}

// forget is a sync that failed: the pages count as clean, though they are not on the platter.
func (f *file) forget() { f.dirty = f.dirty[:0] }

// lose is a loss of power: of what was not synced some sectors are there, others not.
func (f *file) lose(rng *rand.Rand) {
	keep := rng.IntN(3)
	for _, s := range f.dirty {
		for at := s.from; at < s.to; {
			end := min(s.to, (at/sectorBytes+1)*sectorBytes)
			if keep == 1 || keep == 2 && rng.IntN(2) == 0 {
				if n := end - len(f.durable); n > 0 {
					f.durable = append(f.durable, make([]byte, n)...)
				}
				copy(f.durable[at:end], f.data[at:end])
			}
			at = end
		}
	}
	f.dirty, f.data = nil, slices.Clone(f.durable)
}
