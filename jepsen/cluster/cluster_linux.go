package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

// clusterID is that of every cluster here: each has its own CA, directory and ports.
const clusterID = "5d1f0a9e-2b64-4c07-8d3f-90b6f3a1c7e2"

// Options are what differs between clusters.
type Options struct {
	Binary     string // an absolute path
	Nodes      int    // that there is room for
	First      int    // that the cluster is made of; the others are down
	Partitions int
	Policy     history.Policy // that it begins with
	// Cuts puts a network between the nodes that can cut them off: of relays on loopback.
	Cuts bool
	// Namespaces makes that a network of namespaces, in which nodes, commands and clients are.
	Namespaces bool
	// Moves says that partitions come and go. Partitions then tells only how many there are at first.
	Moves bool
	// SnapshotLogMiB is after how much log a snapshot is taken; 0: as the product does.
	SnapshotLogMiB int
	// DataDir makes what a node's data directory is on, and says where that is; nil for the cluster's own directory.
	DataDir func(id string) (string, error)
	// Environment is what a node's processes get beside this process's own, as NAME=value; nil for nothing.
	Environment func(*process.Node) []string
}

// Cluster is nodes with TLS, on loopback or in namespaces.
type Cluster struct {
	Nodes []*Node // those that may run; without those that were removed
	// Network is between the nodes; nil without Options.Cuts and Options.Namespaces.
	Network Network

	options Options
	dir     string
	admin   []string // the flags that show an administrator's certificate
	outside process.Place
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// NewCluster makes certificates and a cluster in dir, which must exist, and waits until it is whole.
func NewCluster(ctx context.Context, dir string, o Options) (_ *Cluster, err error) {
	c := &Cluster{options: o, dir: dir, dial: new(net.Dialer).DialContext}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	if err := c.certify(ctx); err != nil {
		return nil, err
	}
	if err := c.placeAll(); err != nil {
		return nil, err
	}
	for _, n := range c.Nodes {
		if err := c.layOut(ctx, n); err != nil {
			return nil, err
		}
	}
	for _, n := range c.Nodes[:o.First] {
		if err := n.Start(); err != nil {
			return nil, err
		}
	}
	return c, c.form(ctx)
}

// certify makes the CA, the gossip's key, and the certificates of an administrator and a gateway.
func (c *Cluster) certify(ctx context.Context) error {
	for _, args := range [][]string{
		{"ca", "--cluster-id", clusterID}, {"gossip"}, {"admin", "ops"}, {"gateway", "edge"},
	} {
		if _, err := c.run(ctx, append(append([]string{"cert"}, args...), "--dir", c.dir)...); err != nil {
			return err
		}
	}
	c.admin = []string{
		"--tls-ca", c.file("ca.pem"), "--tls-cert", c.file("admin-ops.pem"), "--tls-key", c.file("admin-ops-key.pem"),
	}
	return nil
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

// placeAll gives the nodes their places.
func (c *Cluster) placeAll() error {
	place := c.onLoopback
	if c.options.Namespaces {
		place = c.inNamespaces
	}
	nodes, err := place()
	if err != nil {
		return err
	}
	for _, n := range nodes {
		n.DataDir = c.file(n.ID)
		if c.options.DataDir != nil {
			if n.DataDir, err = c.options.DataDir(n.ID); err != nil {
				return err
			}
		}
		n.Environment = []string{"QUORATE_HOLD=" + c.file(holdFile)}
		if c.options.Environment != nil {
			n.Environment = append(n.Environment, c.options.Environment(&n.Node)...)
		}
	}
	c.Nodes = nodes
	return nil
}

// layOut writes a node's certificate and configuration.
func (c *Cluster) layOut(ctx context.Context, n *Node) error {
	host, _, err := net.SplitHostPort(n.GRPC)
	if err != nil {
		return err
	}
	if _, err := c.run(ctx, "cert", "node", n.ID, "--host", host, "--dir", c.dir); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "cluster_id: %s\nnode_id: %s\ndata_dir: %s\n", clusterID, n.ID, n.DataDir)
	fmt.Fprintf(&b, "grpc: %q\nhttp: %q\nraft: %q\ngossip: %q\n", n.GRPC, n.HTTP, n.Raft, n.Gossip)
	fmt.Fprintf(&b, "gossip_key_file: gossip.key\ntls: {ca: ca.pem, cert: node-%s.pem, key: node-%[1]s-key.pem}\n", n.ID)
	fmt.Fprintf(&b, "advertise: {grpc: %q, raft: %q, gossip: %q}\n", n.Dialled.GRPC, n.Dialled.Raft, n.Dialled.Gossip)
	if c.options.SnapshotLogMiB > 0 {
		fmt.Fprintf(&b, "log_store: {snapshot_log_mib: %d}\n", c.options.SnapshotLogMiB)
	}
	b.WriteString("storage: {min_free_mib: 0}\njoin:\n")
	for _, first := range c.Nodes[:c.options.First] {
		fmt.Fprintf(&b, "  - %q\n", first.Dialled.Raft)
	}
	return os.WriteFile(n.Config, []byte(b.String()), 0o600)
}

// form makes the cluster, once its nodes have started.
func (c *Cluster) form(ctx context.Context) error {
	file, err := c.policyFile(c.options.Policy)
	if err != nil {
		return err
	}
	var last error
	// A node that has just been started does not take connections yet.
	err = process.Await(ctx, "the cluster can be made", func() bool {
		_, last = c.commandAt(ctx, []string{c.Nodes[0].GRPC}, "cluster", "init",
			"--partitions", fmt.Sprint(c.options.Partitions), "--policy", file)
		return last == nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return c.AwaitWhole(ctx, min(3, c.options.First))
}

// policyFile writes a policy to a file of its own.
func (c *Cluster) policyFile(p history.Policy) (string, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	file := c.file("policy-" + p.Version + ".json")
	return file, os.WriteFile(file, text, 0o600)
}

// Command runs a command of the binary, with an administrator's certificate and the addresses of all nodes that
// have a process, be it paused.
func (c *Cluster) Command(ctx context.Context, args ...string) ([]byte, error) {
	addrs := c.addrs()
	if len(addrs) == 0 {
		return nil, errors.New("no node is up")
	}
	return c.commandAt(ctx, addrs, args...)
}

// addrs are those of the nodes that have a process, in any order; those that are cut off come last.
func (c *Cluster) addrs() (addrs []string) {
	var cut []string
	for _, k := range rand.Perm(len(c.Nodes)) {
		switch n := c.Nodes[k]; {
		case !n.Up():
		case c.Network != nil && c.Network.IsCut(&n.Node):
			cut = append(cut, n.GRPC)
		default:
			addrs = append(addrs, n.GRPC)
		}
	}
	return append(addrs, cut...)
}

func (c *Cluster) commandAt(ctx context.Context, addrs []string, args ...string) ([]byte, error) {
	return c.run(ctx, slices.Concat(args, []string{"--addr", strings.Join(addrs, ",")}, c.admin)...)
}

func (c *Cluster) run(ctx context.Context, args ...string) ([]byte, error) {
	return c.outside.Run(ctx, c.options.Binary, args...)
}

// gateway is the TLS configuration that shows the gateway's certificate.
func (c *Cluster) gateway() (*tls.Config, error) {
	pem, err := os.ReadFile(c.file("ca.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("ca.pem holds no certificate")
	}
	own, err := tls.LoadX509KeyPair(c.file("gateway-edge.pem"), c.file("gateway-edge-key.pem"))
	if err != nil {
		return nil, err
	}
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS13}, nil
}

// Node is that with an id; nil when there is none.
func (c *Cluster) Node(id string) *Node {
	i := slices.IndexFunc(c.Nodes, func(n *Node) bool { return n.ID == id })
	if i < 0 {
		return nil
	}
	return c.Nodes[i]
}

// Close ends the processes.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.Kill())
	}
	if c.Network != nil {
		errs = append(errs, c.Network.Close())
	}
	return errors.Join(errs...)
}
