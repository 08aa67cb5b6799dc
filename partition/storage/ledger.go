package storage

import (
	"sort"
	"sync"

	"github.com/hashicorp/raft"
)

// entryOverheadBytes is about what an entry takes beside its data: index, term, type, time, framing.
const entryOverheadBytes = 48

func entryBytes(l *raft.Log) uint64 {
	return uint64(len(l.Data)+len(l.Extensions)) + entryOverheadBytes
}

// ledger knows how many bytes the log holds from each index on. Entries are batches of very different
// sizes, so neither compaction nor the part of the log that stays behind can be sized by their number.
// It takes 8 bytes for each entry in the log.
type ledger struct {
	mu    sync.Mutex // guards the fields below
	first uint64     // index of the first entry; 0 when there is none
	upTo  []uint64   // upTo[i]: bytes of all entries ever added, up to and with entry first+i
	below uint64     // bytes of all entries ever added before first
}

// add records entries that were appended; an entry that does not follow the last one begins anew.
func (g *ledger) add(logs []*raft.Log) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range logs {
		if len(g.upTo) == 0 || l.Index != g.first+uint64(len(g.upTo)) {
			g.below, g.first, g.upTo = g.total(), l.Index, nil
		}
		g.upTo = append(g.upTo, g.total()+entryBytes(l))
	}
}

// remove forgets the entries lowest..highest, which are a prefix or a suffix of the log.
func (g *ledger) remove(lowest, highest uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := uint64(len(g.upTo))
	if n == 0 || highest < g.first || lowest >= g.first+n {
		return
	}
	if lowest <= g.first {
		cut := min(highest-g.first+1, n)
		g.below = g.upTo[cut-1]
		g.first += cut
		// Copied, so that what was dropped does not stay in memory.
		g.upTo = append([]uint64(nil), g.upTo[cut:]...)
		return
	}
	g.upTo = g.upTo[:lowest-g.first]
}

// total needs mu.
func (g *ledger) total() uint64 {
	if len(g.upTo) == 0 {
		return g.below
	}
	return g.upTo[len(g.upTo)-1]
}

// after is the number of bytes in entries with an index above the given one.
func (g *ledger) after(index uint64) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch n := uint64(len(g.upTo)); {
	case n == 0 || index >= g.first+n:
		return 0
	case index < g.first:
		return g.total() - g.below
	default:
		return g.total() - g.upTo[index-g.first]
	}
}

// holds reports whether the entry is in the log.
func (g *ledger) holds(index uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return index >= g.first && index-g.first < uint64(len(g.upTo))
}

// bounds are the indexes of the first and the last entry; 0, 0 when there is none.
func (g *ledger) bounds() (first, last uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.upTo) == 0 {
		return 0, 0
	}
	return g.first, g.first + uint64(len(g.upTo)) - 1
}

// trailing is how many of the newest entries have at most the given bytes together.
func (g *ledger) trailing(bytes uint64) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := len(g.upTo)
	if n == 0 || g.total()-g.below <= bytes {
		return uint64(n)
	}
	from := g.total() - bytes
	// The first entry that ends at or after from stays outside.
	return uint64(n - 1 - sort.Search(n, func(i int) bool { return g.upTo[i] >= from }))
}
