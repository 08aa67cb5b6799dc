package partition

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
)

// script is a group.Group without a network, whose log does what the test says. It checks what an owner
// owes any group: no stamp before it may, none that goes back within a leadership, two entries in
// flight at most, and the bounds of an entry.
type script struct {
	t       *testing.T
	applier group.Applier
	changed chan struct{}

	mu      sync.Mutex // guards the fields below
	closed  bool
	lead    group.Leadership
	leader  string
	index   uint64
	open    []*entryInFlight // without an outcome, oldest first
	sent    []*entryInFlight // all
	most    int              // entries in flight at once
	stamps  map[uint64]fsm.Time
	perhaps map[uint64]bool // terms that were ready once
	granted PolicyLease
	unborn  error // why there is no birth
	births  int   // that were asked for
	compact int   // how often a compaction was asked for

	policies *shelf
}

// grant gives the node a policy lease.
func (s *script) grant(l PolicyLease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.granted = l
}

func (s *script) lease() PolicyLease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.granted
}

func (s *script) birth(t *testing.T) (*fsm.Birth, error) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unborn != nil {
		return nil, s.unborn
	}
	s.births++
	return mustBirth(t, string(rune('a'+s.births-1))), nil
}

func (s *script) CompactNow() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compact++
	return nil
}

func (s *script) compactions() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.compact
}

// entryInFlight is a proposal, with its entry decoded.
type entryInFlight struct {
	data   []byte
	entry  *fsm.Entry
	done   chan struct{}
	result any
	err    error
}

func (e *entryInFlight) Done() <-chan struct{} { return e.done }
func (e *entryInFlight) Result() (any, error)  { return e.result, e.err }

var _ group.Group = (*script)(nil)

func (s *script) Propose(data []byte) group.Proposal {
	e, err := fsm.DecodeEntry(data)
	if err != nil {
		s.t.Errorf("an entry that cannot be decoded was proposed: %v", err)
		e = &fsm.Entry{}
	}
	p := &entryInFlight{data: data, entry: e, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		p.err = group.ErrNotLeader
		close(p.done)
		return p
	}
	switch {
	case len(data) > fsm.MaxEntryBytes:
		s.t.Errorf("an entry of %d bytes", len(data))
	case len(e.Checks)+len(e.Peeks) > fsm.MaxChecksPerEntry:
		s.t.Errorf("an entry of %d checks and %d peeks", len(e.Checks), len(e.Peeks))
	case !s.perhaps[e.Term]:
		s.t.Errorf("a stamp was drawn for term %d, in which this node may not stamp", e.Term)
	case e.Stamp < s.stamps[e.Term]:
		s.t.Errorf("stamp %d after %d in term %d", e.Stamp, s.stamps[e.Term], e.Term)
	}
	s.stamps[e.Term] = e.Stamp
	s.open, s.sent = append(s.open, p), append(s.sent, p)
	s.most = max(s.most, len(s.open))
	return p
}

// oldest takes the oldest entry in flight, once the owner has come to rest.
func (s *script) oldest() *entryInFlight {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) == 0 {
		s.t.Fatal("no entry is in flight")
	}
	e := s.open[0]
	s.open = s.open[1:]
	return e
}

// apply puts data into the log in a term.
func (s *script) apply(data []byte, term uint64) any {
	s.mu.Lock()
	s.index++
	index := s.index
	s.mu.Unlock()
	return s.applier.Apply(index, term, data, true)
}

// commit lets the oldest entry reach the log in a term.
func (s *script) commit(term uint64) *entryInFlight {
	s.t.Helper()
	e := s.oldest()
	e.result = s.apply(e.data, term)
	close(e.done)
	synctest.Wait()
	return e
}

// abandon ends the oldest entry in flight with an error.
func (s *script) abandon(err error) *entryInFlight {
	s.t.Helper()
	e := s.oldest()
	e.err = err
	close(e.done)
	synctest.Wait()
	return e
}

// inFlight is how many entries have no outcome, once the owner has come to rest.
func (s *script) inFlight() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// total is how many entries were ever proposed.
func (s *script) total() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sent)
}

// elect changes the leadership: silently, when the owner is not to be told.
func (s *script) elect(l group.Leadership, leader string, tell bool) {
	s.mu.Lock()
	s.lead, s.leader = l, leader
	if l.Ready {
		s.perhaps[l.Term] = true
	}
	s.mu.Unlock()
	if tell {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	synctest.Wait()
}

func (s *script) Leadership() group.Leadership {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lead
}

func (s *script) Changed() <-chan struct{} { return s.changed }

func (s *script) Leader() (group.Member, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return group.Member{ID: s.leader}, s.leader != ""
}

func (s *script) AppliedIndex() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index
}

// Close gives what is in flight an unknown fate and refuses what comes, as a group does.
func (s *script) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.lead = true, group.Leadership{}
	for _, e := range s.open {
		e.err = group.ErrUnknown
		close(e.done)
	}
	s.open = nil
	return nil
}

var errNotScripted = errors.New("not scripted")

func (s *script) Members() []group.Member       { return []group.Member{{ID: "n1"}} }
func (s *script) AddLearner(group.Member) error { return errNotScripted }
func (s *script) Promote(string) error          { return errNotScripted }
func (s *script) Remove(string) error           { return errNotScripted }
func (s *script) Transfer(string) error         { return errNotScripted }
func (s *script) Condemn(string) error          { return errNotScripted }
func (s *script) Status() group.Status          { return group.Status{} }

// scripted runs f in a bubble of fake time, with a partition of node n1 on a script that nobody leads.
func scripted(t *testing.T, f func(t *testing.T, p *Partition, s *script, c *clock.Fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &script{
			t: t, changed: make(chan struct{}, 1), stamps: map[uint64]fsm.Time{}, perhaps: map[uint64]bool{},
			granted: always(t)(), policies: newShelf(mustBirth(t, "").Policy),
		}
		c := &clock.Fake{}
		p, err := Open(Config{
			ID: "p0", NodeID: "n1", Source: c, MaxDriftPPM: testDriftPPM, TrustWall: clock.TrustNever,
			Birth:  func() (*fsm.Birth, error) { return s.birth(t) },
			Policy: s.policies.find, Lease: s.lease,
			Open: func(a group.Applier) (group.Group, error) {
				s.applier = a
				return s, nil
			},
			Ahead:      func(a Ahead) { t.Errorf("unexpected: %+v", a) },
			WithRoom:   func() (string, bool) { return "", false },
			PeerLevels: func() (fsm.Level, bool) { return 0, false },
			Fatal:      func(err error) { t.Errorf("unexpected: %v", err) },
			Metrics:    prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
		})
		must(t, err)
		defer func() {
			must(t, p.Close())
			if s.most > maxInFlight {
				t.Errorf("%d entries were in flight at once", s.most)
			}
		}()
		f(t, p, s, c)
	})
}

// lead makes n1 the leader of term 5, and lets it make the partition.
func lead(t *testing.T, p *Partition, s *script) {
	t.Helper()
	s.elect(group.Leadership{Term: 5, Ready: true}, "n1", true)
	if e := s.commit(5); e.entry.Kind != fsm.KindBirth {
		t.Fatalf("the first entry has kind %d", e.entry.Kind)
	}
	if !p.owner.born() {
		t.Fatal("the partition was not made")
	}
}
