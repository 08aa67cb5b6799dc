package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/rpc/envoy"
)

const (
	maxConnections       = 4096
	maxConcurrentStreams = 1024
	connectionTimeout    = 10 * time.Second
	// enforcedMinTime is half of what well-behaved clients ping at, so that jitter is no offence.
	enforcedMinTime = peerKeepaliveTime / 2
)

// Config is what a Server needs. All fields without a default are required.
type Config struct {
	Node      string // this node's id
	ClusterID string
	Version   string // the program's version, for status
	Backend   Backend
	// GRPC and HTTP are the listeners. The server closes them. Without TLS they must be loopback; see
	// ListenPlaintext.
	GRPC, HTTP net.Listener
	// TLS has this node's certificate. nil: plaintext, on loopback only.
	TLS *identity.Source
	// Authenticate tells who calls. Default: Proven with TLS, Plaintext without.
	Authenticate Authenticator
	// Logger gets defects at level error and refusals at debug. Default: slog.Default.
	Logger *slog.Logger
	// Ready lists what the node needs to be ready. Default: nothing.
	Ready func() []Condition
	// MaxInFlight bounds unanswered checks and peeks; beyond it callers get overloaded. Default:
	// DefaultMaxInFlight.
	MaxInFlight int
	// LegacyHeaders adds X-RateLimit-* to HTTP answers.
	LegacyHeaders bool
}

// Validate reports all that is missing or wrong.
func (c *Config) Validate() error {
	var problems []error
	need := func(ok bool, what string) {
		if !ok {
			problems = append(problems, errors.New("rpc: "+what))
		}
	}
	need(c.Node != "", "Node is empty: set this node's id")
	need(c.ClusterID != "", "ClusterID is empty: set the cluster's id")
	need(c.Backend != nil, "Backend is missing")
	need(c.MaxInFlight >= 0, "MaxInFlight is negative")
	for _, l := range []struct {
		name     string
		listener net.Listener
	}{{"GRPC", c.GRPC}, {"HTTP", c.HTTP}} {
		if l.listener == nil {
			problems = append(problems, fmt.Errorf("rpc: the %s listener is missing", l.name))
		} else if err := mustBeLoopback(l.listener); err != nil && c.TLS == nil {
			problems = append(problems, fmt.Errorf("rpc: %s: %w", l.name, err))
		}
	}
	return errors.Join(problems...)
}

