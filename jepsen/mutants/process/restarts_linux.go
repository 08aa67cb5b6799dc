//go:build chaos

package process

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
	"github.com/quorate/quorate/jepsen/workload"
	"github.com/quorate/quorate/sdk"
)

// restart kills all nodes and starts them again.
func (s *stage) restart() {
	s.Helper()
	s.kill(s.cluster.Nodes...)
	for _, n := range s.cluster.Nodes {
		s.must(n.Start())
	}
}

// restartOfAll asks for more of what is used up after all nodes were killed.
func (s *stage) restartOfAll() {
	s.start(2)
	full := principals("full", 8)
	s.decideAll(room, full, s.all()...)
	s.restart()
	s.decideAll(2, full, s.all()...)
}

// longerUp does the same on machines that have been up for much longer.
func (s *stage) longerUp() {
	script := filepath.Join(s.dir, "up-longer")
	text := "#!/bin/sh\nexec unshare --time --monotonic 100000 --boottime 100000 " + s.binary + " \"$@\"\n"
	s.must(os.WriteFile(script, []byte(text), 0o700)) //nolint:gosec // it is run
	if _, err := process.Run(s.ctx, script, "version"); err != nil {
		s.Skipf("this machine has no time namespaces: %v", err)
	}
	s.start(2)
	full := principals("full", 8)
	s.decideAll(room, full, s.all()...)
	// Whoever leads then has had the last entry before.
	s.must(s.cluster.AwaitAgreement(s.ctx))
	for _, n := range s.cluster.Nodes {
		n.Binary = script
	}
	s.restart()
	s.decideAll(2, full, s.all()...)
}

// cutFollower asks a node that is cut off how much is used, once more was admitted without it.
func (s *stage) cutFollower() {
	s.start(1)
	of := principals("asked", 4)
	s.decideAll(2, of, s.all()...)
	leader, others := s.leader("p0")
	s.cluster.Network.Cut(&others[0].Node)
	s.event("fault", "cut-follower", others[0].ID)
	s.decideAll(4, of, &leader.Node, &others[1].Node)
	door := workload.NewGRPC(s.must1(s.cluster.GatewayTLS()), nil)
	defer func() { s.must(door.Close()) }()
	var asking sync.WaitGroup
	for _, n := range others {
		for _, p := range of {
			asking.Go(func() { s.peek(door, p, &n.Node) })
		}
	}
	asking.Wait()
	s.cluster.Network.Heal(&others[0].Node)
}

// peek asks a node how much a principal has used, and records what it says.
func (s *stage) peek(door *workload.GRPC, principal string, at *process.Node) {
	ctx, cancel := context.WithTimeout(s.ctx, answerWithin)
	defer cancel()
	a := s.next(principal)
	a.Peek, a.Node, a.Sent, a.Received = true, at.ID, s.now(), history.Never
	answer, err := door.Peek(ctx, &workload.Node{ID: at.ID, GRPC: at.GRPC}, principal, class)
	if err == nil {
		a.Received, a.Answer = s.now(), answer
	}
	s.tell(&a)
}

// lostAnswers has gateways on the SDK whose checks are decided, and whose node dies before they hear of it.
func (s *stage) lostAnswers() {
	guard.Switch(s.off) // the gateways are in this process
	defer guard.Switch("")
	s.start(1)
	leader, _ := s.leader("p0")
	var addrs []string
	for _, n := range s.cluster.Nodes {
		addrs = append(addrs, n.Dialled.GRPC)
	}
	lines := &lines{}
	client, err := sdk.New(addrs, sdk.WithTLS(s.must1(s.cluster.GatewayTLS())),
		sdk.WithDialOptions(workload.DialOptions(lines.dial)...))
	s.must(err)
	defer func() { s.must(client.Close()) }()
	gateway := &workload.SDK{Client: client}
	s.throughGateway(gateway, principals("warm", 8))
	s.cluster.Network.Set(leader.ID, process.Outside, process.Condition{Drop: true})
	s.event("fault", "cut-clients", leader.ID)
	lost := principals("lost", 8)
	var asking sync.WaitGroup
	asking.Go(func() { s.throughGateway(gateway, lost) })
	s.await("the checks were decided", func() bool { return s.applied(leader.ID, lost) })
	s.kill(leader)
	lines.hangUp(leader.Dialled.GRPC) // with what was on its way
	s.cluster.Network.Clear()
	asking.Wait()
}

// lines are the connections of a gateway.
type lines struct {
	mu   sync.Mutex // guards open
	open []net.Conn
}

func (l *lines) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, conn)
	return conn, nil
}

// hangUp ends those to an address.
func (l *lines) hangUp(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.open {
		if conn.RemoteAddr().String() == address {
			_ = conn.Close() // its user sees to it
		}
	}
}

// throughGateway has each principal checked once, at the same time.
func (s *stage) throughGateway(gateway *workload.SDK, of []string) {
	var asking sync.WaitGroup
	for _, p := range of {
		asking.Go(func() {
			a := s.next(p)
			a.ID = ""
			a.Sent, a.Received = s.now(), history.Never
			k := &workload.Check{Principal: p, Class: class, Cost: 1}
			answer, known, asked := gateway.Check(s.ctx, k)
			if !asked {
				s.Errorf("the check of %s was not sent: %+v", p, answer)
			}
			if a.ID = k.ID; known {
				a.Received, a.Answer = s.now(), answer
			}
			s.tell(&a)
		})
	}
	asking.Wait()
}
