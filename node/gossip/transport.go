package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	// streamTimeout bounds the reading of a request, and of an answer after it was asked for.
	streamTimeout = 5 * time.Second
	// maxReading bounds the streams whose request has not come in full.
	maxReading = 32
	// maxServed bounds those whose request is being answered.
	maxServed = 64
	// maxPacketsPerSecond bounds the packets that are taken: a node of a cluster of 1,000 gets some hundred.
	maxPacketsPerSecond = 2000
	// acceptPause is how long to wait after the system refused to give a connection or packet.
	acceptPause = 100 * time.Millisecond
	// bindAttempts is how often a port is looked for that is free for packets and streams.
	bindAttempts = 20
)

var (
	errBusy   = errors.New("too many at once")
	errClosed = errors.New("gossip is closed")
	// errNoKey keeps gossip without a key on this machine.
	errNoKey = errors.New("not a loopback address: without a key nothing is sent there")
)

// transport is where memberlist sends and receives. What it hands on was sealed with the cluster's key and is of
// a kind that nodes send.
type transport struct {
	seal      *seal
	loopback  bool // nothing is sent elsewhere
	refused   *refusals
	udp       *net.UDPConn
	tcp       *net.TCPListener
	advertise netip.AddrPort

	packets chan *memberlist.Packet
	streams chan net.Conn
	ctx     context.Context // ends with Shutdown
	cancel  context.CancelFunc
	running sync.WaitGroup // the loops, and all streams

	mu      sync.Mutex // guards the fields below
	closed  bool
	arrival uint64
	reading map[net.Conn]uint64  // by arrival
	served  int                  // requests being answered
	open    map[*stream]struct{} // those that memberlist has
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

// listen opens the sockets; port 0 takes one that is free. An advertised port of 0 stands for it.
func listen(bind, advertise netip.AddrPort, s *seal, loopback bool, refused *refusals) (*transport, error) {
	udp, tcp, err := sockets(bind)
	if err != nil {
		return nil, err
	}
	if advertise.Port() == 0 {
		port := tcp.Addr().(*net.TCPAddr).AddrPort().Port()
		advertise = netip.AddrPortFrom(advertise.Addr(), port)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &transport{
		seal: s, loopback: loopback, refused: refused, udp: udp, tcp: tcp, advertise: advertise,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn),
		ctx: ctx, cancel: cancel,
		reading: make(map[net.Conn]uint64), open: make(map[*stream]struct{}),
	}
	t.running.Go(t.receive)
	t.running.Go(t.accept)
	return t, nil
}

// sockets opens one of each kind on the same port.
func sockets(bind netip.AddrPort) (*net.UDPConn, *net.TCPListener, error) {
	var last error
	for range bindAttempts {
		tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(bind))
		if err != nil {
			return nil, nil, err
		}
		port := tcp.Addr().(*net.TCPAddr).AddrPort().Port()
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind.Addr(), port)))
		if err == nil {
			return udp, tcp, nil
		}
		last = errors.Join(err, tcp.Close())
		if bind.Port() != 0 {
			break
		}
	}
	return nil, nil, last
}

// FinalAdvertiseAddr is what others are told.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.advertise.Addr().AsSlice(), int(t.advertise.Port()), nil
}

// PacketCh is where packets come out.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh is where requests come out.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo sends a packet.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	to, err := t.destination(addr)
	if err != nil {
		return time.Time{}, err
	}
	_, err = t.udp.WriteToUDPAddrPort(b, to)
	return time.Now(), err
}

// WriteToAddress sends a packet.
func (t *transport) WriteToAddress(b []byte, addr memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, addr.Addr)
}

// destination parses an address. No names are looked up: other nodes give the addresses.
func (t *transport) destination(addr string) (netip.AddrPort, error) {
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return to, fmt.Errorf("%w: %.80q", errAddress, addr)
	}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	if t.loopback && !to.Addr().IsLoopback() {
		return to, fmt.Errorf("%s: %w", to, errNoKey)
	}
	return to, nil
}

// DialTimeout opens a stream to another node.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	to, err := t.destination(addr)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(t.ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	s := &stream{Conn: conn, transport: t}
	if !t.track(s) {
		return nil, errors.Join(errClosed, conn.Close())
	}
	return s, nil
}

// DialAddressTimeout opens a stream to another node.
func (t *transport) DialAddressTimeout(addr memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(addr.Addr, timeout)
}

// Shutdown closes the sockets and all streams, and waits for the end of what runs here.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	t.closed = true
	t.cancel()
	err := errors.Join(closing(t.tcp), closing(t.udp))
	for c := range t.reading {
		err = errors.Join(err, closing(c))
	}
	open := t.open
	t.open = make(map[*stream]struct{})
	t.mu.Unlock()
	for s := range open {
		err = errors.Join(err, closing(s.Conn)) // memberlist, which has it, fails and closes it
	}
	t.running.Wait()
	return err
}

