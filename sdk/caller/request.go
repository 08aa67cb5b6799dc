package caller

import (
	"context"
	"crypto/tls"
	"net/http"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// Request is what is known of a request when it is decided who pays for it, be it HTTP or gRPC. It is valid while the
// request is, and is read only.
type Request struct {
	// Context is the request's.
	Context context.Context
	// RemoteAddr is the other end of the connection, usually host:port.
	RemoteAddr string
	// TLS is the connection's; nil without TLS.
	TLS *tls.ConnectionState
	// HTTP is the HTTP request; nil for gRPC.
	HTTP *http.Request
	// Method is the full gRPC method, as /package.Service/Method; empty for HTTP.
	Method string
	// Message is the request message of a unary gRPC call; nil for HTTP and for streams.
	Message any

	values func(name string) []string
}

// Values are the values of a header, in the order they came in; for gRPC those of the metadata.
func (r *Request) Values(name string) []string {
	if r.values == nil {
		return nil
	}
	return r.values(name)
}

// FromHTTP is the view of an HTTP request.
func FromHTTP(r *http.Request) *Request {
	return &Request{
		Context: r.Context(), RemoteAddr: r.RemoteAddr, TLS: r.TLS, HTTP: r, values: r.Header.Values,
	}
}

// FromGRPC is the view of a gRPC call from its server context. message is nil for a stream.
func FromGRPC(ctx context.Context, method string, message any) *Request {
	r := &Request{Context: ctx, Method: method, Message: message}
	r.values = func(name string) []string { return metadata.ValueFromIncomingContext(ctx, name) }
	p, ok := peer.FromContext(ctx)
	if !ok {
		return r
	}
	if p.Addr != nil {
		r.RemoteAddr = p.Addr.String()
	}
	if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		r.TLS = &info.State
	}
	return r
}
