package rpc

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// scriptedPeer is another node as the wire shows it: it notes what is passed on to it and answers as
// a test tells it to, also what a sound node never would.
type scriptedPeer struct {
	quoratev1.UnimplementedPeerServer
	addr   string
	server *grpc.Server
	answer func(ctx context.Context, attempt int) (*quoratev1.Decision, error)

	operated atomic.Int32 // operators' calls

	mu   sync.Mutex // guards the rest
	seen []*quoratev1.ForwardCheckRequest
}

func (p *scriptedPeer) ForwardCheck(
	ctx context.Context, req *quoratev1.ForwardCheckRequest,
) (*quoratev1.Decision, error) {
	p.mu.Lock()
	p.seen = append(p.seen, proto.CloneOf(req))
	n := len(p.seen)
	p.mu.Unlock()
	return p.answer(ctx, n)
}

// ForwardAdmin answers an operator's call with the error of answer, or with an empty response.
func (p *scriptedPeer) ForwardAdmin(
	ctx context.Context, _ *quoratev1.ForwardAdminRequest,
) (*quoratev1.ForwardAdminResponse, error) {
	if _, err := p.answer(ctx, int(p.operated.Add(1))); err != nil {
		return nil, err
	}
	return &quoratev1.ForwardAdminResponse{}, nil
}

// asked returns what was passed on to it.
func (p *scriptedPeer) asked() []*quoratev1.ForwardCheckRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*quoratev1.ForwardCheckRequest(nil), p.seen...)
}

// mustPeer serves answer as another node's Peer service until the test ends.
func mustPeer(
	t testing.TB, answer func(ctx context.Context, attempt int) (*quoratev1.Decision, error),
) *scriptedPeer {
	t.Helper()
	l := mustListen(t)
	p := &scriptedPeer{addr: l.Addr().String(), server: grpc.NewServer(), answer: answer}
	quoratev1.RegisterPeerServer(p.server, p)
	done := make(chan error, 1)
	go func() { done <- p.server.Serve(l) }()
	t.Cleanup(func() {
		p.server.Stop()
		if err := <-done; err != nil {
			t.Errorf("the peer ended with %v", err)
		}
	})
	return p
}

// allowedByPeer is a sound allow as another node answers it.
func allowedByPeer() *quoratev1.Decision {
	return &quoratev1.Decision{Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "allowed",
		DecisionId: "d1"}
}

// mustImpatient serves the node's HTTP handler on a further socket, where each request has only d
// until its deadline, and returns a node to post to.
func (n *testNode) mustImpatient(t testing.TB, d time.Duration) *testNode {
	t.Helper()
	l := mustListen(t)
	handler := n.Server.http.Handler
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), d)
			defer cancel()
			handler.ServeHTTP(w, r.WithContext(ctx))
		})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	c := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		c.CloseIdleConnections()
		_ = server.Close()
		<-done
	})
	return &testNode{Server: n.Server, url: "http://" + l.Addr().String(), http: c}
}
