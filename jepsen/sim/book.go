package sim

import (
	"sync"

	"github.com/hashicorp/raft"
)

// book remembers the entries that leaders sent, newest last, to be sent again.
type book struct {
	net  *network
	was  func(*packet)
	mu   sync.Mutex // guards sent
	sent map[uint64]*raft.Log
}

func newBook(n *network) *book {
	b := &book{net: n, sent: map[uint64]*raft.Log{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	b.was = n.seen
	n.seen = func(p *packet) {
		b.note(p)
		b.was(p)
	}
	return b
}

func (b *book) close() {
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	b.net.seen = b.was
}

func (b *book) note(p *packet) {
	q, ok := p.command.(*raft.AppendEntriesRequest)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range q.Entries {
		b.sent[e.Index] = e
	}
}

// rewind is a request of the leader p with committed entries that end before index.
func (b *book) rewind(p *process, index uint64) *raft.AppendEntriesRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := p.group.Status()
	r := &raft.AppendEntriesRequest{
		RPCHeader: p.header(), Term: s.Term, LeaderCommitIndex: s.CommitIndex,
	}
	prev := b.sent[index-8]
	if prev == nil {
		return r
	}
	r.PrevLogEntry, r.PrevLogTerm = prev.Index, prev.Term
	for i := index - 7; i < index-2; i++ {
		if e := b.sent[i]; e != nil {
			r.Entries = append(r.Entries, e)
		} else {
			return &raft.AppendEntriesRequest{}
		}
	}
	return r
}
