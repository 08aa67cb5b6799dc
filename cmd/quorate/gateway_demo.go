package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/gateway"
	"github.com/quorate/quorate/node"
)

// The demonstration's ports: the nodes' begin at base, and the gateway's are beside them.
const (
	demoNodes        = 3
	demoGatewayPort  = 5
	demoAdminPort    = 6
	demoUpstreamPort = 7
	demoHeaderWait   = 10 * time.Second
)

func newGatewayDemo(o *options) *cobra.Command {
	basePort := 7070
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run a cluster, a gateway and a small upstream on this machine, to try things",
		Long: `demo runs three nodes as processes of their own, a gateway and a small upstream on loopback, and prints what to
paste. Its files are temporary. It ends with all of it on SIGINT or SIGTERM. The gateway's ports are base+5, with its
probes at base+6, and the upstream's is base+7.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if basePort < 1 || basePort+10*(demoNodes-1)+demoUpstreamPort > 65535 {
				return usagef(cmd, "--base-port %d leaves no room for the ports", basePort)
			}
			return runDemo(cmd.Context(), basePort, o.output, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().IntVar(&basePort, "base-port", basePort, "first port")
	return cmd
}

// demo is what the demonstration runs.
type demo struct {
	dir, key string
	base     int
	cluster  *devCluster
	nodes    *devRunning
	gateway  *gateway.Gateway
}

// demoView is what -o json prints.
type demoView struct {
	Gateway  string `json:"gateway"`
	Admin    string `json:"admin"`
	APIKey   string `json:"api_key"`
	Config   string `json:"config"`
	NodePIDs []int  `json:"node_pids"`
}

func runDemo(ctx context.Context, base int, format outputFormat, stdout, stderr io.Writer) (err error) {
	d := &demo{base: base}
	if d.dir, err = os.MkdirTemp("", "quorate-demo-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	upstream, err := d.upstream(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, upstream.Close()) }()
	if err := d.startCluster(ctx, stderr); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.nodes.stop()) }()
	if err := d.startGateway(stderr); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- runGateway(ctx, d.gateway) }()
	err = d.untilReady(ctx, ended)
	if err == nil {
		d.nodes.report()
		err = d.explain(format, stdout)
	}
	if err != nil {
		cancel()
		return errors.Join(err, <-ended)
	}
	return <-ended
}

func (d *demo) at(offset int) string { return fmt.Sprintf("127.0.0.1:%d", d.base+offset) }

// upstream answers each request with what it got.
func (d *demo) upstream(ctx context.Context) (*http.Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", d.at(demoUpstreamPort))
	if err != nil {
		return nil, fmt.Errorf("the upstream: %w; choose other ports with --base-port", err)
	}
	s := &http.Server{ReadHeaderTimeout: demoHeaderWait, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body) // as much as there is
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprintf(w, "the upstream got %s %s with %d bytes, from %s\n", r.Method, r.URL.Path, n,
				r.Header.Get("X-Quorate-Principal"))
		})}
	go func() { _ = s.Serve(l) }() // ends when it is closed
	return s, nil
}

func (d *demo) startCluster(ctx context.Context, stderr io.Writer) (err error) {
	f := &devFlags{nodes: demoNodes, basePort: d.base, processes: true}
	if d.cluster, err = layDevCluster(filepath.Join(d.dir, "cluster"), f); err != nil {
		return err
	}
	if d.nodes, err = d.cluster.startProcesses(ctx, stderr); err != nil {
		return err
	}
	if err := d.cluster.bringUp(ctx, f, d.nodes, stderr); err != nil {
		return errors.Join(err, d.nodes.stop())
	}
	return nil
}

// demoConfig has room for the addresses, in their order here.
const demoConfig = `# The configuration of the demonstration. Change it while it runs: it is read again.
listen: %s
admin: %s
cluster:
  addrs: [%s]
callers:
  account:
    - api_key: {file: keys.yaml}
upstreams:
  api: {url: "http://%s"}
routes:
  - {match: POST /convert, charges: [{class: convert}]}
  - {match: GET /health, unlimited: true}
fallback: {charges: [{class: default}]}
principal_header: X-Quorate-Principal
drain: {delay: 0s, timeout: 5s}
`

func (d *demo) startGateway(stderr io.Writer) error {
	key, entry, err := gateway.NewKey("account:demo", "")
	if err != nil {
		return err
	}
	line, err := entry.Line()
	if err != nil {
		return err
	}
	d.key = key
	var addrs []string
	for _, n := range d.cluster.nodes {
		addrs = append(addrs, n.GRPC)
	}
	config := fmt.Sprintf(demoConfig, d.at(demoGatewayPort), d.at(demoAdminPort), strings.Join(addrs, ", "),
		d.at(demoUpstreamPort))
	for name, text := range map[string]string{"gateway.yaml": config, "keys.yaml": "keys:\n" + line + "\n"} {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	cfg, err := gateway.Load(d.config(), nil)
	if err != nil {
		return err
	}
	d.gateway, err = gateway.Start(cfg, gateway.Options{Logger: newLogger(stderr, node.LogConfig{Level: "warn"})})
	return err
}

func (d *demo) config() string { return filepath.Join(d.dir, "gateway.yaml") }

// untilReady waits until the gateway says that it is ready.
func (d *demo) untilReady(ctx context.Context, ended chan error) error {
	ctx, cancel := context.WithTimeout(ctx, devReadyTimeout)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !saysReady(ctx, d.at(demoAdminPort)) {
		select {
		case err := <-ended:
			ended <- nil // who waits for the end
			return errors.Join(errors.New("the gateway has ended before it was ready"), err)
		case <-ctx.Done():
			return fmt.Errorf("the gateway was not ready within %s", devReadyTimeout)
		case <-tick.C:
		}
	}
	return nil
}

func (d *demo) explain(format outputFormat, w io.Writer) error {
	v := demoView{
		Gateway: d.at(demoGatewayPort), Admin: d.at(demoAdminPort), APIKey: d.key, Config: d.config(),
		NodePIDs: d.nodes.pids,
	}
	if format == outputJSON || format == outputYAML {
		return format.print(w, v, nil)
	}
	var pids []string
	for _, pid := range v.NodePIDs {
		pids = append(pids, fmt.Sprint(pid))
	}
	_, err := fmt.Fprintf(w, `Three nodes, a gateway and an upstream are ready. Try, in another terminal:

  curl -i -X POST -H 'X-Api-Key: %[1]s' http://%[2]s/convert

Three times within 60 s it is 200, with RateLimit headers; the fourth is 429, with Retry-After. Then:

  curl -i -X POST http://%[2]s/convert                      # 401: no key
  curl -i -X POST -H 'X-Api-Key: %[1]s' http://%[2]s/Convert   # 400: may be taken for /convert
  curl -i -H 'X-Api-Key: %[1]s' http://%[2]s/other    # 200, counted in the class default
  curl -i http://%[2]s/health                               # 200, unlimited
  curl -s http://%[3]s/metrics | grep quorate_gateway_requests

Stop the cluster, and nobody can decide any more: the class says deny, so the gateway answers 503, not 200:

  kill -9 %[4]s
  curl -i -X POST -H 'X-Api-Key: %[1]s' http://%[2]s/convert

The configuration, which is read again when it changes: %[5]s
Ctrl-C ends it all.
`, v.APIKey, v.Gateway, v.Admin, strings.Join(pids, " "), v.Config)
	return err
}
