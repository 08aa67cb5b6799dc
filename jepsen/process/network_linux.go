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
// arrives when the node is reached again, however late that is. Set does the same to one direction between two nodes.
type Network struct {
	mu      sync.Mutex // guards the fields below
	nodes   []*Node
	cut     map[string]bool // by id
	late    map[string]time.Duration
	links   map[link]Condition
	stood   map[link]int  // how often something was stopped, or was late, on a link
	changed chan struct{} // closed at the next change of cut and links
	open    map[io.Closer]bool
	closed  bool

	running sync.WaitGroup
}

// Outside is who is no node, as Set calls them: clients and commands that dial a node where the others do.
const Outside = ""

// link is one direction between two nodes, by their ids.
type link struct{ from, to string }

// Condition is how one direction of a link carries what is sent. A Network carries streams, of which it cannot lose a
// part: there, what is dropped or held stands still until that is over, and Jitter, Loss and Duplicate are not looked
// at. Where packets are carried each means what it says.
type Condition struct {
	// Drop has nothing arrive.
	Drop bool
	// Hold has nothing arrive until that is over; then all of it does.
	Hold bool
	// Delay has everything arrive so much later. In a Network each piece of a stream, of carryBytes at most, does, one
	// after another: a link that is both late and narrow; and packets are not delayed.
	Delay time.Duration
	// Jitter has each packet arrive up to so much later still, so that packets overtake each other.
	Jitter time.Duration
	// Loss is how probably a packet is lost, from 0 to 1.
	Loss float64
	// Duplicate is how probably a packet is sent twice, from 0 to 1.
	Duplicate float64
}

// stopped reports whether nothing arrives.
func stopped(c Condition) bool { return c.Drop || c.Hold }

// NewNetwork makes one without nodes.
func NewNetwork() *Network {
	return &Network{
		cut: map[string]bool{}, late: map[string]time.Duration{}, changed: make(chan struct{}), open: map[io.Closer]bool{},
		links: map[link]Condition{}, stood: map[link]int{},
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
	w.tell()
}

// Set says how one direction between two nodes, or between a node and Outside, carries what is sent from now on. The
// zero Condition is as at first.
func (w *Network) Set(from, to string, c Condition) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links[link{from, to}] = c
	w.tell()
}

// Clear has all links carry as at first. Nodes that are cut off stay so.
func (w *Network) Clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.links)
	w.tell()
}

// Stopped is how often something was stopped, or was late, from one node to another since the beginning.
func (w *Network) Stopped(from, to string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stood[link{from, to}]
}

// tell wakes those that wait for a change. It needs mu.
func (w *Network) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// Close ends all streams, and waits until nothing runs here any more.
func (w *Network) Close() error {
	w.mu.Lock()
	w.closed = true
	w.tell()
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

// passes reports whether anything gets from one node to another; nil is who is no node. Else changed is closed when
// that may be different.
func (w *Network) passes(from, to *Node) (passes bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := between(from, to)
	passes = !w.closed && !w.cut[l.from] && !w.cut[l.to] && !stopped(w.links[l])
	if !passes {
		w.stood[l]++
	}
	return passes, w.changed
}

func between(from, to *Node) (l link) {
	if from != nil {
		l.from = from.ID
	}
	if to != nil {
		l.to = to.ID
	}
	return l
}

// await waits until something that was read at an instant gets from one node to another. It reports false when it never
// will.
func (w *Network) await(from, to *Node, read time.Time) bool {
	l := between(from, to)
	for {
		w.mu.Lock()
		late := w.links[l].Delay
		if late > 0 {
			w.stood[l]++
		}
		w.mu.Unlock()
		if late > 0 {
			<-time.After(time.Until(read.Add(late)))
		}
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
	if now := time.Now(); err != nil || !w.await(from, n, now) || !w.await(n, from, now) {
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
			if !w.await(n, nil, p.at) {
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
	buffer := make([]byte, carryBytes)
	for {
		n, err := in.Read(buffer)
		if !w.await(from, to, time.Now()) {
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
