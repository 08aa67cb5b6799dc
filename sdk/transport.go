package sdk

import (
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/router"
)

const (
	// keepaliveTime is what the nodes allow. keepaliveTimeout is also the socket's TCP_USER_TIMEOUT: a node that went
	// away without a word is given up after that much unacknowledged sending.
	keepaliveTime    = 10 * time.Second
	keepaliveTimeout = 3 * time.Second
	// The waits between two attempts to connect. A node that was killed is back within seconds.
	connectLeast   = 50 * time.Millisecond
	connectMost    = 500 * time.Millisecond
	connectTimeout = 2 * time.Second
	// maxMessageBytes bounds one message either way, as the nodes do.
	maxMessageBytes = 1 << 20
)

// transport makes connections.
type transport struct {
	settings *settings
	tls      *tls.Config      // nil unless given
	source   *identity.Source // nil unless files are given
	options  []grpc.DialOption
}

func newTransport(s *settings) (*transport, error) {
	t := &transport{settings: s, tls: s.tls, options: []grpc.DialOption{
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // the client retries by itself, with the same decision id
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: connectLeast, Multiplier: 1.6, Jitter: 0.2, MaxDelay: connectMost},
			MinConnectTimeout: connectTimeout,
		}),
	}}
	if s.ca == "" {
		return t, nil
	}
	source, err := identity.Open(identity.Files{CA: s.ca, Cert: s.cert, Key: s.key}, identity.ID{})
	if err != nil {
		return nil, fmt.Errorf("the TLS files: %w", err)
	}
	t.source = source
	return t, nil
}

// dial makes a connection to a node, of which it may know the address alone. It does not wait for it.
func (t *transport) dial(n router.Node) (*grpc.ClientConn, error) {
	if err := t.settings.mayDial(n.GRPC); err != nil {
		return nil, err
	}
	options := append(append([]grpc.DialOption{}, t.options...), grpc.WithTransportCredentials(t.credentials(n)))
	return grpc.NewClient("passthrough:///"+n.GRPC, append(options, t.settings.dial...)...)
}

func (t *transport) credentials(n router.Node) credentials.TransportCredentials {
	switch {
	case t.source != nil:
		return t.source.Credentials(n.ID)
	case t.tls != nil:
		return credentials.NewTLS(t.tls)
	}
	return insecure.NewCredentials()
}

// mayDial refuses an address that is none, and plaintext to another machine.
func (s *settings) mayDial(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("address %q: give host:port", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("address %q: give a port from 1 to 65535", addr)
	}
	ip := net.ParseIP(host)
	here := strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback() ||
		strings.HasSuffix(host, ".invalid") // which is nowhere (RFC 6761): a dialer of the caller's finds it, or nobody
	if s.plaintext() && !here {
		return fmt.Errorf("address %q is not loopback: plaintext is for this machine only, give WithTLSFiles or WithTLS",
			addr)
	}
	return nil
}
