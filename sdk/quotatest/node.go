package quotatest

import (
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Node is one node of a fake cluster: where it is reached, and what goes wrong with it. A failure lasts until it is
// taken back or Heal is called.
type Node struct {
	// ID is n0, n1 and so on.
	ID string
	// Addr is where it is reached, host:port. It stays the same over Stop and Start.
	Addr string

	server *Server
	number int

	// The rest is guarded by server.mu.
	listener *tracked
	grpc     *grpc.Server
	faults   faults
	asked    Counts
}

// faults are what goes wrong with a node.
type faults struct {
	refusal *quotaerr.Error
	slow    time.Duration
	silent  bool
	lose    int
	answer  AnswerFunc
	watch   watchFault
}

type watchFault uint8

const (
	watchWorks watchFault = iota
	watchSilent
	watchRefused
)

// AnswerFunc answers a check in place of the node: with a decision, which may be any, or a reason to refuse it. With
// neither the node decides as usual. It must not call the server.
type AnswerFunc func(check *quoratev1.CheckRequest) (*quoratev1.Decision, *quotaerr.Error)

// start has the node listen and serve.
func (n *Node) start() error {
	s := n.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if n.grpc != nil {
		return fmt.Errorf("quotatest: node %s runs already", n.ID)
	}
	l, err := n.listen()
	if err != nil {
		return fmt.Errorf("quotatest: node %s: %w", n.ID, err)
	}
	if n.Addr == "" { // once, before anybody knows the node: it is read without a lock
		n.Addr = l.Addr().String()
	}
	n.listener = &tracked{Listener: l, open: map[*trackedConn]bool{}}
	n.grpc = grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsAtLeast, PermitWithoutStream: true}))
	quoratev1.RegisterQuotaServer(n.grpc, &service{node: n})
	go n.grpc.Serve(n.listener) //nolint:errcheck // it ends with Stop, which waits for it
	return nil
}

func (n *Node) listen() (net.Listener, error) {
	if _, real := n.server.network.(loopback); real && n.Addr != "" {
		return net.Listen("tcp", n.Addr)
	}
	return n.server.network.listen(n.number)
}

// Start starts the node again after Stop, at the same address. The error says why it cannot.
func (n *Node) Start() error { return n.start() }

// Stop ends the node: its connections break, and nobody can connect. What was decided stays decided. It may be called
// again.
func (n *Node) Stop() {
	n.server.mu.Lock()
	running := n.grpc
	n.grpc = nil
	n.server.mu.Unlock()
	if running != nil {
		running.Stop()
	}
}

// DropConnections breaks all connections to the node. Clients may connect again at once.
func (n *Node) DropConnections() {
	n.server.mu.Lock()
	l := n.listener
	n.server.mu.Unlock()
	l.drop()
}

func (n *Node) set(f func(*faults)) {
	n.server.mu.Lock()
	defer n.server.mu.Unlock()
	f(&n.faults)
	n.server.wake()
}

// Slow has the node answer so much later. It decides at once.
func (n *Node) Slow(d time.Duration) { n.set(func(f *faults) { f.slow = d }) }

// Silence has the node take checks without deciding or answering them, as a process that stands still would. After Heal
// it answers new ones.
func (n *Node) Silence() { n.set(func(f *faults) { f.silent = true }) }

// LoseAnswers has the node decide the next so many checks, without answering them.
func (n *Node) LoseAnswers(checks int) { n.set(func(f *faults) { f.lose = checks }) }

// Refuse has the node refuse every check for a reason, one of package quotaerr that is no decision.
func (n *Node) Refuse(reason quotaerr.Reason) {
	e := quotaerr.New(reason, "refused, as the test asks")
	e.RetryAfterNanos = int64(errtable.Lookup(reason).Wait)
	n.set(func(f *faults) { f.refusal = e })
}

// Unavailable has the node refuse every check because no majority can be found, the reason for which a gateway applies
// its failure mode.
func (n *Node) Unavailable() { n.Refuse(quotaerr.NoQuorum) }

// Answer has a function answer checks in place of the node; with nil the node answers again.
func (n *Node) Answer(f AnswerFunc) { n.set(func(faults *faults) { faults.answer = f }) }

// SilenceWatch has the node's watches stay open and say nothing, not even that they live.
func (n *Node) SilenceWatch() { n.set(func(f *faults) { f.watch = watchSilent }) }

// RefuseWatch ends the node's watches, and has it refuse new ones.
func (n *Node) RefuseWatch() { n.set(func(f *faults) { f.watch = watchRefused }) }

// Heal ends every failure of the node. It does not start one that was stopped.
func (n *Node) Heal() { n.set(func(f *faults) { *f = faults{} }) }

// each does the same to all nodes.
func (s *Server) each(f func(*Node)) {
	for _, n := range s.nodes {
		f(n)
	}
}

// Slow is Node.Slow for all nodes, and so are the methods of the same names below.
func (s *Server) Slow(d time.Duration) { s.each(func(n *Node) { n.Slow(d) }) }

// Silence is Node.Silence for all nodes.
func (s *Server) Silence() { s.each((*Node).Silence) }

// Refuse is Node.Refuse for all nodes.
func (s *Server) Refuse(reason quotaerr.Reason) { s.each(func(n *Node) { n.Refuse(reason) }) }

// Unavailable is Node.Unavailable for all nodes.
func (s *Server) Unavailable() { s.each((*Node).Unavailable) }

// Answer is Node.Answer for all nodes.
func (s *Server) Answer(f AnswerFunc) { s.each(func(n *Node) { n.Answer(f) }) }

// SilenceWatch is Node.SilenceWatch for all nodes.
func (s *Server) SilenceWatch() { s.each((*Node).SilenceWatch) }

// RefuseWatch is Node.RefuseWatch for all nodes.
func (s *Server) RefuseWatch() { s.each((*Node).RefuseWatch) }

// DropConnections is Node.DropConnections for all nodes.
func (s *Server) DropConnections() { s.each((*Node).DropConnections) }

// Stop stops all nodes, as when the cluster is down.
func (s *Server) Stop() { s.each((*Node).Stop) }

// Restart starts all nodes that do not run, with everything that was decided before, and the failures that were set:
// Heal ends those. The error says which cannot.
func (s *Server) Restart() error {
	for _, n := range s.nodes {
		s.mu.Lock()
		running := n.grpc != nil
		s.mu.Unlock()
		if running {
			continue
		}
		if err := n.Start(); err != nil {
			return err
		}
	}
	return nil
}

// Heal ends every failure of all nodes, and has muted watches told what they have missed. Nodes that were stopped stay
// so: Restart starts them.
func (s *Server) Heal() {
	s.each((*Node).Heal)
	s.MuteWatches(false)
}

// MuteWatches has the watches live on without being told of what changes, or ends that: then they are told at once.
func (s *Server) MuteWatches(muted bool) {
	s.mu.Lock()
	s.muted = muted
	s.tell()
	s.mu.Unlock()
	_ = s.settle() // who is told late is told all the same
}

// Forward sets whether a node that does not lead a principal's partition has the check decided by the one that does, as
// real nodes do and these by default, or refuses it with not_leader.
func (s *Server) Forward(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forward = on
}
