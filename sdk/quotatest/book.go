package quotatest

import (
	"slices"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// maxKept is how many of the last requests are kept.
const maxKept = 1 << 16

// Counts are how often something was asked of a node, or of all of them, since it was made.
type Counts struct {
	Checks   int // sends: a check that is retried counts each time
	Retries  int // those of them that were not a first attempt
	Frames   int // of checks, on streams
	Unary    int // checks that came by CheckAndConsume
	Streams  int // of checks that were opened
	Watches  int // that were opened
	Peeks    int
	Largest  int // the most checks that a frame has had
	Allowed  int // decisions, replayed ones too
	Denied   int
	Refused  int // checks that were refused for a reason
	Replayed int // decisions that were answered from their record
}

// Request is one check as it came in.
type Request struct {
	At    time.Time // by the server's clock
	Node  string    // that was asked
	Check *quoratev1.CheckRequest
}

// book is what was asked. s.mu guards it.
type book struct {
	total    Counts
	requests []Request
}

// count counts something for a node and for all. n.server.mu is held.
func (n *Node) count(f func(*Counts)) {
	f(&n.asked)
	f(&n.server.asked.total)
}

func (b *book) keep(r Request) {
	if len(b.requests) >= maxKept {
		b.requests = slices.Delete(b.requests, 0, maxKept/2)
	}
	b.requests = append(b.requests, r)
}

// Counts are those of the node.
func (n *Node) Counts() Counts {
	n.server.mu.Lock()
	defer n.server.mu.Unlock()
	return n.asked
}

// Counts are those of all nodes together. Largest is that of one frame.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked.total
}

// Requests are the checks that came in, in order: the last ones, 32,768 at least if there were so many. They are not to
// be changed.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked.requests)
}