func (c *Config) setDefaults() {
	if c.Authenticate == nil {
		c.Authenticate = Plaintext
		if c.TLS != nil {
			c.Authenticate = Proven
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Ready == nil {
		c.Ready = func() []Condition { return nil }
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
}

// Server serves gRPC and HTTP for one node.
type Server struct {
	config   Config
	desk     *desk
	grpc     *grpc.Server
	http     *http.Server
	doors    struct{ grpc, http net.Listener }
	health   *health.Server
	stopping atomic.Bool
	ended    sync.Once
}

// New makes a server. It owns the listeners from then on, unless it returns an error.
func New(config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.setDefaults()
	m := newMetrics()
	s := &Server{config: config, health: health.NewServer(), desk: newDesk(&config, m)}
	s.grpc = s.newGRPC(m)
	api := &httpAPI{desk: s.desk, log: config.Logger, who: config.Authenticate, ready: s.conditions,
		legacyHeaders: config.LegacyHeaders}
	s.http = &http.Server{
		Handler: api.handler(), ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(config.Logger.Handler(), slog.LevelDebug), ConnContext: withConn,
	}
	s.openDoors(m)
	return s, nil
}

// openDoors puts the bounds, and TLS, before the listeners.
func (s *Server) openDoors(m *metrics) {
	if s.config.TLS == nil {
		s.doors.grpc = netutil.LimitListener(s.config.GRPC, maxConnections)
		s.doors.http = netutil.LimitListener(s.config.HTTP, maxConnections)
		return
	}
	g := newDoor(s.config.GRPC, "grpc", s.config.TLS, m, s.config.Logger)
	g.protocols = []string{"h2"}
	h := newDoor(s.config.HTTP, "http", s.config.TLS, m, s.config.Logger)
	h.protocols = []string{"http/1.1"}
	// Who has no certificate may use a token at the one, and the probes at the other.
	g.optional, h.optional = true, true
	s.doors.grpc, s.doors.http = g, h
}

func (s *Server) newGRPC(m *metrics) *grpc.Server {
	guard := &guard{who: s.config.Authenticate, backend: s.config.Backend, attempts: s.desk.attempts, metrics: m,
		log: s.config.Logger}
	options := append(interceptors(m, s.config.Logger, guard),
		grpc.InTapHandle(guard.tap),
		grpc.UnknownServiceHandler(refuseUnknown),
		grpc.ForceServerCodecV2(newStrictCodec()),
		grpc.MaxRecvMsgSize(transportMessageBytes),
		grpc.MaxSendMsgSize(maxMessageBytes),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: peerKeepaliveTime, Timeout: peerKeepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: enforcedMinTime, PermitWithoutStream: true,
		}),
	)
	if s.config.TLS != nil {
		options = append(options, grpc.Creds(doorCredentials{}))
	}
	g := grpc.NewServer(options...)
	g.RegisterService(strictly(quoratev1.Quota_ServiceDesc), &quotaService{desk: s.desk, log: s.config.Logger})
	operators := &adminService{desk: s.desk, version: s.config.Version}
	g.RegisterService(strictly(operators.describe()), operators)
	g.RegisterService(strictly(quoratev1.Peer_ServiceDesc),
		&peerService{desk: s.desk, version: s.config.Version})
	g.RegisterService(strictly(ratelimitv3.RateLimitService_ServiceDesc),
		envoy.New(&envoyDesk{s.desk}, m.registry))
	healthv1.RegisterHealthServer(g, s.health)
	return g
}

func (s *Server) conditions() []Condition {
	own := Condition{Name: "serving", Ready: true}
	if s.stopping.Load() {
		own = Condition{Name: "serving", Detail: "the node is stopping"}
	}
	return append([]Condition{own}, s.config.Ready()...)
}

// Registry is where the node's other parts register their metrics for /metrics.
func (s *Server) Registry() *prometheus.Registry { return s.desk.metrics.registry }

// healthInterval is how often gRPC's health service looks whether the node is ready.
const healthInterval = 250 * time.Millisecond

// tellHealth keeps gRPC's health service at what /readyz says, until done is closed.
func (s *Server) tellHealth(done <-chan struct{}) {
	tick := time.NewTicker(healthInterval)
	defer tick.Stop()
	for {
		s.setHealth()
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

func (s *Server) setHealth() {
	status := healthv1.HealthCheckResponse_SERVING
	for _, c := range s.conditions() {
		if !c.Ready {
			status = healthv1.HealthCheckResponse_NOT_SERVING
		}
	}
	s.health.SetServingStatus("", status)
}

// Serve serves until Shutdown, then returns nil; or until a listener fails, and returns why.
func (s *Server) Serve() error {
	done := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() { s.tellHealth(done) })
	defer telling.Wait()
	defer close(done)
	s.setHealth()
	failed := make(chan error, 2)
	go func() { failed <- s.grpc.Serve(s.doors.grpc) }()
	go func() { failed <- s.http.Serve(s.doors.http) }()
	first := <-failed
	if !s.stopping.Load() {
		s.stop()
	}
	second := <-failed
	return errors.Join(unlessClosed(first), unlessClosed(second))
}

func unlessClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return err
}

// Shutdown stops being ready, lets what is being served end until ctx does, then breaks the rest off.
func (s *Server) Shutdown(ctx context.Context) {
	s.stopping.Store(true)
	s.end()
	s.health.Shutdown()
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.grpc.GracefulStop()
	}()
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
	}
	select {
	case <-drained:
	case <-ctx.Done():
	}
	s.stop()
	<-drained
}

// end has the streams end that would not by themselves.
func (s *Server) end() { s.ended.Do(func() { close(s.desk.ending) }) }

// stop breaks off what is still being served.
func (s *Server) stop() {
	s.end()
	s.grpc.Stop()
	_ = s.http.Close() // only ever errs for listeners that are closed already
	// Neither server knows its listener before Serve, so they are closed here as well.
	_ = s.doors.grpc.Close()
	_ = s.doors.http.Close()
	s.desk.peers.close()
}
