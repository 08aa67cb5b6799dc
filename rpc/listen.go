package rpc

import (
	"context"
	"fmt"
	"net"
)

// ListenPlaintext listens on addr, host:port, and refuses every host that is not loopback: without
// transport security everybody who reaches the port could use any principal's allowance.
func ListenPlaintext(ctx context.Context, addr string) (net.Listener, error) {
	addr, err := LoopbackAddr(ctx, addr)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

// Listen listens on addr, host:port: any, where connections are to be secured by TLS, else loopback only.
func Listen(ctx context.Context, addr string, secured bool) (net.Listener, error) {
	if !secured {
		return ListenPlaintext(ctx, addr)
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

// LoopbackAddr is addr, host:port, with its host as an IP address, which must be loopback.
func LoopbackAddr(ctx context.Context, addr string) (string, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("listen address %q: write it as host:port: %w", addr, err)
	}
	ip, err := loopbackIP(ctx, host)
	if err != nil {
		return "", fmt.Errorf("listen address %q: %w", addr, err)
	}
	return net.JoinHostPort(ip.String(), port), nil
}

func loopbackIP(ctx context.Context, host string) (net.IP, error) {
	const remedy = "without TLS only loopback is served; use 127.0.0.1 or [::1], or configure TLS"
	if host == "" {
		return nil, fmt.Errorf("it names every interface: %s", remedy)
	}
	addrs, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("host %q cannot be resolved: %w", host, err)
	}
	for _, a := range addrs {
		if !a.IP.IsLoopback() {
			return nil, fmt.Errorf("%s is not loopback: %s", a.IP, remedy)
		}
	}
	if len(addrs) == 0 {
		return nil, fmt.Errorf("host %q has no address", host)
	}
	for _, a := range addrs {
		if a.IP.To4() != nil {
			return a.IP, nil
		}
	}
	return addrs[0].IP, nil
}

// mustBeLoopback refuses a listener that ListenPlaintext would not have made.
func mustBeLoopback(l net.Listener) error {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok || !a.IP.IsLoopback() {
		return fmt.Errorf("%s is not a loopback address: without TLS only loopback is served", l.Addr())
	}
	return nil
}
