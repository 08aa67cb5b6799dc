package identity

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

// config is what both ends have in common. It is made anew for each connection, since a configuration that is
// in use must not change.
func (b *bundle) config(protocols []string) *tls.Config {
	c := &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: b.roots, ClientCAs: b.roots, NextProtos: protocols,
		// A resumed session is not verified again: it would outlive its certificate, and its CA.
		SessionTicketsDisabled: true,
	}
	if b.cert.Leaf != nil {
		c.Certificates = []tls.Certificate{b.cert}
	}
	return c
}

// Server makes the configuration for one accepted connection. Without a certificate the other end is refused,
// unless optional is set. The certificate's chain is verified in the handshake; who it is, Peer tells.
func (s *Source) Server(optional bool, protocols ...string) *tls.Config {
	c := s.current.Load().config(protocols)
	c.ClientAuth = tls.RequireAndVerifyClientCert
	if optional {
		c.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return c
}

// Client makes the configuration for one connection to addr (host:port): the certificate of the other end must
// be valid for that host, and be that of the node with the given id; of any node of the own cluster, when it is
// empty. Without an own certificate there is no own cluster, and every one that the CAs know counts.
func (s *Source) Client(addr, node string, protocols ...string) *tls.Config {
	b := s.current.Load()
	c := b.config(protocols)
	c.ServerName = addr
	if host, _, err := net.SplitHostPort(addr); err == nil {
		c.ServerName = host
	}
	c.VerifyConnection = func(state tls.ConnectionState) error {
		id, err := Of(state.PeerCertificates[0])
		if err != nil {
			return err
		}
		return id.mustBe(ID{Cluster: b.id.Cluster, Role: Node, Name: node})
	}
	return c
}

// ErrNoCertificate says that the other end has shown none.
var ErrNoCertificate = errors.New("no certificate was shown: use one that `quorate cert` has made, " +
	"or over gRPC a token")

// Peer tells who is at the other end of a connection whose handshake is over. The error says why nobody who
// counts here is, in words for whoever is at the other end.
func (s *Source) Peer(state *tls.ConnectionState) (ID, error) {
	if len(state.VerifiedChains) == 0 {
		return ID{}, ErrNoCertificate
	}
	id, err := Of(state.PeerCertificates[0])
	if err != nil {
		return ID{}, err
	}
	if err := id.mustBe(ID{Cluster: s.ID().Cluster}); err != nil {
		return ID{}, err
	}
	return id, nil
}

// conn is a connection between nodes. It is closed without a farewell, which could wait for a peer that does
// not read; what goes over it says itself where it ends.
type conn struct{ *tls.Conn }

func (c conn) Close() error { return c.NetConn().Close() }

// Accept makes an accepted connection one with another node, and tells which: the other end must have a node's
// certificate. conn has a deadline.
func (s *Source) Accept(ctx context.Context, raw net.Conn) (secured net.Conn, node string, err error) {
	c := s.Server(false)
	c.VerifyConnection = func(state tls.ConnectionState) error {
		id, err := s.Peer(&state)
		if err == nil {
			err = id.mustBe(ID{Role: Node})
		}
		node = id.Name
		return err
	}
	t := tls.Server(raw, c)
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, "", fmt.Errorf("TLS: %w", err)
	}
	return conn{t}, node, nil
}

// Dial makes a connection to addr one with the given node. raw has a deadline.
func (s *Source) Dial(ctx context.Context, raw net.Conn, node, addr string) (net.Conn, error) {
	t := tls.Client(raw, s.Client(addr, node))
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS with node %s at %s: %w", node, addr, err)
	}
	return conn{t}, nil
}
