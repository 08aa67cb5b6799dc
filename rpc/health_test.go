package rpc

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that gRPC's health service says what /readyz says, and changes with it.
func TestHealthFollowsReadiness(t *testing.T) {
	var ready atomic.Bool
	n := mustNode(t, "n1", allowing(), func(c *Config) {
		c.Ready = func() []Condition { return []Condition{{Name: "partition", Ready: ready.Load(), Detail: "x"}} }
	})
	health := healthv1.NewHealthClient(n.conn)
	watch, err := health.Watch(within(t, 10*time.Second), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{
		healthv1.HealthCheckResponse_NOT_SERVING, healthv1.HealthCheckResponse_SERVING,
		healthv1.HealthCheckResponse_NOT_SERVING,
	} {
		if got, err := watch.Recv(); err != nil || got.GetStatus() != want {
			t.Fatalf("health is %v %v, want %v", got, err, want)
		}
		ready.Store(!ready.Load())
	}
}

// Shows that a node without a replica refuses checks as no_quorum with what it waits for, and says so in
// the status.
func TestWaitingNode(t *testing.T) {
	b := allowing()
	b.waiting, b.leader = "waiting for an answer of n2", func() Leadership { return Leadership{} }
	n := mustNode(t, "n1", b)
	b.members = []Member{{ID: "n1", GRPC: n.grpcAddr}}
	_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 2*time.Second), aCheck())
	if e := errtable.FromStatus(err); e == nil || e.Reason != quotaerr.NoQuorum || !strings.Contains(e.Message, b.waiting) {
		t.Errorf("check: %v", err)
	}
	s, err := quoratev1.NewAdminClient(n.conn).ClusterStatus(within(t, 10*time.Second), &quoratev1.ClusterStatusRequest{})
	if err != nil || s.GetNodes()[0].GetWaiting() != b.waiting {
		t.Errorf("status: %v %v", s, err)
	}
}
