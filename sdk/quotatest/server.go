package quotatest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/policy"
)

// The bounds of a fake cluster.
const (
	maxNodes      = 32
	maxPartitions = 256
)

// Server is a fake cluster. Its methods may be called by several goroutines.
type Server struct {
	clock   func() time.Time
	nodes   []*Node
	network network

	mu      sync.Mutex // guards the fields below, and what the nodes say that it does
	ledger  ledger
	routes  routes
	told    view          // what watches are told
	muted   bool          // told stays as it is
	changed chan struct{} // closed at the next change of told, or of what a watch does
	watches map[*watcher]bool
	// progress is closed when a watch was told something, or is over.
	progress chan struct{}
	forward  bool
	asked    book
	closed   bool
}

// network is where the nodes listen.
type network interface {
	listen(k int) (net.Listener, error)
	dial(ctx context.Context, addr string) (net.Conn, error)
}

type options struct {
	nodes, partitions int
	clock             func() time.Time
	memory            bool
}

// Option changes what New makes.
type Option func(*options)

// WithNodes sets how many nodes there are, 1 to 32. Default 1.
func WithNodes(n int) Option { return func(o *options) { o.nodes = n } }

// WithPartitions sets how many partitions share the principals, 1 to 256. Default 1. Partition k is led by node
// k mod nodes, and every node has a replica of each.
func WithPartitions(n int) Option { return func(o *options) { o.partitions = n } }

// WithClock sets the clock by which admissions expire. Default time.Now, which under testing/synctest is the bubble's.
// What a node does late because of Slow waits in real time, or the bubble's.
//
// It does not move the client's clock: an *sdk.Client that was denied goes on denying from its hint, in real time, and
// its timeouts and waits are real as well. So give such a client sdk.WithHintCapacity(0), as the example does, or use
// InMemory under testing/synctest instead, where time.Sleep moves the clocks of both.
func WithClock(now func() time.Time) Option { return func(o *options) { o.clock = now } }

// InMemory has clients connect without the network, through what DialOptions returns. Addrs are then under .invalid:
// without DialOptions nobody is reached by them.
func InMemory() Option { return func(o *options) { o.memory = true } }

// Start starts a fake cluster with a policy file's text, and closes it when the test ends.
func Start(t testing.TB, policyYAML string, opts ...Option) *Server {
	t.Helper()
	s, err := New(policyYAML, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// New is Start for who has no test at hand: Close ends it. The error says what is wrong with the policy or an option,
// or why a node cannot listen.
func New(policyYAML string, opts ...Option) (*Server, error) {
	o := options{nodes: 1, partitions: 1, clock: time.Now}
	for _, set := range opts {
		set(&o)
	}
	if o.nodes < 1 || o.nodes > maxNodes || o.partitions < 1 || o.partitions > maxPartitions || o.clock == nil {
		return nil, fmt.Errorf("quotatest: %d nodes and %d partitions: have 1 to %d and 1 to %d, and a clock",
			o.nodes, o.partitions, maxNodes, maxPartitions)
	}
	p, err := policy.Parse("policy", []byte(policyYAML))
	if err != nil {
		return nil, err
	}
	s := &Server{
		clock: o.clock, network: loopback{}, changed: make(chan struct{}), forward: true,
		watches: map[*watcher]bool{}, progress: make(chan struct{}),
		ledger: ledger{begun: o.clock(), accounts: map[string]*account{}},
	}
	if o.memory {
		s.network = newMemory(o.nodes)
	}
	s.ledger.install(p)
	for k := range o.nodes {
		n := &Node{server: s, ID: fmt.Sprint("n", k), number: k}
		s.nodes = append(s.nodes, n)
		if err := n.start(); err != nil {
			s.Close()
			return nil, err
		}
	}
	s.routes = newRoutes(o.partitions, o.nodes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell()
	return s, nil
}

// Close ends the nodes, and waits until nothing of them runs any more. It may be called again.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	for _, n := range s.nodes {
		n.Stop()
	}
}

// Addrs are the nodes' addresses, host:port: the seeds of a client.
func (s *Server) Addrs() (addrs []string) {
	for _, n := range s.nodes {
		addrs = append(addrs, n.Addr)
	}
	return addrs
}

// DialOptions are what a client needs to reach the nodes beside their addresses: nothing, unless they are in memory.
func (s *Server) DialOptions() []grpc.DialOption {
	if _, real := s.network.(loopback); real {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(s.network.dial)}
}

// Nodes are the nodes, n0 first.
func (s *Server) Nodes() []*Node { return s.nodes }

// Node is the node with an id; nil when there is none.
func (s *Server) Node(id string) *Node {
	for _, n := range s.nodes {
		if n.ID == id {
			return n
		}
	}
	return nil
}

// Apply puts the text of a policy file in force, as the next revision. Everything that was used stays used. Like
// Disable, Enable, Lead, Raise, Split, Freeze and Thaw it returns when every open watch that is not muted, silent or
// refused was sent the change, or with an error after 10 seconds. A client takes it a moment later: see Await.
func (s *Server) Apply(policyYAML string) error {
	p, err := policy.Parse("policy", []byte(policyYAML))
	if err != nil {
		return err
	}
	s.install(p)
	return s.settle()
}

func (s *Server) install(p *policy.Policy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.install(p)
	s.tell()
}

// Disable switches a class of the policy off, by a revision of its own: its checks are denied with endpoint_disabled.
func (s *Server) Disable(class string) error { return s.turn(class, true) }

// Enable switches a class on again, by a revision of its own.
func (s *Server) Enable(class string) error { return s.turn(class, false) }

func (s *Server) turn(class string, disabled bool) error {
	if err := s.turned(class, disabled); err != nil {
		return err
	}
	return s.settle()
}

func (s *Server) turned(class string, disabled bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	verb := "enable"
	if disabled {
		verb = "disable"
	}
	next, err := s.ledger.policy.With(fmt.Sprintf("%s-%s-r%d", verb, class, s.ledger.revision+1),
		[]policy.Switch{{Class: class, Disabled: disabled}})
	if err != nil {
		return err
	}
	s.ledger.install(next)
	s.tell()
	return nil
}

// Revision is the number of the policy revision in force, from 1.
func (s *Server) Revision() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.revision
}

// Used is what of a principal's admissions to a class, as the policy resolves its name, lies within a window that ends
// now.
func (s *Server) Used(principal, class string, window time.Duration) (sum int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	class, _ = s.ledger.policy.ClassOf(class)
	a, now := s.ledger.accounts[principal], s.clock().Sub(s.ledger.begun)
	if a == nil {
		return 0
	}
	for _, one := range a.logs[class] {
		if one.at > now-window {
			sum += one.cost
		}
	}
	return sum
}

// Forgive drops what a principal has used, of all classes. No revision tells of it.
func (s *Server) Forgive(principal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.forgive(principal)
}

// errClosed says that a node cannot be started any more.
var errClosed = errors.New("quotatest: the server is closed")
