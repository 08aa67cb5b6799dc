package fsm

// Millions of small things are kept in slabs and found by indexes, so that each costs little more than its own bytes,
// and what holds no pointer costs the collector nothing.

// ref is the number of a thing in a slab; 0 is none. It means nothing outside of the shard, and is no part of the
// state.
type ref uint32

// chunkLen is how many things a slab makes room for at once. With the allocator's header of 8 bytes for what holds
// pointers, chunks of 31 keys and of 31 principals just fit a size class; of 32 they would waste an eighth.
const chunkLen = 31

// slab holds things that stay where they are until they are removed. The zero value is an empty one.
type slab[T any] struct {
	chunks []*[chunkLen]T
	used   int   // refs that were given out so far, those in free included
	free   []ref // that were removed
}

// at is the thing of r, to be changed in place. It is valid until r is removed.
func (s *slab[T]) at(r ref) *T { return &s.chunks[(r-1)/chunkLen][(r-1)%chunkLen] }

func (s *slab[T]) add(v T) ref {
	if last := len(s.free) - 1; last >= 0 {
		r := s.free[last]
		s.free = s.free[:last]
		*s.at(r) = v
		return r
	}
	if s.used == len(s.chunks)*chunkLen {
		s.chunks = append(s.chunks, new([chunkLen]T))
	}
	s.used++
	r := ref(s.used)
	*s.at(r) = v
	return r
}

// remove lets go of r, and of the memory when nothing is left of much.
func (s *slab[T]) remove(r ref) {
	var none T
	*s.at(r) = none
	s.free = append(s.free, r)
	if len(s.free) == s.used && len(s.chunks) > 1 {
		*s = slab[T]{}
	}
}

// index finds the things of a slab by hashes, which must be uniform: a hash table with linear probing and without
// tombstones (Knuth, The Art of Computer Programming, volume 3, 6.4, algorithms L and R). The zero value is an empty
// one.
type index struct {
	places []place
	n      int // that are taken
}

type place struct {
	hash uint32
	ref  ref // 0: free
}

// home is where the probes for a hash begin: the hash scaled to the number of places.
func (x *index) home(hash uint32) int { return int(uint64(hash) * uint64(len(x.places)) >> 32) }

func (x *index) following(i int) int {
	if i++; i < len(x.places) {
		return i
	}
	return 0
}

// find is the thing with this hash that is the one; 0 when there is none.
func (x *index) find(hash uint32, isIt func(ref) bool) ref {
	if x.n == 0 {
		return 0
	}
	for i := x.home(hash); ; i = x.following(i) {
		p := x.places[i]
		if p.ref == 0 || p.hash == hash && isIt(p.ref) {
			return p.ref
		}
	}
}

// add puts in a thing that is not there.
func (x *index) add(hash uint32, r ref) {
	if x.n >= len(x.places)/5*4 {
		old := x.places
		x.places = make([]place, max(10, len(old)*5/4))
		for _, p := range old {
			if p.ref != 0 {
				x.put(p)
			}
		}
	}
	x.put(place{hash, r})
	x.n++
}

func (x *index) put(p place) {
	i := x.home(p.hash)
	for x.places[i].ref != 0 {
		i = x.following(i)
	}
	x.places[i] = p
}

// remove takes out a thing that is there. What was put behind it moves up, so that probes still find it.
func (x *index) remove(hash uint32, r ref) {
	i := x.home(hash)
	for x.places[i].ref != r {
		i = x.following(i)
	}
	for j := x.following(i); x.places[j].ref != 0; j = x.following(j) {
		if x.distance(x.home(x.places[j].hash), j) >= x.distance(i, j) {
			x.places[i] = x.places[j]
			i = j
		}
	}
	x.places[i] = place{}
	if x.n--; x.n == 0 && len(x.places) > chunkLen {
		*x = index{}
	}
}

// distance is how many probes it takes from one place to another.
func (x *index) distance(from, to int) int {
	if d := to - from; d >= 0 {
		return d
	}
	return to - from + len(x.places)
}

// each yields all things, in no order. None may come or go meanwhile.
func (x *index) each(yield func(ref) bool) {
	for _, p := range x.places {
		if p.ref != 0 && !yield(p.ref) {
			return
		}
	}
}
