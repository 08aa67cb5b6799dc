package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
)

// trust tells apart what was asked of callers' certificates: it is another when tls.client_ca, the file's content, or
// tls.client_certificates is another. A connection has that of its handshake.
type trust [sha256.Size]byte

func (c *Config) trustIn(clientCA []byte) trust {
	return sha256.Sum256(append([]byte(c.TLS.ClientCertificates+"\x00"), clientCA...))
}

type trustKey struct{}

// withTrust notes the trust of a connection that speaks HTTP/2: net/http wants the type *tls.Conn for it.
func withTrust(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(*tls.Conn); ok {
		if held, ok := secured.NetConn().(*slot); ok {
			return context.WithValue(ctx, trustKey{}, held.trust)
		}
	}
	return ctx
}

// trustOf is the trust of a request's connection, with TLS.
func trustOf(ctx context.Context, c *conn) trust {
	if c != nil {
		return c.trust
	}
	t, _ := ctx.Value(trustKey{}).(trust)
	return t
}

// distrusts reports whether a connection could not be made any more, as callers' certificates are judged now. A
// connection that was made when they were judged otherwise ends after the answer in any case.
func (gen *generation) distrusts(a *answer, r *http.Request) bool {
	if r.TLS == nil || gen.tls == nil || trustOf(r.Context(), a.conn) == gen.trust {
		return false
	}
	a.closes = upgradeOf(r.Header) == "" // a change of protocol ends it by itself
	state := *r.TLS
	state.VerifiedChains = nil
	r.TLS = &state
	if gen.tls.ClientAuth == tls.NoClientCert {
		return false
	}
	if len(state.PeerCertificates) == 0 {
		return gen.tls.ClientAuth == tls.RequireAndVerifyClientCert
	}
	between := x509.NewCertPool()
	for _, cert := range state.PeerCertificates[1:] {
		between.AddCert(cert)
	}
	chains, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{
		Roots: gen.tls.ClientCAs, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	state.VerifiedChains = chains
	return err != nil
}
