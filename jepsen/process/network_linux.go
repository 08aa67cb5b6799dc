package process

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// packetBytes is as large as a packet of gossip gets.
	packetBytes = 64 << 10
	// carryBytes is how much of a stream is under way in a relay at most, unless it is carried late.
	carryBytes = 32 << 10
	// carryLate is how many pieces of a stream, of carryBytes at most, wait for their time.
	carryLate = 256
)

// Network carries what nodes send each other, and can cut a node off from the others in both directions. Callers
// from outside reach a node at the address on which it listens, cut or not: a node that is cut off goes on
// answering them as well as it can. Those that dial it where the others do can be answered late.
//
// While a node is cut off, packets are lost. Streams stand still and nobody is told; what was sent into them
// arrives when the node is reached again, however late that is.
type Network struct {
	mu      sync.Mutex // guards the fields below
	nodes   []*Node
	cut     map[string]bool // by id
	late    map[string]time.Duration
	changed chan struct{} // closed at the next change of cut
	open    map[io.Closer]bool
	closed  bool

	running sync.WaitGroup
}

// NewNetwork makes one without nodes.
func NewNetwork() *Network {
	return &Network{
		cut: map[string]bool{}, late: map[string]time.Duration{}, changed: make(chan struct{}), open: map[io.Closer]bool{},
	}
}

// Carry begins to carry what others send to a node: it listens at the addresses that the node is dialled at.
func (w *Network) Carry(n *Node) error {
	w.mu.Lock()
	w.nodes = append(w.nodes, n)
	w.mu.Unlock()
	for _, link := range [][2]string{{n.Dialled.GRPC, n.GRPC}, {n.Dialled.Raft, n.Raft}, {n.Dialled.Gossip, n.Gossip}} {
		l, err := net.Listen("tcp", link[0])
		if err != nil {
			return err
		}
		if !w.hold(l) {
			return net.ErrClosed
		}
		w.running.Go(func() { w.accept(n, l, link[1]) })
	}
	return w.carryPackets(n)
}

// Cut takes a node off the network. What a relay was about to hand over, up to carryBytes of a stream, may still
// arrive.
func (w *Network) Cut(n *Node) { w.set(n, true) }

// Heal puts it back.
func (w *Network) Heal(n *Node) { w.set(n, false) }

// Slow has what a node answers callers from outside, who dial it where the others do, arrive so much later: as much as
// before, and in order. Nodes do not notice.
func (w *Network) Slow(n *Node, late time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late[n.ID] = late
}

// IsCut reports whether a node is off the network.
func (w *Network) IsCut(n *Node) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cut[n.ID]
}

func (w *Network) set(n *Node, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[n.ID] = cut
	close(w.changed)
	w.changed = make(chan struct{})
}

// Close ends all streams, and waits until nothing runs here any more.
func (w *Network) Close() error {
	w.mu.Lock()
	w.closed = true
	close(w.changed)
	w.changed = make(chan struct{})
	var errs []error
	for c := range w.open {
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	w.mu.Unlock()
	w.running.Wait()
	return errors.Join(errs...)
}

// hold has Close close c. It reports false, having closed c, when that is over.
func (w *Network) hold(c io.Closer) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		_ = c.Close() // as everything else here
		return false
	}
	w.open[c] = true
	return true
}

// drop closes c, which is of no more use.
func (w *Network) drop(c io.Closer) {
	w.mu.Lock()
	delete(w.open, c)
	w.mu.Unlock()
	_ = c.Close() // whatever was wrong with it has been seen
}

// passes reports whether anything gets from one node to another; from is nil for who is no node. Else changed is
// closed when that may be different.
func (w *Network) passes(from, to *Node) (passes bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	passes = !w.closed && !w.cut[to.ID] && (from == nil || !w.cut[from.ID])
	return passes, w.changed
}

// await waits until something gets from one node to another. It reports false when it never will.
func (w *Network) await(from, to *Node) bool {
	for {
		passes, changed := w.passes(from, to)
		if passes {
			return true
		}
		w.mu.Lock()
		closed := w.closed
		w.mu.Unlock()
		if closed {
			return false
		}
		<-changed
	}
}

// accept takes the streams that others open to a node.
func (w *Network) accept(n *Node, l net.Listener, target string) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		if !w.hold(conn) {
			return
		}
		w.running.Go(func() {
			defer w.drop(conn)
			w.stream(n, conn, target)
		})
	}
}

// stream carries one stream, which somebody has opened to a node.
func (w *Network) stream(n *Node, conn net.Conn, target string) {
	w.mu.Lock()
	nodes := w.nodes
	w.mu.Unlock()
	from, err := peerOf(conn, nodes)
	if err != nil || !w.await(from, n) {
		return // it has gone, or everything ends
	}
	onward, err := net.Dial("tcp", target)
	if err != nil {
		return // the node is down, which its peer sees by the end of the stream
	}
	if !w.hold(onward) {
		return
	}
	defer w.drop(onward)
	var both sync.WaitGroup
	both.Go(func() { w.carry(from, n, conn, onward) })
	if from == nil {
		w.carryAnswers(n, onward, conn)
	} else {
		w.carry(n, from, onward, conn)
	}
	both.Wait()
}

// piece is a part of a stream, and when it was read.
type piece struct {
	at   time.Time
	text []byte
}

// carryAnswers copies what a node answers a caller from outside, each piece as late as Slow says.
func (w *Network) carryAnswers(n *Node, in, out net.Conn) {
	pieces := make(chan piece, carryLate)
	var writing sync.WaitGroup
	writing.Go(func() {
		for p := range pieces {
			w.mu.Lock()
			late := w.late[n.ID]
			w.mu.Unlock()
			<-time.After(time.Until(p.at.Add(late)))
			if !w.await(nil, n) {
				continue // everything ends
			}
			_, _ = out.Write(p.text) // the reader sees when it is closed
		}
	})
	buffer := make([]byte, carryBytes)
	for {
		size, err := in.Read(buffer)
		if size > 0 {
			pieces <- piece{time.Now(), slices.Clone(buffer[:size])}
		}
		if err != nil {
			break
		}
	}
	close(pieces)
	writing.Wait()
	_ = in.Close()
	_ = out.Close()
}

// carry copies one direction of a stream until it ends, and ends both with it. One of the nodes may be nil.
func (w *Network) carry(from, to *Node, in, out net.Conn) {
	a, b := from, to
	if b == nil {
		a, b = b, a
	}
	buffer := make([]byte, carryBytes)
	for {
		n, err := in.Read(buffer)
		if !w.await(a, b) {
			return
		}
		if n > 0 {
			if _, err := out.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	// Nobody here closes one direction only.
	_ = in.Close()
	_ = out.Close()
}

// carryPackets carries the packets of gossip to a node. A node sends them from the address on which it listens.
func (w *Network) carryPackets(n *Node) error {
	at, err := netip.ParseAddrPort(n.Dialled.Gossip)
	if err != nil {
		return err
	}
	target, err := netip.ParseAddrPort(n.Gossip)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return err
	}
	if !w.hold(socket) {
		return net.ErrClosed
	}
	w.running.Go(func() {
		buffer := make([]byte, packetBytes)
		for {
			size, source, err := socket.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return // closed
			}
			if passes, _ := w.passes(w.sender(source), n); passes {
				_, _ = socket.WriteToUDPAddrPort(buffer[:size], target) // packets may be lost
			}
		}
	})
	return nil
}

// sender is the node that sends packets from an address; nil when none does.
func (w *Network) sender(source netip.AddrPort) *Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.nodes {
		if n.Gossip == source.String() {
			return n
		}
	}
	return nil
}
