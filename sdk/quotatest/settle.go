package quotatest

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/sdk"
)

// settleWithin bounds how long a change waits for the watches to be told, and Await for the client to have taken it.
const settleWithin = 10 * time.Second

// watcher is a watch that is open. s.mu guards it, but its own goroutine may read told.
type watcher struct {
	node *Node
	told view
}

// attend notes that a watch of a node is open.
func (s *Server) attend(n *Node) *watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := &watcher{node: n}
	s.watches[w] = true
	return w
}

// leave notes that it is over.
func (s *Server) leave(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
	s.settled()
}

// toldWatch notes what a watch was sent.
func (s *Server) toldWatch(w *watcher, now view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.told = now
	s.settled()
}

// settled has those who wait look again. s.mu is held.
func (s *Server) settled() {
	close(s.progress)
	s.progress = make(chan struct{})
}

// settle waits until every open watch that is to be told was sent what holds.
func (s *Server) settle() error {
	late := time.NewTimer(settleWithin)
	defer late.Stop()
	for {
		behind, progress := s.behind()
		if behind == 0 {
			return nil
		}
		select {
		case <-progress:
		case <-late.C:
			return fmt.Errorf("quotatest: %d watches did not take what has changed within %s: is their client stuck?",
				behind, settleWithin)
		}
	}
}

// behind is how many watches are to be told something yet, and what is closed when that may have changed.
func (s *Server) behind() (n int, progress <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		same := w.told.routes == s.told.routes && len(w.told.settings) > 0 && w.told.settings[0] == s.told.settings[0]
		if !same && w.node.faults.watch == watchWorks && w.node.grpc != nil {
			n++
		}
	}
	return n, s.progress
}

// Client is what Await needs of a client; *sdk.Client has it.
type Client interface{ Stats() sdk.Stats }

var _ Client = (*sdk.Client)(nil)

// Await waits until a client has taken the server's policy revision and map, after Apply, Disable, Enable, Raise or
// Split, and fails the test if it has not within 10 seconds, as while watches are muted, silent or refused. Who leads
// is told without a new version of the map: there is nothing to wait for after Lead.
func (s *Server) Await(t testing.TB, client Client) {
	t.Helper()
	poll := time.NewTicker(time.Millisecond)
	defer poll.Stop()
	for late := time.Now().Add(settleWithin); ; <-poll.C {
		s.mu.Lock()
		revision, version := s.ledger.revision, s.routes.version
		s.mu.Unlock()
		got := client.Stats()
		if got.PolicyRevision >= revision && got.MapVersion >= version {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("quotatest: the client has revision %d and map %d, and the server %d and %d: are its watches muted? %s",
				got.PolicyRevision, got.MapVersion, revision, version, got.WatchError)
		}
	}
}
