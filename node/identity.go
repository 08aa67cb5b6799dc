package node

import (
	"context"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/partition/group"
)

// secure authenticates the connections between nodes: the other end must be a configured one, whoever
// else has a node's certificate.
type secure struct {
	*identity.Source
	cfg *Config
}

var _ group.Secure = (*secure)(nil)

// Accept authenticates an accepted connection.
func (s *secure) Accept(ctx context.Context, raw net.Conn) (net.Conn, string, error) {
	conn, node, err := s.Source.Accept(ctx, raw)
	if err != nil {
		return nil, "", err
	}
	if _, ok := s.cfg.peer(node); !ok {
		return nil, "", fmt.Errorf("node %.63q has a certificate and is not configured here: add it to nodes", node)
	}
	return conn, node, nil
}

// openIdentity reads this node's certificate, if TLS is configured. A certificate that the other nodes would
// refuse ends the start.
func (n *Node) openIdentity() (err error) {
	if !n.cfg.TLS.on() {
		return nil
	}
	n.identity, err = identity.Open(identity.Files(n.cfg.TLS), identity.ID{
		Cluster: n.cfg.ClusterID, Role: identity.Node, Name: n.cfg.ID,
	})
	if err != nil {
		return fmt.Errorf("tls: %w", err)
	}
	return nil
}

// watchIdentity puts changed certificates in force until ctx ends.
func (n *Node) watchIdentity(ctx context.Context) {
	if n.identity != nil {
		n.identity.Watch(ctx, n.logger)
	}
}

// measureIdentity makes the end of the certificate a metric, so that it can be warned of.
func (n *Node) measureIdentity() {
	if n.identity == nil {
		return
	}
	n.server.Registry().MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quorate_certificate_end_timestamp_seconds", Help: "When this node's certificate ends, in Unix time.",
	}, func() float64 { return float64(n.identity.NotAfter().Unix()) }))
}
