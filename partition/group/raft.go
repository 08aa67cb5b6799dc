package group

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/internal/raftlog"
	"github.com/quorate/quorate/partition/storage"
)

// RaftGroup is a Group on hashicorp/raft.
type RaftGroup struct {
	config    Config
	store     atomic.Pointer[storage.Store]
	transport *guarded
	raft      *raft.Raft
	adapter   *adapter
	lead      leadership
	compact   compactor
	snapshots atomic.Uint64 // taken by this replica
	installs  atomic.Uint64 // sent by a leader
	replayed  uint64        // last index on the disk at Open
	founded   bool          // it was made by this Open

	proposals chan struct{} // one per proposal in flight
	opened    chan struct{} // closed when raft is set
	closing   chan struct{}
	loops     sync.WaitGroup
	admin     sync.Mutex // one change of members or leader at a time
	reload    sync.Mutex // one change of Raft's configuration at a time

	mu        sync.Mutex // guards the fields below
	pending   map[*proposal]struct{}
	closed    bool
	closeOnce sync.Once
	closeErr  error
}

var _ Group = (*RaftGroup)(nil)

// Open opens a replica of a group. The first time, with empty stores, it writes the members that
// Bootstrap lists; later it goes on with what is on the disk.
func Open(c Config) (*RaftGroup, error) {
	c.setDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.Logger = c.Logger.With("group", c.Group)
	g := &RaftGroup{
		config:    c,
		proposals: make(chan struct{}, c.MaxProposals),
		opened:    make(chan struct{}),
		closing:   make(chan struct{}),
		pending:   make(map[*proposal]struct{}),
		lead:      leadership{changed: make(chan struct{}, 1), transferring: make(chan struct{}, 1)},
		compact:   compactor{grown: make(chan struct{}, 1), asked: make(chan chan error)},
	}
	g.lead.now.Store(&Leadership{})
	g.adapter = &adapter{applier: c.Applier, group: c.Group, fatal: g.fatal, closing: g.closing,
		live: g.live}
	if err := g.open(); err != nil {
		return nil, fmt.Errorf("open group %s: %w", c.Group, err)
	}
	close(g.opened)
	if g.founded && len(c.Bootstrap) == 1 {
		g.transport.campaign()
	}
	g.loops.Go(g.watchLeadership)
	g.loops.Go(g.watchLeader)
	g.loops.Go(g.runCompactor)
	g.stored() // the log may have been left over its size
	return g, nil
}

func (g *RaftGroup) open() (err error) {
	logger := raftlog.New(g.config.Logger, "raft")
	store, err := storage.Open(storage.Config{
		Disk: g.config.Disk, Partition: g.config.Group, First: g.config.First,
		WriteTimeout: g.config.Timing.Write, Fatal: g.fatal, Stored: g.stored, Admit: g.admit,
	})
	if err != nil {
		return err
	}
	last, err := store.Last()
	if err != nil {
		return errors.Join(err, store.Close())
	}
	g.replayed = last.Index
	if g.config.BeforeStart != nil {
		if err := g.config.BeforeStart(); err != nil {
			return errors.Join(err, store.Close())
		}
	}
	inner, err := g.config.Network.Transport(g.config.Group, g.config.Self, g.config.Timing.Request, logger)
	if err != nil {
		return errors.Join(err, store.Close())
	}
	g.transport = newGuarded(inner, (*requestView)(g))
	g.raft, err = g.start(store)
	if err == nil {
		err = store.Started()
	}
	if err == nil {
		g.store.Store(store)
		return nil
	}
	close(g.closing)
	if cause := store.Started(); cause != nil {
		err = cause // where Raft only says that nothing could be loaded
	}
	if g.raft != nil {
		stopped := g.raft.Shutdown() // only the first call can be waited for
		err = errors.Join(err, g.transport.Close(), stopped.Error())
	} else {
		err = errors.Join(err, g.transport.Close())
	}
	return errors.Join(err, store.Close())
}

func (g *RaftGroup) admit(last storage.Position, members raft.Configuration) error {
	if g.config.Admit == nil {
		return nil
	}
	return g.config.Admit(last, membersOf(members))
}

// start bootstraps empty stores, then starts Raft on them.
func (g *RaftGroup) start(s *storage.Store) (*raft.Raft, error) {
	config := g.config.raftConfig()
	used, err := raft.HasExistingState(s.Log, s.Stable, s.Snapshots)
	if err != nil {
		return nil, err
	}
	if !used && len(g.config.Bootstrap) > 0 {
		err := raft.BootstrapCluster(config, s.Log, s.Stable, s.Snapshots, g.transport, g.config.bootstrap())
		if err != nil {
			return nil, fmt.Errorf("bootstrap: %w", err)
		}
		g.founded = true
	}
	return raft.NewRaft(config, g.adapter, s.Log, s.Stable, s.Snapshots, g.transport)
}

