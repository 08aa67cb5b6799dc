package client

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// shown is a token on its way. It is behind a pointer so that printing what has it does not tell it.
type shown struct {
	secret *string
	tls    bool
}

var _ credentials.PerRPCCredentials = (*shown)(nil)

// GetRequestMetadata is what goes with each call.
func (s *shown) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + *s.secret}, nil
}

// RequireTransportSecurity has the library refuse to send it over anything but TLS.
func (s *shown) RequireTransportSecurity() bool { return s.tls }

// showing are the options by which the client's token, if it has one, goes to addr.
func (c *Client) showing(addr string) ([]grpc.DialOption, error) {
	if c.token == nil {
		return nil, nil
	}
	if c.tls == nil && !loopback(addr) {
		return nil, errors.New("a token goes over TLS only: give --tls-ca")
	}
	return []grpc.DialOption{grpc.WithPerRPCCredentials(&shown{secret: c.token, tls: c.tls != nil})}, nil
}

// loopback reports whether addr (host:port) is certainly on this machine.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
