package ceiling

import (
	"sync"
)

const (
	// shards spread the principals, so that their checks seldom wait for one another.
	shards = 64
	// shardPlaces are the places of a shard, each with the principals that fall into it: one or two, where some thousand
	// checks are under way.
	shardPlaces = 64
)

// Flight bounds the checks of one principal that are under way at once. It is exact, for concurrent use, and holds no
// more principals than there are checks under way at most.
type Flight struct {
	most int
	in   [shards]shard
}

// shard is a hash table in which what leaves is kept for who comes, so that neither costs an allocation.
type shard struct {
	mu     sync.Mutex // guards the rest
	places [shardPlaces]*Flying
	free   *Flying
}

// Flying is a principal with checks under way.
type Flying struct {
	principal string
	hash      uint64
	checks    int
	next      *Flying // of the same place, or the next free one
}

// NewFlight makes a bound; nil, which lets all through, for 0.
func NewFlight(most int) *Flight {
	if most <= 0 {
		return nil
	}
	return &Flight{most: most}
}

// Enter notes that a check of principal, whose hash is that of Hash, begins, and reports whether there is room for it.
// If so, Leave is due with what it returns.
func (f *Flight) Enter(hash uint64, principal string) (*Flying, bool) {
	if f == nil {
		return nil, true
	}
	s := f.shard(hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	place := s.place(hash)
	p := *place
	for p != nil && (p.hash != hash || p.principal != principal) {
		p = p.next
	}
	switch {
	case p == nil:
		if p = s.free; p == nil {
			p = &Flying{}
		} else {
			s.free = p.next
		}
		*p = Flying{principal: principal, hash: hash, next: *place}
		*place = p
	case p.checks >= f.most:
		return nil, false
	}
	p.checks++
	return p, true
}

// Leave notes that a check for which there was room is over.
func (f *Flight) Leave(p *Flying) {
	if f == nil {
		return
	}
	s := f.shard(p.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.checks--; p.checks > 0 {
		return
	}
	at := s.place(p.hash)
	for *at != p {
		at = &(*at).next
	}
	*at = p.next
	p.principal, p.next = "", s.free
	s.free = p
}

func (f *Flight) shard(hash uint64) *shard { return &f.in[hash%shards] }

func (s *shard) place(hash uint64) **Flying { return &s.places[hash/shards%shardPlaces] }