// fatal reports that this replica must not go on.
func (g *RaftGroup) fatal(err error) {
	select {
	case <-g.closing: // it does not
		g.config.Logger.Error("a failure while closing", "error", err)
	default:
		g.config.Fatal(err)
	}
}

// requestView is the replica as its transport sees it.
type requestView RaftGroup

func (v *requestView) installed() { (*RaftGroup)(v).checkInstall() }

func (v *requestView) committed() uint64 {
	select {
	case <-v.opened:
		return v.raft.CommitIndex()
	default:
		return 0
	}
}

func (v *requestView) beginsAfter(index uint64) (Position, bool) {
	s := v.store.Load()
	if s == nil {
		return Position{}, false
	}
	return s.BeginsAfter(index)
}

// reconfigure changes what Raft takes while it runs.
func (g *RaftGroup) reconfigure(change func(*raft.ReloadableConfig)) error {
	g.reload.Lock()
	defer g.reload.Unlock()
	c := g.raft.ReloadableConfig()
	change(&c)
	return g.raft.ReloadConfig(c)
}

// checkInstall compares Raft's memory with the disk after a snapshot install. When the replaced log
// reached beyond the snapshot, Raft goes on believing in it and refuses what the leader sends, which
// sends the snapshot again, for ever (hashicorp/raft#697). A fresh start reads the truth.
func (g *RaftGroup) checkInstall() {
	select {
	case <-g.opened:
	case <-g.closing:
		return
	}
	g.installs.Add(1)
	if !guard.On(guard.InstallCheck) {
		return
	}
	believed := g.raft.LastIndex()
	last, err := g.store.Load().Last()
	if err == nil && believed > last.Index {
		g.fatal(fmt.Errorf("group %s: after a snapshot install Raft believes in entries up to %d, but the log "+
			"ends at %d: start the node again", g.config.Group, believed, last.Index))
	}
}

// live reports whether an entry that is being applied was committed just now: this node proposed it and
// still leads, or the leader told of its commit when this node had it already. What was on the disk at
// the start is not, and what came while this node was behind neither.
func (g *RaftGroup) live(index, term uint64) bool {
	select {
	case <-g.opened:
	default:
		return false
	}
	if index <= g.replayed {
		return false
	}
	return g.transport.commits.has(index) || g.leads(term)
}

// Last is where what is on this replica's disk ends.
func (g *RaftGroup) Last() (Position, error) {
	return g.store.Load().Last()
}

// AppliedIndex is the index of the last entry that the Applier has applied.
func (g *RaftGroup) AppliedIndex() uint64 { return g.adapter.applied.Load() }

// Close stops the replica: no more intake, everything in flight answered, then Raft, its connections,
// and the stores last. It takes Timing.Close at most; when Raft has not stopped by then the stores stay
// open, since it may still write. Leadership is not handed over: call Transfer before.
func (g *RaftGroup) Close() error {
	g.closeOnce.Do(func() { g.closeErr = g.close() })
	return g.closeErr
}

// Condemn ends this replica for good.
func (g *RaftGroup) Condemn(reason string) error {
	return errors.Join(g.store.Load().Condemn(reason), g.Close())
}

func (g *RaftGroup) close() error {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	close(g.closing)
	stopped := g.raft.Shutdown()
	// Before the wait: a request in flight would hold it for its whole deadline.
	err := g.transport.Close()
	done := make(chan error, 1)
	go func() {
		waited := stopped.Error()
		g.loops.Wait()
		done <- waited
	}()
	timer := time.NewTimer(g.config.Timing.Close)
	defer timer.Stop()
	select {
	case waited := <-done:
		err = errors.Join(err, waited, g.store.Load().Close())
	case <-timer.C:
		err = errors.Join(err, fmt.Errorf("group %s: Raft has not stopped within %v; its files stay open until "+
			"the process ends", g.config.Group, g.config.Timing.Close))
	}
	g.failPending()
	return err
}

// failPending answers what Raft has not answered and, having stopped, never will.
func (g *RaftGroup) failPending() {
	g.mu.Lock()
	pending := g.pending
	g.pending = make(map[*proposal]struct{})
	g.mu.Unlock()
	for p := range pending {
		p.complete(nil, fmt.Errorf("%w: %w while the proposal was in flight", ErrUnknown, ErrClosed))
	}
}
