package rpc

import (
	"sync"

	"github.com/quorate/quorate/quotaerr"
)

// The bounds of what callers other than gateways' checks have under way at one node.
const (
	maxOperations, maxOperationsEach = 256, 64
	maxUploads, maxUploadsEach       = 4, 4
	maxDownloads, maxDownloadsEach   = 16, 8
	// maxSnapshots bounds the backups that are made or restored: each reads or writes all that there is.
	maxSnapshots, maxSnapshotsEach = 2, 1
	// maxTransfers bounds the bodies that go between nodes.
	maxTransfers, maxTransfersEach = 64, 8
	maxWatchers, maxWatchersEach   = 2000, 64
)

// shares bounds what is under way at once, in all and for each caller.
type shares struct {
	what      string // in the plural
	all, each int

	mu    sync.Mutex // guards the rest
	taken int
	of    map[string]int
}

func newShares(what string, all, each int) *shares {
	return &shares{what: what, all: all, each: each, of: map[string]int{}}
}

// take counts one more of who's, until it is given back once.
func (s *shares) take(who string) (giveBack func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.of[who] >= s.each:
		return nil, quotaerr.New(quotaerr.Overloaded, "%s has %d %s at this node, the most: end one, or ask another node",
			who, s.each, s.what)
	case s.taken >= s.all:
		return nil, quotaerr.New(quotaerr.Overloaded, "this node has %d %s, the most: back off, or ask another node",
			s.all, s.what)
	}
	s.taken++
	s.of[who]++
	return func() { s.giveBack(who, 1) }, nil
}

// grab counts up to n more of who's, as many as there is room for, and returns how many. They are to be given back.
func (s *shares) grab(who string, n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = max(0, min(n, s.each-s.of[who], s.all-s.taken))
	if n > 0 {
		s.taken += n
		s.of[who] += n
	}
	return n
}

// giveBack uncounts n of who's.
func (s *shares) giveBack(who string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken -= n
	if s.of[who] -= n; s.of[who] == 0 {
		delete(s.of, who)
	}
}
