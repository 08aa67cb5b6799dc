package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// envoyCap is what the policy of these tests admits of a principal, per class.
const envoyCap = 5

// envoyDraft is a policy with a domain for three classes: one that is denied and one that is let through when nobody can
// decide, and one with a limit of 0.
func envoyDraft(version string) policy.Policy {
	class := func(mode policy.FailureMode) *policy.Class {
		return &policy.Class{
			Limits:       []policy.Limit{{Name: "hourly", Max: envoyCap, WindowNanos: int64(time.Hour)}},
			TimeoutNanos: int64(5 * time.Second), ReplayHorizonNanos: int64(time.Minute), OnUnavailable: mode,
		}
	}
	rule := func(name string) policy.EnvoyRule {
		return policy.EnvoyRule{
			Match: []policy.EnvoyEntry{{Key: name}}, Class: name, Principal: []string{name},
		}
	}
	shut := class(policy.FailAllow)
	shut.Limits[0].Max = 0
	return policy.Policy{
		Version: version,
		Default: policy.Class{Limits: []policy.Limit{{Name: "d", Max: 1, WindowNanos: int64(time.Hour)}}},
		Classes: map[string]*policy.Class{"strict": class(policy.FailDeny), "lenient": class(policy.FailAllow), "shut": shut},
		Envoy: map[string]*policy.EnvoyDomain{
			"edge": {RequestID: "request_id", Rules: []policy.EnvoyRule{rule("strict"), rule("lenient"), rule("shut")}},
		},
	}
}

// envoyAsk is a request about one principal.
func envoyAsk(class, principal, requestID string) *ratelimitv3.RateLimitRequest {
	entries := []*commonv3.RateLimitDescriptor_Entry{{Key: class, Value: principal}}
	if requestID != "" {
		entries = append(entries, &commonv3.RateLimitDescriptor_Entry{Key: "request_id", Value: requestID})
	}
	return &ratelimitv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{{Entries: entries}}}
}

// mustEnvoy is a client of a node, as Envoy is one.
func mustEnvoy(t *testing.T, n *running) ratelimitv3.RateLimitServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+n.cfg.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return ratelimitv3.NewRateLimitServiceClient(conn)
}

// principalsLeader is the node that leads a principal's partition.
func principalsLeader(t *testing.T, nodes []*running, principal string) (leader *running) {
	t.Helper()
	eventually(t, "somebody leads "+principal, func() bool {
		for _, n := range nodes {
			if (*backend)(n.Node).Leader(principal).Local {
				leader = n
				return true
			}
		}
		return false
	}, func() any { return nil })
	return leader
}

// Shows Envoy's protocol on a whole cluster: requests of one principal at all nodes at once, most of them led elsewhere,
// are let through exactly as often as its limit says; what can never fit, or has a limit of 0, is denied with all that is
// asked of its principal, and nothing is consumed; a request id is not counted twice, whichever node is asked; the
// usage is still there, and nobody lets more through, once the leader is gone; and without a majority a class that is
// denied gets an error, one that is let through is let through and counted.
func TestEnvoy(t *testing.T) {
	var nodes []*running
	for _, cfg := range mustConfigs(t, 3) {
		nodes = append(nodes, mustRun(t, cfg))
	}
	if _, _, err := nodes[0].makeCluster(t.Context(), 3, "test"); err != nil {
		t.Fatal(err)
	}
	mustPublishPolicy(t, nodes[0], 0, envoyDraft("v1"))
	eventually(t, "three voters each", func() bool { return settled(nodes[0], 3, 3) }, func() any { return standings(nodes[0]) })
	untilReady(t, nodes...)
	clients := map[*running]ratelimitv3.RateLimitServiceClient{}
	for _, n := range nodes {
		clients[n] = mustEnvoy(t, n)
	}
	ask := func(n *running, req *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return clients[n].ShouldRateLimit(ctx, req)
	}

	t.Run("exactly the limit", func(t *testing.T) {
		var through, over atomic.Int64
		var asking sync.WaitGroup
		for i := range 200 {
			asking.Go(func() {
				out, err := ask(nodes[i%len(nodes)], envoyAsk("strict", "crowd", ""))
				switch {
				case err != nil:
					t.Errorf("%v", err)
				case out.GetOverallCode() == ratelimitv3.RateLimitResponse_OK:
					through.Add(1)
				case out.GetOverallCode() == ratelimitv3.RateLimitResponse_OVER_LIMIT:
					over.Add(1)
				}
			})
		}
		asking.Wait()
		if through.Load() != envoyCap || over.Load() != 200-envoyCap {
			t.Errorf("%d let through and %d not, want %d and %d", through.Load(), over.Load(), envoyCap, 200-envoyCap)
		}
	})

	t.Run("one request id", func(t *testing.T) {
		for i := range 4 {
			for _, n := range nodes {
				out, err := ask(n, envoyAsk("strict", "again", "r-1"))
				if err != nil || out.GetStatuses()[0].GetLimitRemaining() != envoyCap-1 {
					t.Errorf("attempt %d at %s: %v %v", i, n.cfg.ID, out, err)
				}
			}
		}
	})

	t.Run("all or nothing", func(t *testing.T) {
		n := nodes[1]
		over := envoyAsk("lenient", "both", "")
		over.Descriptors = append(over.Descriptors, envoyAsk("strict", "both", "").Descriptors...)
		over.Descriptors[1].HitsAddend = wrapperspb.UInt64(envoyCap + 1)
		shut := envoyAsk("lenient", "both", "")
		shut.Descriptors = append(shut.Descriptors, envoyAsk("shut", "both", "").Descriptors...)
		for _, req := range []*ratelimitv3.RateLimitRequest{over, shut, envoyAsk("shut", "both", "")} {
			out, err := ask(n, req)
			if err != nil || out.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT || out.GetStatuses()[0].GetDurationUntilReset() != nil {
				t.Errorf("%v: %v %v", req, out, err)
			}
		}
		look := envoyAsk("lenient", "both", "")
		look.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
		for range 2 {
			out, err := ask(n, look)
			if err != nil || out.GetOverallCode() != ratelimitv3.RateLimitResponse_OK || out.GetStatuses()[0].GetLimitRemaining() != envoyCap {
				t.Errorf("something was consumed: %v %v", out, err)
			}
		}
	})

	leader := principalsLeader(t, nodes, "crowd")
	var left []*running
	for _, n := range nodes {
		if n != leader {
			left = append(left, n)
		}
	}
	mustEnd(t, leader)
	t.Run("without the leader", func(t *testing.T) {
		for _, n := range left {
			eventually(t, n.cfg.ID+" denies again", func() bool {
				out, err := ask(n, envoyAsk("strict", "crowd", ""))
				if out.GetOverallCode() == ratelimitv3.RateLimitResponse_OK {
					t.Fatalf("more is let through: %v", out)
				}
				return err == nil
			}, func() any { return n.ready() })
		}
	})

	mustEnd(t, left[1])
	last := left[0]
	t.Run("without a majority", func(t *testing.T) {
		out, err := ask(last, envoyAsk("strict", "crowd", ""))
		if e := errtable.FromStatus(err); out != nil || e == nil || e.Reason.IsDecision() {
			t.Errorf("nobody can decide, and the answer is %v, %v", out, err)
		}
		out, err = ask(last, envoyAsk("lenient", "crowd", ""))
		if err != nil || out.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
			t.Errorf("%v, %v", out, err)
		}
		if got := bypasses(t, last.server); got != 1 {
			t.Errorf("%v bypasses counted, want 1", got)
		}
	})
	mustEnd(t, last)
}

