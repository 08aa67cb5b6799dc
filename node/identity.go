package node

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/identity"
)

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

// gossipKeyBytes is what a key of gossip has: AES-256.
const gossipKeyBytes = 32

// readGossipKey reads the key of gossip: base64 in a file of its own.
func readGossipKey(file string) ([]byte, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(src)))
	if err != nil || len(key) != gossipKeyBytes {
		return nil, fmt.Errorf("%s does not hold %d bytes in base64: make one with `quorate cert gossip`, once for all nodes",
			file, gossipKeyBytes)
	}
	return key, nil
}
