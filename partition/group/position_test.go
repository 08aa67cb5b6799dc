package group

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// Shows whom leadership may be handed to: a replica that has lately answered to more than heartbeats, and to which no
// request has failed since. After failures Raft sends heartbeats only, for many seconds, and a transfer would wait.
func TestFollows(t *testing.T) {
	const id, within = raft.ServerID("n1@a"), time.Hour
	heartbeat := &raft.AppendEntriesRequest{}
	empty := &raft.AppendEntriesRequest{PrevLogEntry: 7, PrevLogTerm: 2}
	entry := &raft.AppendEntriesRequest{Entries: []*raft.Log{{Index: 8, Term: 2}}}
	yes, no := &raft.AppendEntriesResponse{Success: true}, &raft.AppendEntriesResponse{}
	a := newAcknowledged()
	step := func(what string, do func(), want bool) {
		t.Helper()
		time.Sleep(time.Microsecond) // instants are told apart
		do()
		if got := a.follows(id, within); got != want {
			t.Errorf("%s: %v", what, got)
		}
	}
	step("nothing was heard", func() {}, false)
	step("a heartbeat", func() { a.note(id, heartbeat, yes) }, false)
	step("a request that was refused", func() { a.note(id, empty, no) }, false)
	step("what has no entries, but a place in the log", func() { a.note(id, empty, yes) }, true)
	step("a failure", func() { a.missed(id) }, false)
	step("a heartbeat after it", func() { a.note(id, heartbeat, yes) }, false)
	step("an entry after it", func() { a.note(id, entry, yes) }, true)
	if a.follows(id, 0) {
		t.Error("too long ago")
	}
	step("it was removed", func() { a.forget(id) }, false)
}