// closing closes something that may be closed already.
func closing(c interface{ Close() error }) error {
	if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// pause waits a little after the system failed to give something. It reports false when the transport is closed.
func (t *transport) pause() bool {
	timer := time.NewTimer(acceptPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// receive takes packets.
func (t *transport) receive() {
	buffer := make([]byte, maxPacketBytes)
	var second time.Time // when the count was begun
	taken := 0
	for {
		n, from, err := t.udp.ReadFromUDPAddrPort(buffer)
		now := time.Now()
		if err != nil {
			if !t.pause() {
				return
			}
			continue
		}
		sender := net.UDPAddrFromAddrPort(netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
		plain, err := t.seal.packet(buffer[:n])
		if err == nil {
			err = inspectPacket(plain)
		}
		if now.Sub(second) >= time.Second {
			second, taken = now, 0
		}
		if err == nil && taken >= maxPacketsPerSecond {
			err = errBusy
		}
		if err != nil {
			t.refused.note("packet", sender, err)
			continue
		}
		taken++
		packet := &memberlist.Packet{Buf: bytes.Clone(buffer[:n]), From: sender, Timestamp: now}
		select {
		case t.packets <- packet:
		case <-t.ctx.Done():
			return
		}
	}
}

// accept takes streams.
func (t *transport) accept() {
	for {
		conn, err := t.tcp.AcceptTCP()
		if err != nil {
			if !t.pause() {
				return
			}
			continue
		}
		t.admit(conn)
	}
}

// admit begins to read a request. When too many are being read, the oldest makes room: a node sends all at once.
func (t *transport) admit(conn net.Conn) {
	t.mu.Lock()
	var oldest net.Conn
	switch {
	case t.closed:
		_ = conn.Close() // nobody waits for it
	case len(t.reading) >= maxReading:
		for c, arrival := range t.reading {
			if oldest == nil || arrival < t.reading[oldest] {
				oldest = c
			}
		}
		delete(t.reading, oldest)
		_ = oldest.Close() // its reader ends with it
		fallthrough
	default:
		t.arrival++
		t.reading[conn] = t.arrival
		t.running.Go(func() { t.read(conn) })
	}
	t.mu.Unlock()
	if oldest != nil {
		t.refused.note("stream", oldest.RemoteAddr(), errBusy)
	}
}

// read reads a request and hands it on.
func (t *transport) read(conn net.Conn) {
	all, plain, err := t.readRequest(conn)
	if err == nil {
		err = inspectRequest(plain)
	}
	s := &stream{Conn: conn, transport: t, in: bytes.NewReader(all), counted: true}
	t.mu.Lock()
	_, mine := t.reading[conn] // else it was ended for another, which is noted
	delete(t.reading, conn)
	if err == nil && t.served >= maxServed {
		err = errBusy
	}
	if err == nil {
		t.served++
	}
	t.mu.Unlock()
	if err != nil {
		_ = conn.Close() // it was refused
		if mine && t.ctx.Err() == nil {
			t.refused.note("stream", conn.RemoteAddr(), err)
		}
		return
	}
	if !t.track(s) {
		_ = conn.Close()
		return
	}
	select {
	case t.streams <- s:
	case <-t.ctx.Done():
		_ = s.Close()
	}
}

func (t *transport) readRequest(conn net.Conn) (all, plain []byte, err error) {
	if err := conn.SetDeadline(time.Now().Add(streamTimeout)); err != nil {
		return nil, nil, err
	}
	return t.seal.request(conn)
}

// track counts a stream that memberlist gets, until it closes it.
func (t *transport) track(s *stream) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.open[s] = struct{}{}
	t.running.Add(1)
	return true
}

// stream is one that memberlist has. It reads the one message that came on it, which has been opened and
// inspected, and then its end.
type stream struct {
	net.Conn
	transport *transport
	in        *bytes.Reader // nil until the answer has been read
	failed    error         // why there is none
	counted   bool          // among those being served
	once      sync.Once
}

// Read reads of the message. The first on a dialled stream waits for all of it.
func (s *stream) Read(p []byte) (int, error) {
	if s.in == nil && s.failed == nil {
		all, plain, err := s.transport.seal.answer(s.Conn)
		if err == nil {
			err = inspectAnswer(plain)
		}
		if err != nil {
			s.failed = err
		} else {
			s.in = bytes.NewReader(all)
		}
	}
	if s.failed != nil {
		return 0, s.failed
	}
	return s.in.Read(p)
}

// Write closes the stream when it fails: memberlist forgets one whose label it could not write.
func (s *stream) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	if err != nil {
		_ = s.Close()
	}
	return n, err
}

// Close ends the stream.
func (s *stream) Close() error {
	var err error
	s.once.Do(func() {
		err = closing(s.Conn)
		t := s.transport
		t.mu.Lock()
		delete(t.open, s)
		if s.counted {
			t.served--
		}
		t.mu.Unlock()
		t.running.Done()
	})
	return err
}
