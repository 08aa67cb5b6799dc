package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// http2 is the only protocol that gRPC speaks.
const http2 = "h2"

// Credentials are a gRPC client's, for the connections to one node.
type Credentials struct {
	source *Source
	node   string
	failed atomic.Pointer[error]
}

var _ credentials.TransportCredentials = (*Credentials)(nil)

// Credentials makes the credentials for a node with the given id; for any node of the cluster, when it is empty.
func (s *Source) Credentials(node string) *Credentials { return &Credentials{source: s, node: node} }

// Failure is why the newest connection was refused, by either end; nil when it was not.
func (c *Credentials) Failure() error {
	if err := c.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// ClientHandshake authenticates both ends of a connection to authority (host:port).
func (c *Credentials) ClientHandshake(
	ctx context.Context, authority string, raw net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	t := tls.Client(raw, c.source.Client(authority, c.node, http2))
	if err := t.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // nothing was said that counts
		if ctx.Err() == nil {
			c.failed.Store(&err)
		}
		return nil, nil, err
	}
	c.failed.Store(nil)
	info := credentials.TLSInfo{
		State:          t.ConnectionState(),
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}
	return &noting{Conn: t, of: c}, info, nil
}

// noting notes that the other end has refused the own certificate: it does so after the handshake, as far as
// this end can tell.
type noting struct {
	*tls.Conn
	of *Credentials
}

func (n *noting) Read(b []byte) (int, error) {
	count, err := n.Conn.Read(b)
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		n.of.failed.Store(&err)
	}
	return count, err
}

// ServerHandshake is not for clients.
func (c *Credentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these are a client's credentials")
}

// Info says that it is TLS.
func (c *Credentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone returns c, so that Failure tells of all connections.
func (c *Credentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName is refused: the name is that which was dialled.
func (c *Credentials) OverrideServerName(string) error {
	return errors.New("the name in the certificate is that which was dialled")
}
