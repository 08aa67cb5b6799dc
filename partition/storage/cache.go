package storage

import (
	"sync"

	"github.com/hashicorp/raft"
)

// The newest entries stay in memory, for followers that are a little behind: as many as fit both bounds.
const (
	cachedEntries = 4096
	cachedBytes   = 16 << 20
)

// cache is a log whose newest entries are read from memory.
type cache struct {
	*log

	mu    sync.RWMutex // guards the fields below
	ring  []*raft.Log  // entry i is at i modulo the length
	first uint64       // index of the oldest; meaningless when n is 0
	n     uint64
	bytes uint64
	bound uint64
}

func newCache(l *log, entries int, bytes uint64) *cache {
	return &cache{log: l, ring: make([]*raft.Log, entries), bound: bytes}
}

// GetLog reads an entry.
func (c *cache) GetLog(index uint64, out *raft.Log) error {
	if l := c.get(index); l != nil {
		*out = *l
		return nil
	}
	return c.log.GetLog(index, out)
}

func (c *cache) get(index uint64) *raft.Log {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if index < c.first || index-c.first >= c.n {
		return nil
	}
	return *c.at(index)
}

func (c *cache) at(index uint64) **raft.Log { return &c.ring[index%uint64(len(c.ring))] }

// StoreLog appends an entry.
func (c *cache) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

// StoreLogs appends entries.
func (c *cache) StoreLogs(logs []*raft.Log) error {
	if err := c.log.StoreLogs(logs); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		if c.n == 0 || l.Index != c.first+c.n {
			c.dropHead(c.n)
			c.first = l.Index
		}
		if c.n == uint64(len(c.ring)) {
			c.dropHead(1)
		}
		*c.at(l.Index) = l
		c.n++
		c.bytes += entryBytes(l)
		for c.bytes > c.bound {
			c.dropHead(1)
		}
	}
	return nil
}

// DeleteRange removes a head or a tail of the log.
func (c *cache) DeleteRange(lowest, highest uint64) error {
	c.forget(lowest, highest)
	return c.log.DeleteRange(lowest, highest)
}

func (c *cache) forget(lowest, highest uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == 0 || highest < c.first || lowest >= c.first+c.n {
		return
	}
	if lowest <= c.first {
		c.dropHead(min(highest-c.first+1, c.n))
		return
	}
	for end := c.first + c.n - 1; end >= lowest; end-- {
		c.drop(end)
	}
}

// dropHead needs mu.
func (c *cache) dropHead(n uint64) {
	for range n {
		c.drop(c.first)
		c.first++
	}
}

// drop needs mu.
func (c *cache) drop(index uint64) {
	l := c.at(index)
	c.bytes -= entryBytes(*l)
	*l = nil
	c.n--
}
