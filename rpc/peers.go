package rpc

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/stats"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	peerKeepaliveTime    = 10 * time.Second
	peerKeepaliveTimeout = 3 * time.Second
	// maxMessageBytes bounds one message either way.
	maxMessageBytes = 1 << 20
	maxPeers        = 1024
)

// peers holds one connection per node, made at first use. The address is part of the key, so a node
// that moved gets a new one; connections to addresses that are no longer members are closed.
type peers struct {
	options []grpc.DialOption
	tls     *identity.Source // nil: plaintext

	mu     sync.Mutex // guards the rest
	conns  map[string]*grpc.ClientConn
	closed bool
}

func newPeers(tls *identity.Source) *peers {
	return &peers{
		tls:   tls,
		conns: map[string]*grpc.ClientConn{},
		options: []grpc.DialOption{
			grpc.WithNoProxy(),
			grpc.WithDisableServiceConfig(),
			grpc.WithDisableRetry(), // retries are the edge's, which knows whether one is safe
			grpc.WithStatsHandler(sentWatch{}),
			grpc.WithDefaultCallOptions(
				grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
			// The timeout is also the socket's TCP_USER_TIMEOUT, which gRPC sets from it: a peer that
			// went away without a word is given up after that much unacknowledged sending.
			grpc.WithKeepaliveParams(keepalive.ClientParameters{
				Time: peerKeepaliveTime, Timeout: peerKeepaliveTimeout, PermitWithoutStream: true,
			}),
			// A killed node is back within seconds; the library's own back-off goes up to minutes.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff: backoff.Config{
					BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second,
				},
				MinConnectTimeout: 2 * time.Second,
			}),
		},
	}
}

// to returns a client for the node m. members are all present nodes.
func (p *peers) to(m Member, members []Member) (quoratev1.PeerClient, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, quotaerr.New(quotaerr.NotLeader, "this node is stopping: ask another")
	}
	conn, ok := p.conns[connectionOf(m)]
	if !ok {
		p.dropStrangers(members)
		if len(p.conns) >= maxPeers {
			return nil, quotaerr.New(quotaerr.Overloaded, "too many peers: %d", maxPeers)
		}
		var err error
		options := append(slices.Clone(p.options), grpc.WithTransportCredentials(p.credentials(m)))
		if conn, err = grpc.NewClient("passthrough:///"+m.GRPC, options...); err != nil {
			return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "the leader's address is unusable")
		}
		p.conns[connectionOf(m)] = conn
	}
	return quoratev1.NewPeerClient(conn), nil
}

// connectionOf names the connection to a node: another node at the same address is another end.
func connectionOf(m Member) string { return m.ID + "@" + m.GRPC }

func (p *peers) credentials(m Member) credentials.TransportCredentials {
	if p.tls == nil {
		return insecure.NewCredentials()
	}
	return p.tls.Credentials(m.ID)
}

func (p *peers) dropStrangers(members []Member) {
	present := make(map[string]bool, len(members))
	for _, m := range members {
		present[connectionOf(m)] = true
	}
	for name, conn := range p.conns {
		if !present[name] {
			_ = conn.Close() // only ever errs when it is closed already
			delete(p.conns, name)
		}
	}
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for addr, conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, addr)
	}
}

// sentWatch notes for a call whether anything of it was given to a connection. A call that failed
// before that has certainly not been carried out.
type sentWatch struct{}

var _ stats.Handler = sentWatch{}

type sentKey struct{}

// watchSent returns a context for one call and a function that tells whether it may have been sent.
func watchSent(ctx context.Context) (context.Context, func() bool) {
	sent := new(atomic.Bool)
	return context.WithValue(ctx, sentKey{}, sent), sent.Load
}

func (sentWatch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (sentWatch) HandleRPC(ctx context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.OutHeader, *stats.OutPayload:
		if sent, ok := ctx.Value(sentKey{}).(*atomic.Bool); ok {
			sent.Store(true)
		}
	}
}

func (sentWatch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (sentWatch) HandleConn(context.Context, stats.ConnStats) {}
