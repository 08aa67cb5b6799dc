package hints

import (
	"container/list"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxNanos bounds a hint's life.
	MaxNanos = int64(5 * time.Second)
	// BlockedNanos bounds the life of a hint of a principal that is blocked, for whom there is no time to wait for.
	BlockedNanos = int64(time.Second)
	shards       = 16
)

// Key is a check, but for its id.
type Key struct {
	Principal, Class, Tier string
	Cost                   int64
	Also                   string // encoded
}

// Hint is a denial that may be repeated. It does not change.
type Hint[T any] struct {
	// Denial is what the owner has said.
	Denial T
	// RetryNanos is the instant at which the check fits if nobody else consumes; 0 when not known.
	RetryNanos int64
	untilNanos int64
	round      uint64
}

// Table keeps hints. It is for concurrent use; the nil Table keeps none.
type Table[T any] struct {
	seed   maphash.Seed
	round  atomic.Uint64
	most   int // in a shard
	shards [shards]shard[T]
}

// shard keeps the hints of a part of the principals, the most recently used first.
type shard[T any] struct {
	mu    sync.Mutex // guards the rest
	order list.List  // of *kept[T]
	of    map[Key]*list.Element
}

type kept[T any] struct {
	key  Key
	hint *Hint[T]
}

// New makes a table for about capacity hints; nil for 0.
func New[T any](capacity int) *Table[T] {
	if capacity <= 0 {
		return nil
	}
	t := &Table[T]{seed: maphash.MakeSeed(), most: (capacity + shards - 1) / shards}
	for i := range t.shards {
		t.shards[i].of = map[Key]*list.Element{}
	}
	return t
}

// remove drops a hint. s.mu is held.
func (s *shard[T]) remove(e *list.Element) {
	delete(s.of, e.Value.(*kept[T]).key)
	s.order.Remove(e)
}

func (t *Table[T]) shard(k *Key) *shard[T] {
	return &t.shards[maphash.String(t.seed, k.Principal)%shards]
}

// Round is the present round, which Revise ends. A check notes it before it is sent.
func (t *Table[T]) Round() uint64 {
	if t == nil {
		return 0
	}
	return t.round.Load()
}

// Revise ends all hints, and those of checks that are on their way.
func (t *Table[T]) Revise() {
	if t != nil {
		t.round.Add(1)
	}
}

// Get is the hint for a check at nowNanos; nil when there is none.
func (t *Table[T]) Get(nowNanos int64, k Key) *Hint[T] {
	if t == nil {
		return nil
	}
	s := t.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.of[k]
	if e == nil {
		return nil
	}
	h := e.Value.(*kept[T]).hint
	if !h.valid(nowNanos, t.round.Load()) {
		s.remove(e)
		return nil
	}
	s.order.MoveToFront(e)
	return h
}

func (h *Hint[T]) valid(nowNanos int64, round uint64) bool {
	return h.round == round && nowNanos < h.untilNanos
}

// Answer is when a check was sent and answered, with the round that Round gave before the send.
type Answer struct {
	SentNanos, ReceivedNanos int64
	Round                    uint64
}

// Exhausted keeps the denial of a check that fits after retryMillis.
func (t *Table[T]) Exhausted(k Key, denial T, a Answer, retryMillis int64) {
	const milli = int64(time.Millisecond)
	life := MaxNanos
	if retryMillis <= MaxNanos/milli {
		life = retryMillis*milli - milli
	}
	t.keep(k, &Hint[T]{
		Denial: denial, RetryNanos: a.ReceivedNanos + min(retryMillis, 1<<62/milli)*milli, untilNanos: a.SentNanos + life,
		round: a.Round,
	}, a.ReceivedNanos)
}

// Blocked keeps the denial of a check for which there is no time to wait for.
func (t *Table[T]) Blocked(k Key, denial T, a Answer) {
	t.keep(k, &Hint[T]{Denial: denial, untilNanos: a.SentNanos + BlockedNanos, round: a.Round}, a.ReceivedNanos)
}

// keep keeps h, unless it is over, or the one that is kept ends earlier.
func (t *Table[T]) keep(k Key, h *Hint[T], nowNanos int64) {
	if t == nil || !h.valid(nowNanos, t.round.Load()) {
		return
	}
	k = Key{
		Principal: strings.Clone(k.Principal), Class: strings.Clone(k.Class), Tier: strings.Clone(k.Tier), Cost: k.Cost,
		Also: k.Also,
	}
	s := t.shard(&k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.of[k]; e != nil {
		old := e.Value.(*kept[T])
		if !old.hint.valid(nowNanos, t.round.Load()) || h.untilNanos < old.hint.untilNanos {
			old.hint = h
		}
		return
	}
	if s.order.Len() >= t.most {
		s.remove(s.order.Back())
	}
	s.of[k] = s.order.PushFront(&kept[T]{key: k, hint: h})
}

// Len is how many hints are kept, those that are over included.
func (t *Table[T]) Len() int {
	if t == nil {
		return 0
	}
	n := 0
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		n += s.order.Len()
		s.mu.Unlock()
	}
	return n
}