// bypasses are all that a node has counted.
func bypasses(t *testing.T, s *rpc.Server) (sum float64) {
	t.Helper()
	families, err := s.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "quorate_envoy_bypasses_total" {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// Shows which policy a node reads descriptors by: none before there is one; none that it knows to be replaced, but the
// newer one as soon as it is here; and none once it has not heard for the grace which one is in force.
func TestPolicyInForce(t *testing.T) {
	n := mustRun(t, mustConfigs(t, 1)[0])
	b := (*backend)(n.Node)
	want := func(what string, reason quotaerr.Reason, version string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		p, err := b.Policy(ctx)
		var e *quotaerr.Error
		switch {
		case reason != "" && (p != nil || !errors.As(err, &e) || e.Reason != reason):
			t.Errorf("%s: %v, %v, want %s", what, p, err, reason)
		case reason == "" && (err != nil || p.Version != version):
			t.Errorf("%s: %v, %v, want %s", what, p, err, version)
		}
	}
	want("before the cluster", quotaerr.NoQuorum, "")
	if _, graced := n.lease.graced(n.source.Read()); graced {
		t.Error("a node that has heard of nothing is in a grace")
	}
	if _, _, err := n.makeCluster(t.Context(), 1, "test"); err != nil {
		t.Fatal(err)
	}
	want("before a policy", quotaerr.PolicyBehind, "")
	mustPublishPolicy(t, n, 0, envoyDraft("v1"))
	untilReady(t, n)
	want("with one", "", "v1")

	// It hears of a revision that is not here.
	confirmed := n.control().State()
	at := n.source.Read()
	granted, err := clock.GrantLease(at, int64(time.Minute), clock.DefaultMaxDriftPPM)
	if err != nil {
		t.Fatal(err)
	}
	n.lease.renew(granted, confirmed.InForce().Number+1, confirmed.Version+1000) // no answer from now on is newer
	want("before the next is here", quotaerr.PolicyBehind, "")
	next, err := policy.New(envoyDraft("v2"))
	if err != nil {
		t.Fatal(err)
	}
	waiting := make(chan string, 1)
	go func() {
		p, err := n.policyFrom(t.Context(), confirmed.InForce().Number+1)
		waiting <- fmt.Sprint(p == next, err)
	}()
	n.changeView(func(v *view) bool {
		v.inForce, v.Policy = next, &quoratev1.PolicySettings{Revision: uint64(confirmed.InForce().Number + 1)}
		return true
	})
	if got := <-waiting; got != "true <nil>" {
		t.Errorf("who waited got the next: %s", got)
	}
	want("with the next", "", "v2")

	_, graced := n.lease.graced(clock.Reading{Mono: at.Mono, Raw: at.Raw, Boot: at.Boot})
	late := clock.Reading{Mono: at.Mono + int64(configGrace), Raw: at.Raw + int64(configGrace), Boot: at.Boot + int64(configGrace)}
	if _, still := n.lease.graced(late); !graced || still {
		t.Errorf("in the grace %t, after it %t", graced, still)
	}
	mustEnd(t, n)
}
