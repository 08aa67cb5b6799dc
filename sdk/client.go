package sdk

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/sdk/internal/ceiling"
	"github.com/quorate/quorate/sdk/internal/class"
	"github.com/quorate/quorate/sdk/internal/hints"
	"github.com/quorate/quorate/sdk/internal/rolling"
	"github.com/quorate/quorate/sdk/internal/watch"
)

// Client asks a cluster. It is for concurrent use.
type Client struct {
	settings *settings
	start    time.Time
	idPrefix string

	table   router.Table
	nodes   *nodes
	watcher *watch.Watcher
	hints   *hints.Table[Decision]
	local   *rolling.Log
	ceiling *ceiling.Ceiling
	flight  *ceiling.Flight

	// classes are the settings that hold; revision is the newest that was seen, watched or in an answer.
	classes  atomic.Pointer[class.Set]
	revision atomic.Uint64
	// era grows when the cluster was restored and revisions begin anew; revising guards changes of the two.
	era      atomic.Uint64
	revising sync.Mutex
	changed  bell
	runs     sync.Pool // of *run

	closed         atomic.Bool
	withheld, lost atomic.Uint64
	lastID         atomic.Uint64 // of the numbers in ids; runs take many at once

	_        [64]byte // each check writes here, and reads the rest
	inFlight atomic.Int64
	_        [64]byte

	life context.Context //nolint:containedctx // ends with Close; the watch runs in it
	end  context.CancelFunc
	work sync.WaitGroup
}

// New makes a client of the cluster that some of its nodes, host:port, belong to. It does not wait for the network: see
// Ready. The error names all that is wrong with the arguments.
func New(addrs []string, options ...Option) (*Client, error) {
	s, err := newSettings(options)
	if err != nil {
		return nil, fmt.Errorf("sdk: %w", err)
	}
	c := &Client{
		settings: s, start: time.Now(), hints: hints.New[Decision](s.hintCapacity), local: rolling.New(s.localCapacity),
		ceiling: ceiling.New(s.principalCeiling), flight: ceiling.NewFlight(s.principalFlight),
	}
	first, errFile := fileClasses(s.policyFile)
	c.classes.Store(first)
	transport, errTLS := newTransport(s)
	if err := errors.Join(checkSeeds(addrs, s), errFile, errTLS); err != nil {
		return nil, fmt.Errorf("sdk: %w", err)
	}
	var seed [16]byte
	_, _ = rand.Read(seed[:]) // never fails
	c.idPrefix = base64.RawURLEncoding.EncodeToString(seed[:]) + "-"
	c.nodes = newNodes(transport, c.now, s)
	c.life, c.end = context.WithCancel(context.Background())
	c.watcher = watch.New(&watch.Watcher{
		Targets: func() []watch.Target { return targets(c.table.Map(), addrs) }, Sink: sink{c}, Log: s.logger, Now: c.now,
		Seen: func() (uint64, bool) { return c.revision.Load(), c.table.Behind() },
		Dial: func(t watch.Target) (*grpc.ClientConn, error) {
			return transport.dial(router.Node{ID: t.ID, GRPC: t.Addr})
		},
	})
	c.work.Go(func() { c.watcher.Run(c.life) })
	if transport.source != nil {
		c.work.Go(func() { transport.source.Watch(c.life, s.logger) })
	}
	return c, nil
}

// fileClasses are the settings of a policy file; with no file every class is denied.
func fileClasses(path string) (*class.Set, error) {
	if path == "" {
		return class.None(), nil
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return class.None(), fmt.Errorf("the policy file: %w", err)
	}
	p, err := policy.Parse(path, src)
	if err != nil {
		return class.None(), fmt.Errorf("the policy file: %w", err)
	}
	return class.FromPolicy(p), nil
}

// checkSeeds refuses addresses that cannot be meant.
func checkSeeds(addrs []string, s *settings) error {
	if len(addrs) == 0 || len(addrs) > router.MaxNodes {
		return fmt.Errorf("%d addresses: give host:port of 1 to %d nodes", len(addrs), router.MaxNodes)
	}
	var errs []error
	for _, a := range addrs {
		errs = append(errs, s.mayDial(a))
	}
	return errors.Join(errs...)
}

// targets are the nodes to watch: those of the map, and the seeds among which the cluster may be found again.
func targets(m *router.Map, seeds []string) (out []watch.Target) {
	known := map[string]bool{}
	if m != nil {
		for _, n := range m.Nodes() {
			known[n.GRPC] = true
			out = append(out, watch.Target{ID: n.ID, Addr: n.GRPC})
		}
	}
	for _, a := range seeds {
		if !known[a] {
			out = append(out, watch.Target{Addr: a})
		}
	}
	return out
}

// now is the time since the client was made, in nanoseconds, above 0, by a clock that does not go back.
func (c *Client) now() int64 { return int64(time.Since(c.start)) + 1 }

// Ready waits until the client has the cluster's configuration. Check does not need it: it waits itself, within the
// class's timeout.
func (c *Client) Ready(ctx context.Context) error {
	if ctx == nil {
		return noContext()
	}
	select {
	case <-c.life.Done():
		return ErrClosed
	default:
	}
	select {
	case <-c.watcher.Ready():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.life.Done():
		return ErrClosed
	}
}

// Close ends the client: its connections, its goroutines, and the checks that still wait, with ErrClosed.
func (c *Client) Close() error {
	c.closed.Store(true)
	c.end()
	c.nodes.close()
	c.work.Wait()
	return nil
}

// sink is what the watch tells the client.
type sink struct{ c *Client }

var _ watch.Sink = sink{}

func (s sink) Map(m *router.Map) {
	if s.c.table.Update(m) {
		s.c.nodes.retain(m)
		s.c.changed.ring()
	}
}

func (s sink) Settings(set *class.Set, restored bool) {
	set.Inherit(s.c.classes.Load())
	s.c.classes.Store(set)
	if restored {
		s.c.restored(set.Revision)
	}
	s.c.seenRevision(s.c.era.Load(), set.Revision)
	s.c.changed.ring()
}

func (s sink) Broken() { s.c.hints.Revise() }

// seenRevision notes a revision that was watched or answered under: the first of a newer one ends the hints of the
// older. One of an earlier era, of a check that began before the cluster was restored, says nothing.
func (c *Client) seenRevision(era, revision uint64) {
	if revision <= c.revision.Load() {
		return
	}
	c.revising.Lock()
	defer c.revising.Unlock()
	if era != c.era.Load() || revision <= c.revision.Load() {
		return
	}
	c.hints.Revise() // before anybody can see the newer revision
	c.revision.Store(revision)
	c.hints.Revise() // and those of checks that began meanwhile
}

// restored begins an era whose newest revision is this one.
func (c *Client) restored(revision uint64) {
	c.revising.Lock()
	defer c.revising.Unlock()
	c.era.Add(1)
	c.hints.Revise()
	c.revision.Store(revision)
	c.hints.Revise()
}

// bell tells those who wait that something has changed.
type bell struct {
	mu sync.Mutex // guards ch
	ch chan struct{}
}

// next is closed by the next ring.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// pastGrace reports whether the configuration could not be confirmed for so long that it no longer holds. What was
// never confirmed is that of a file, and holds.
func (c *Client) pastGrace(now int64) bool {
	last := c.watcher.LastNanos()
	return last != 0 && !c.watcher.Live(now) && now-last > int64(c.settings.configGrace)
}
