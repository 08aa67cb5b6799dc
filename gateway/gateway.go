package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/gateway/wire"
	"github.com/quorate/quorate/sdk"
)

// Options are what a gateway gets beside its configuration.
type Options struct {
	// Logger is told what happens; nil: nobody is.
	Logger *slog.Logger
	// SDK are further options of the SDK's client, for tests.
	SDK []sdk.Option

	interval time.Duration // between looks at the files; 0: reloadInterval
}

// Gateway is a gateway that listens. Run has it serve.
type Gateway struct {
	log       *slog.Logger
	sometimes *sometimes
	client    *sdk.Client
	metrics   *metrics
	current   atomic.Pointer[generation]
	places    *places
	watcher   watcher
	interval  time.Duration // between looks at the files

	listener, admin      net.Listener
	server, probes       *http.Server
	life                 context.Context //nolint:containedctx // ends when requests under way are cut off
	end                  context.CancelFunc
	underWay             atomic.Int64
	configured, stopping atomic.Bool
	work                 sync.WaitGroup
}

// Start listens with a configuration that Load has read. It does not wait for the cluster: /readyz tells when it was
// reached. Run must be called, and ends what Start has begun.
func Start(c *Config, o Options) (*Gateway, error) {
	g := &Gateway{log: o.Logger, interval: cmp.Or(o.interval, reloadInterval)}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	g.sometimes = newSometimes(g.log)
	var err error
	g.client, err = sdk.New(c.Cluster.Addrs, append(append(c.Cluster.options(), sdk.WithLogger(g.log)), o.SDK...)...)
	if err != nil {
		return nil, fmt.Errorf("%s: cluster: %w", c.path, err)
	}
	g.metrics = newMetrics(g.client)
	g.places = newPlaces(&c.Bounds, g.metrics)
	g.life, g.end = context.WithCancel(context.Background())
	gen, err := compile(c, g, nil)
	if err == nil {
		g.apply(gen)
		g.watcher.note(c.files)
		err = g.listen(c)
	}
	if err != nil {
		g.end()
		return nil, errors.Join(err, g.client.Close())
	}
	return g, nil
}

func (g *Gateway) listen(c *Config) error {
	var lc net.ListenConfig
	raw, err := lc.Listen(g.life, "tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if g.admin, err = lc.Listen(g.life, "tcp", c.Admin); err != nil {
		return errors.Join(fmt.Errorf("admin: %w", err), raw.Close())
	}
	l := &listener{
		Listener: g.share(raw), handshake: c.Bounds.HeaderTimeout, opened: g.metrics.connections.Add,
		refused: func(s wire.Shape) { g.metrics.malformed.WithLabelValues(string(s)).Inc() },
	}
	if g.current.Load().tls != nil {
		l.tls = func() (*tls.Config, trust) {
			gen := g.current.Load()
			return gen.tls, gen.trust
		}
	}
	l.start(c.Bounds.MaxConnections)
	g.listener = l
	g.server = &http.Server{
		Handler: g, ReadHeaderTimeout: c.Bounds.HeaderTimeout, IdleTimeout: c.Bounds.IdleTimeout,
		MaxHeaderBytes: c.Bounds.MaxHeaderBytes, DisableGeneralOptionsHandler: true, ConnContext: withConn,
		ConnState: follow,
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: c.Bounds.MaxStreams, SendPingTimeout: c.Bounds.IdleTimeout},
		ErrorLog:  slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), // strangers decide how much there is to say
	}
	g.probes = &http.Server{
		Handler: g.probeHandler(), ReadTimeout: defaultHeaderTimeout, WriteTimeout: 2 * defaultHeaderTimeout,
		IdleTimeout: defaultKeepAlive, MaxHeaderBytes: defaultMaxHeaderBytes,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
	}
	return nil
}

// Addr is where callers connect, AdminAddr where the probes are.
func (g *Gateway) Addr() net.Addr { return g.listener.Addr() }

// AdminAddr is where /livez, /readyz and /metrics are.
func (g *Gateway) AdminAddr() net.Addr { return g.admin.Addr() }

// Run serves until ctx ends, and then stops in an orderly way: /readyz says no, requests are still taken for
// drain.delay, those under way end within drain.timeout or are cut off, and the SDK's client is closed. At each
// hangup, nil for none, the configuration is read again.
func (g *Gateway) Run(ctx context.Context, hangups <-chan os.Signal) error {
	failed := make(chan error, 2)
	serve := func(s *http.Server, l net.Listener) {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("%s: %w", l.Addr(), err)
		}
	}
	g.work.Go(func() { serve(g.server, g.listener) })
	g.work.Go(func() { serve(g.probes, g.admin) })
	g.work.Go(func() {
		if g.client.Ready(g.life) == nil {
			g.configured.Store(true)
		}
	})
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	g.work.Go(func() { g.watchFiles(watching, hangups) })
	g.log.Info("the gateway is listening", "addr", g.Addr().String(), "admin", g.AdminAddr().String())
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stopWatching()
	return errors.Join(err, g.drain(err == nil)) //nolint:contextcheck // ctx has ended: it is why this is called
}

// drain ends everything.
func (g *Gateway) drain(orderly bool) error {
	g.stopping.Store(true)
	limits := g.current.Load().config.Drain
	if orderly {
		g.log.Info("the gateway is stopping", "accepts_for", *limits.Delay, "under_way", g.underWay.Load())
		<-time.After(*limits.Delay)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Timeout)
	defer cancel()
	err := g.server.Shutdown(ctx)
	g.await(ctx) // Shutdown does not wait for connections that have changed their protocol
	if left := g.underWay.Load(); left > 0 || err != nil {
		g.log.Warn("requests are cut off", "under_way", left)
	}
	g.end()
	if err != nil {
		err = g.server.Close()
	}
	g.await(context.Background())
	for _, u := range g.current.Load().upstreams {
		u.transport.CloseIdleConnections()
	}
	err = errors.Join(err, g.listener.Close(), g.client.Close(), g.probes.Close())
	g.work.Wait()
	return err
}

// awaitInterval is how often it is looked whether requests are still under way.
const awaitInterval = 10 * time.Millisecond

// await waits until no request is under way.
func (g *Gateway) await(ctx context.Context) {
	tick := time.NewTicker(awaitInterval)
	defer tick.Stop()
	for g.underWay.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
