package envoy

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/policy"
)

const exampleDir = "../../docs/envoy/"

// example is the documentation's configuration of Envoy, read by Envoy's own definitions.
type example struct {
	manager *hcmv3.HttpConnectionManager
	filter  *filterv3.RateLimit
	tls     *tlsv3.UpstreamTlsContext
}

func mustExample(t *testing.T) example {
	t.Helper()
	b, err := bootstrapOf(mustRead(t, exampleDir+"envoy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var e example
	filters := b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()
	e.manager = &hcmv3.HttpConnectionManager{}
	mustUnpack(t, filters[0].GetTypedConfig(), e.manager)
	for _, f := range e.manager.GetHttpFilters() {
		if f.GetName() == "envoy.filters.http.ratelimit" {
			e.filter = &filterv3.RateLimit{}
			mustUnpack(t, f.GetTypedConfig(), e.filter)
		}
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == e.filter.GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName() {
			e.tls = &tlsv3.UpstreamTlsContext{}
			mustUnpack(t, c.GetTransportSocket().GetTypedConfig(), e.tls)
		}
	}
	if e.filter == nil || e.tls == nil {
		t.Fatal("the example has no filter, or no cluster for it with TLS")
	}
	return e
}

func mustUnpack(t *testing.T, from *anypb.Any, to proto.Message) {
	t.Helper()
	if err := from.UnmarshalTo(to); err != nil {
		t.Fatal(err)
	}
}

func mustRead(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func mustExamplePolicy(t *testing.T) *policy.Policy {
	t.Helper()
	return mustPolicy(t, mustRead(t, exampleDir+"policy.yaml"))
}

// described are the descriptors that Envoy makes of a route's actions for a request from an address with headers: one
// for each rate limit, but for those that lack a header.
func described(t *testing.T, limits []*routev3.RateLimit, address string, headers map[string]string) (
	out []*commonv3.RateLimitDescriptor,
) {
	t.Helper()
	for _, l := range limits {
		var entries []string
		complete := true
		for _, a := range l.GetActions() {
			switch {
			case a.GetGenericKey() != nil:
				entries = append(entries, "generic_key", a.GetGenericKey().GetDescriptorValue())
			case a.GetMaskedRemoteAddress() != nil:
				entries = append(entries, "masked_remote_address", address)
			case a.GetRequestHeaders() != nil:
				v, there := headers[a.GetRequestHeaders().GetHeaderName()]
				complete = complete && there
				entries = append(entries, a.GetRequestHeaders().GetDescriptorKey(), v)
			default:
				t.Fatalf("an action that this test does not know: %v", a)
			}
		}
		if complete {
			out = append(out, descriptorWith(entries...))
		}
	}
	return out
}

// Shows that the documentation's configuration of Envoy is one by Envoy's own definitions, that what could not be decided
// is denied by it, in time, over TLS 1.3 with a certificate, and that no request id of a public caller passes.
func TestExampleConfiguration(t *testing.T) {
	e, p := mustExample(t), mustExamplePolicy(t)
	if !e.filter.GetFailureModeDeny() || p.Envoy[e.filter.GetDomain()] == nil {
		t.Errorf("failure_mode_deny %t, domain %q", e.filter.GetFailureModeDeny(), e.filter.GetDomain())
	}
	m := e.manager
	if !m.GetUseRemoteAddress().GetValue() || m.GetPreserveExternalRequestId() || !m.GetGenerateRequestId().GetValue() ||
		m.GetInternalAddressConfig() == nil || len(m.GetInternalAddressConfig().GetCidrRanges()) != 0 {
		t.Error("a public caller's request id may pass")
	}
	c := e.tls.GetCommonTlsContext()
	if c.GetTlsParams().GetTlsMaximumProtocolVersion() != tlsv3.TlsParameters_TLSv1_3 || len(c.GetTlsCertificates()) != 1 ||
		len(c.GetValidationContext().GetMatchTypedSubjectAltNames()) != 1 {
		t.Errorf("%v", c)
	}
	for _, r := range m.GetRouteConfig().GetVirtualHosts()[0].GetRoutes() {
		var sum time.Duration
		for _, rule := range rulesOf(t, p, e, r.GetRoute().GetRateLimits()) {
			if rule.Class != "" {
				_, class := p.ClassOf(rule.Class)
				sum += time.Duration(class.TimeoutNanos)
			}
		}
		if timeout := e.filter.GetTimeout().AsDuration(); timeout <= sum {
			t.Errorf("route %v: the filter waits for %s, its classes take %s", r.GetMatch(), timeout, sum)
		}
	}
}

// rulesOf are the rules of a route's descriptors.
func rulesOf(t *testing.T, p *policy.Policy, e example, limits []*routev3.RateLimit) (out []*policy.EnvoyRule) {
	t.Helper()
	domain := p.Envoy[e.filter.GetDomain()]
	headers := map[string]string{"x-request-id": "r", "x-user": "u", "x-plan": "pro"}
	req := &ratelimitv3.RateLimitRequest{Descriptors: described(t, limits, "10.0.0.1/32", headers)}
	ds, _, err := descriptorsOf(req, domain.RequestID)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range ds {
		rule := domain.Match(d.keys, d.values)
		if rule == nil {
			t.Fatalf("%v has no rule", d)
		}
		out = append(out, rule)
	}
	return out
}

// Shows that the documentation's two files are of one piece: what Envoy asks on each route is answered by the class that
// is meant, with the request id as the decision's name, and its limits hold.
func TestExampleAnswers(t *testing.T) {
	e := mustExample(t)
	for _, c := range []struct {
		path    string
		headers map[string]string
		asked   []string
	}{
		{"/healthz", nil, nil},
		{"/login", nil, []string{`check "10.0.0.1/32": 1 login`}},
		{"/", nil, []string{`check "10.0.0.1/32": 1 address`}},
		{"/", map[string]string{"x-user": "ann", "x-plan": "pro"}, []string{`check "10.0.0.1/32": 1 address`, `check "ann": 1 api pro`}},
	} {
		desk := newDesk(mustExamplePolicy(t))
		s := New(desk, prometheus.NewRegistry())
		var limits []*routev3.RateLimit
		for _, r := range e.manager.GetRouteConfig().GetVirtualHosts()[0].GetRoutes() {
			if r.GetMatch().GetPath() == c.path || r.GetMatch().GetPrefix() == c.path {
				limits = r.GetRoute().GetRateLimits()
			}
		}
		headers := map[string]string{"x-request-id": "r-1"}
		for k, v := range c.headers {
			headers[k] = v
		}
		req := &ratelimitv3.RateLimitRequest{
			Domain: e.filter.GetDomain(), Descriptors: described(t, limits, "10.0.0.1/32", headers),
		}
		out, err := s.ShouldRateLimit(t.Context(), req)
		if err != nil || out.GetOverallCode() != codeOK || !slices.Equal(desk.asked, c.asked) {
			t.Errorf("%s: %v, %v, asked %q", c.path, out, err, desk.asked)
		}
		for _, id := range desk.ids {
			if !strings.HasPrefix(id, "r-1/") {
				t.Errorf("%s: a decision is named %q", c.path, id)
			}
		}
		if c.path == "/login" {
			through := 1
			for i := range 30 {
				headers["x-request-id"] = strings.Repeat("x", i+1)
				req.Descriptors = described(t, limits, "10.0.0.1/32", headers)
				if out, err := s.ShouldRateLimit(t.Context(), req); err == nil && out.GetOverallCode() == codeOK {
					through++
				}
			}
			if through != 10 {
				t.Errorf("%d logins are let through", through)
			}
		}
	}
}
