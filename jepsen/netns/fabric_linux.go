package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

const (
	// maxNodes is how many nodes a Fabric has room for.
	maxNodes = 200
	// outsideHost is the last part of the clients' address; those of nodes begin with 1.
	outsideHost = 254
	// tryWithin is how long it may take to send something, to see whether that can be done.
	tryWithin = 5 * time.Second
)

// Fabric is a network of namespaces: those of nodes, and process.Outside, that of clients. Its methods may be called by
// several goroutines.
type Fabric struct {
	spaces  map[string]*space
	lines   map[link]*line
	running sync.WaitGroup
	closing chan struct{}
	ending  sync.Once

	mu  sync.Mutex // guards cut
	cut map[string]bool
}

// link is one direction between two namespaces, by their ids.
type link struct{ from, to string }

// Available reports, by trying it, why there can be no namespaces here; nil when there can.
func Available(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tryWithin)
	defer cancel()
	const id = "try"
	f, err := New(id)
	if err != nil {
		return err
	}
	return errors.Join(f.try(ctx, id), f.Close())
}

// try has something sent from the clients to a node, and back.
func (f *Fabric) try(ctx context.Context, id string) error {
	l, err := f.Listen(id, 1)
	if err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // it has done what it was for
	conn, err := f.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return fmt.Errorf("one namespace does not reach another: %w", err)
	}
	return conn.Close()
}

// New makes a namespace for each node, and one for clients.
func New(ids ...string) (_ *Fabric, err error) {
	if len(ids) > maxNodes {
		return nil, fmt.Errorf("%d nodes: there is room for %d", len(ids), maxNodes)
	}
	f := &Fabric{
		spaces: map[string]*space{}, lines: map[link]*line{}, closing: make(chan struct{}), cut: map[string]bool{},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	for k, id := range slices.Concat(ids, []string{process.Outside}) {
		if f.spaces[id] != nil {
			return nil, fmt.Errorf("two nodes have the id %q", id)
		}
		host := byte(k + 1)
		if id == process.Outside {
			host = outsideHost
		}
		if f.spaces[id], err = newSpace(netip.AddrFrom4([4]byte{10, 77, 0, host})); err != nil {
			delete(f.spaces, id)
			return nil, err
		}
	}
	for from := range f.spaces {
		for to, end := range f.spaces {
			if from != to {
				l := newLine(func(text []byte) error { _, err := end.tun.Write(text); return err })
				f.lines[link{from, to}] = l
				f.running.Go(func() { l.run(f.closing) })
			}
		}
	}
	for id, s := range f.spaces {
		f.running.Go(func() { f.read(id, s) })
	}
	return f, nil
}

// read carries what a namespace sends, until its device is closed.
func (f *Fabric) read(id string, s *space) {
	to := map[netip.Addr]*line{}
	for other, there := range f.spaces {
		if other != id {
			to[there.addr] = f.lines[link{id, other}]
		}
	}
	text := make([]byte, mtu)
	for {
		n, err := s.tun.Read(text)
		if err != nil {
			return
		}
		if l := to[destination(text[:n])]; l != nil {
			l.send(text[:n])
		}
	}
}

// destination is where an IPv4 packet is sent; not valid when it is none.
func destination(text []byte) netip.Addr {
	const header = 20
	if len(text) < header || text[0]>>4 != 4 {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(text[16:20]))
}

// space is that of a node, or of clients.
func (f *Fabric) space(id string) *space {
	s := f.spaces[id]
	if s == nil {
		panic(fmt.Sprintf("netns: there is no node %q", id))
	}
	return s
}

// Addr is the address of a node, or of clients. It panics if there is no such node, as all methods do.
func (f *Fabric) Addr(id string) netip.Addr { return f.space(id).addr }

// Place is a node's namespace, for process.Node.
func (f *Fabric) Place(id string) process.Place { return f.space(id).do }

// Do runs start in a node's namespace, on a thread that lives in there as long as the Fabric: a process that it starts
// is in the namespace, and so are sockets that it makes itself, but not what it has other goroutines do. It should not
// take long.
func (f *Fabric) Do(id string, start func() error) error { return f.space(id).do(start) }

// DialContext opens a connection from where clients are. The address is an IP address and a port.
func (f *Fabric) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return f.DialFrom(ctx, process.Outside, network, address)
}

// DialFrom opens one from a node's namespace.
func (f *Fabric) DialFrom(ctx context.Context, id, network, address string) (net.Conn, error) {
	return f.space(id).dial(ctx, network, address)
}

// Listen listens at a TCP port of a node's address.
func (f *Fabric) Listen(id string, port uint16) (l net.Listener, err error) {
	s := f.space(id)
	err = s.do(func() error {
		l, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(s.addr, port)))
		return err
	})
	return l, err
}

func (f *Fabric) line(from, to string) *line {
	l := f.lines[link{from, to}]
	if l == nil {
		panic(fmt.Sprintf("netns: there is no link from %q to %q", from, to))
	}
	return l
}

// Set says how packets are carried from now on from one node to another, or between one and process.Outside. The zero
// Condition is as at first. With Drop nothing arrives any more once it returns; without Hold, what was held arrives.
func (f *Fabric) Set(from, to string, c process.Condition) { f.line(from, to).set(c) }

// Slow has what a node answers clients arrive so much later.
func (f *Fabric) Slow(n *process.Node, late time.Duration) {
	f.Set(n.ID, process.Outside, process.Condition{Delay: late})
}

// Clear has all links carry as at first. Nodes that are cut off stay so.
func (f *Fabric) Clear() {
	for _, l := range f.lines {
		l.set(process.Condition{})
	}
}

// Counts are what one direction of a link did so far.
func (f *Fabric) Counts(from, to string) Counts { return f.line(from, to).count() }

// Stopped is how many packets were dropped, held or late from one node to another since the beginning.
func (f *Fabric) Stopped(from, to string) int { return int(f.Counts(from, to).Stopped()) }

// Cut takes a node off the network of the nodes, in both directions: packets are lost. Clients go on reaching it.
func (f *Fabric) Cut(n *process.Node) { f.setCut(n.ID, true) }

// Heal puts it back.
func (f *Fabric) Heal(n *process.Node) { f.setCut(n.ID, false) }

// IsCut reports whether a node is off the network of the nodes.
func (f *Fabric) IsCut(n *process.Node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cut[n.ID]
}

func (f *Fabric) setCut(id string, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut[id] = cut
	for k, l := range f.lines {
		if k.from != process.Outside && k.to != process.Outside && (k.from == id || k.to == id) {
			l.setCut(f.cut[k.from] || f.cut[k.to])
		}
	}
}

// Close ends the network, and waits until nothing runs here any more. It may be called again.
func (f *Fabric) Close() error {
	var err error
	f.ending.Do(func() { err = f.end() })
	return err
}

func (f *Fabric) end() error {
	close(f.closing)
	var errs []error
	for _, s := range f.spaces {
		if err := s.close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	f.running.Wait()
	return errors.Join(errs...)
}
