package ceiling

import (
	"hash/maphash"
	"sync"
)

// shards spread the principals, so that their checks seldom wait for one another.
const shards = 64

// Flight bounds the checks of one principal that are under way at once. It is exact, for concurrent use, and holds no
// more principals than there are checks under way.
type Flight struct {
	most int
	seed maphash.Seed
	in   [shards]shard
}

type shard struct {
	mu  sync.Mutex // guards now
	now map[string]int
}

// NewFlight makes a bound; nil, which lets all through, for 0.
func NewFlight(most int) *Flight {
	if most <= 0 {
		return nil
	}
	f := &Flight{most: most, seed: maphash.MakeSeed()}
	for i := range f.in {
		f.in[i].now = map[string]int{}
	}
	return f
}

// Enter notes that a check of principal begins, and reports whether there is room for it. If so, Leave is due.
func (f *Flight) Enter(principal string) bool {
	if f == nil {
		return true
	}
	s := f.shard(principal)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.now[principal]
	if n >= f.most {
		return false
	}
	s.now[principal] = n + 1
	return true
}

// Leave notes that a check of principal, for which there was room, is over.
func (f *Flight) Leave(principal string) {
	if f == nil {
		return
	}
	s := f.shard(principal)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.now[principal]; n > 1 {
		s.now[principal] = n - 1
		return
	}
	delete(s.now, principal)
}

func (f *Flight) shard(principal string) *shard {
	return &f.in[maphash.String(f.seed, principal)%shards]
}
