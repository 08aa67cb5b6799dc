package envoy

import (
	"slices"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
)

const fuzzPolicy = `
version: p1
default: {limits: [{name: m, limit: 9, window: 60s}]}
classes:
  api: {limits: [{name: h, limit: 4, window: 1h}, {name: s, limit: 3, window: 1s}]}
  lenient: {limits: [{name: m, limit: 1, window: 60s}], on_unavailable: allow}
  shut: {limits: [{name: m, limit: 0, window: 60s}]}
  closed: {limits: [{name: m, limit: 5, window: 60s}], disabled: true, on_unavailable: allow}
groups:
  account: {classes: [api, lenient], limits: [{name: account, limit: 4, window: 1d}]}
tiers:
  pro: {api: {limits: [{name: h, limit: 40, window: 1h}]}}
envoy:
  open:
    unmatched: allow
    request_id: r
    rules:
      - {match: [{key: a}], class: api, principal: [a], name: a}
      - {match: [{key: a}, {key: t}], class: api, principal: [a], tier: t, name: at, replaces: [l]}
      - {match: [{key: l}], class: lenient, principal: [l], name: l, replaces: [at, c]}
      - {match: [{key: l}, {key: a}], class: default, principal: [a, l], replaces: [a]}
      - {match: [{key: c, value: x}], class: closed, principal: [c], name: c}
      - {match: [{key: c, prefix: y}], unlimited: true, replaces: [a]}
      - {match: [{key: s}], class: shut, shared: all}
      - {match: [{key: d}], class: default, shared: all}
  shut:
    rules:
      - {match: [{key: a}], class: api, principal: [a]}
      - {match: [{key: c}], unlimited: true}
`

// fuzzSeeds are requests of every kind.
func fuzzSeeds(f *testing.F) {
	f.Helper()
	seeds := []*ratelimitv3.RateLimitRequest{
		{}, ask("open"), ask("nowhere", []string{"a", "1"}), ask("open", []string{"a", "1"}), ask("open", []string{"a", ""}),
		ask("open", []string{"a", "1", "r", "id"}, []string{"a", "1", "t", "pro"}, []string{"l", "1"}),
		ask("open", []string{"l", "1"}, []string{"a", "1"}, []string{"l", "2", "a", "1"}, []string{"q", ""}),
		ask("open", []string{"c", "x"}), ask("open", []string{"c", "y1"}, []string{"a", "2"}), ask("open", []string{"s", ""}),
		ask("open", []string{"d", ""}, []string{"d", ""}, []string{"d", ""}, []string{"d", ""}, []string{"d", ""},
			[]string{"d", ""}, []string{"d", ""}, []string{"d", ""}, []string{"d", ""}, []string{"d", ""}),
		ask("shut", []string{"a", "1"}, []string{"c", "1"}), ask("shut", []string{"b", "1"}, []string{"a", "1"}),
	}
	for i, hits := range []uint64{0, 1, 3, 1<<32 - 1, 1 << 53, 1<<53 + 1, 1<<64 - 1} {
		req := ask("open", []string{"a", "1"}, []string{"l", "1"})
		req.HitsAddend = uint32(hits)
		req.Descriptors[i%2].HitsAddend = wrapperspb.UInt64(hits)
		req.Descriptors[0].IsNegativeHits = i == 2
		seeds = append(seeds, req)
	}
	for i, s := range seeds {
		b, err := proto.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		for _, state := range []byte{0, 1, 2, 4, 8, byte(i)} {
			f.Add(b, state)
		}
	}
	f.Add([]byte{0xff, 0x00, 0x12}, byte(0))
}

// Shows that whatever bytes come as a request, there is no panic, and the answer is OK only if each descriptor was given
// room by the desk, is let through by the policy, or was counted as a bypass; that statuses are complete and agree with
// the whole; and that a request which is refused or denied by the policy asks nothing.
func FuzzRequest(f *testing.F) {
	fuzzSeeds(f)
	p := mustPolicy(f, fuzzPolicy)
	f.Fuzz(func(t *testing.T, b []byte, state byte) {
		req := &ratelimitv3.RateLimitRequest{}
		if proto.Unmarshal(b, req) != nil {
			return // refused before the service
		}
		s, desk, registry := mustService(t, fuzzPolicy)
		for bit, class := range []string{"api", "lenient", "closed", "default"} {
			if state&(1<<bit) != 0 {
				desk.failing[class] = quotaerr.New(quotaerr.NoQuorum, "")
			}
		}
		if state&16 != 0 {
			desk.barred["lenient"] = true
		}
		for range 3 { // the second and third find usage, and the first's records
			before := counts(t, registry)["bypasses lenient"]
			clear(desk.granted)
			desk.asked = nil
			out, err := s.ShouldRateLimit(t.Context(), req)
			if r := reasonOf(t, err); r == quotaerr.InvalidArgument && len(desk.asked) != 0 || r == quotaerr.Internal {
				t.Fatalf("%v after %v", err, desk.asked)
			}
			if err != nil {
				if out != nil {
					t.Fatalf("%v with %v", out, err)
				}
				continue
			}
			wantSound(t, req, out)
			if out.GetOverallCode() == codeOK {
				wantJustified(t, p, req, desk, int(counts(t, registry)["bypasses lenient"]-before))
			}
		}
	})
}

// wantSound checks what each answer has to be.
func wantSound(t *testing.T, req *ratelimitv3.RateLimitRequest, out *ratelimitv3.RateLimitResponse) {
	t.Helper()
	if len(out.GetStatuses()) != len(req.GetDescriptors()) {
		t.Fatalf("%d statuses for %d descriptors", len(out.GetStatuses()), len(req.GetDescriptors()))
	}
	want := codeOK
	for _, s := range out.GetStatuses() {
		switch s.GetCode() {
		case codeOK:
		case codeOver:
			want = codeOver
		default:
			t.Fatalf("a status is %v", s)
		}
	}
	if out.GetOverallCode() != want {
		t.Fatalf("%v", out)
	}
	if err := out.ValidateAll(); err != nil { // as Envoy's own rules have it
		t.Fatalf("%v: %v", out, err)
	}
	wantTold(t, out)
}

// wantTold checks that what is over the limit says of which limit it comes, or why it comes of none, and in the headers
// as in the metadata; and that what is not over the limit says nothing of this.
func wantTold(t *testing.T, out *ratelimitv3.RateLimitResponse) {
	t.Helper()
	reason, header := out.GetDynamicMetadata().GetFields()[reasonField].GetStringValue(), ""
	for _, h := range out.GetResponseHeadersToAdd() {
		if h.GetKey() == reasonHeader {
			header = h.GetValue()
		}
	}
	if reason != header {
		t.Fatalf("the metadata says %q, the header %q", reason, header)
	}
	limits := 0
	for _, s := range out.GetStatuses() {
		if s.GetCode() == codeOver && s.GetCurrentLimit() != nil {
			limits++
			if s.GetCurrentLimit().GetName() == "" {
				t.Fatalf("%v names no limit", s)
			}
		}
	}
	over := out.GetOverallCode() == codeOver
	needsLimit := reason == "" || reason == string(quotaerr.Blocked) || reason == string(quotaerr.CostExceedsLimit)
	if !over && reason != "" || over && needsLimit != (limits > 0) {
		t.Fatalf("reason %q and %d limits: %v", reason, limits, out)
	}
	if at := int(out.GetDynamicMetadata().GetFields()[descriptorField].GetNumberValue()); reason != "" &&
		out.GetStatuses()[at].GetCode() != codeOver {
		t.Fatalf("descriptor %d is said to be denied: %v", at, out)
	}
}

// wantJustified checks that each descriptor of an OK has a reason to be let through.
func wantJustified(
	t *testing.T, p *policy.Policy, req *ratelimitv3.RateLimitRequest, desk *fakeDesk, bypasses int,
) {
	t.Helper()
	domain := p.Envoy[req.GetDomain()]
	rules := make([]*policy.EnvoyRule, len(req.GetDescriptors()))
	values := make([][]string, len(rules))
	for i, d := range req.GetDescriptors() {
		var keys []string
		for _, e := range d.GetEntries() {
			if domain.RequestID == "" || e.GetKey() != domain.RequestID {
				keys, values[i] = append(keys, e.GetKey()), append(values[i], e.GetValue())
			}
		}
		rules[i] = domain.Match(keys, values[i])
	}
	undecided := 0
	for i, d := range req.GetDescriptors() {
		r := rules[i]
		switch {
		case r == nil && domain.PassUnmatched, r != nil && (r.Unlimited || leftOut(rules, r)):
			continue
		case r == nil:
			t.Fatalf("descriptor %d has no rule", i)
		}
		cost := int64(max(1, req.GetHitsAddend()))
		if d.GetHitsAddend() != nil {
			cost = int64(d.GetHitsAddend().GetValue())
		}
		principal, tier := r.Identify(values[i])
		of := subjectText(principal, r.Class, tier, cost)
		switch {
		case desk.granted[of] == 0 && r.Class == "lenient" && desk.failing["lenient"] != nil:
			undecided++
		case desk.granted[of] == 0:
			t.Fatalf("descriptor %d is let through: nobody has granted %s of %v", i, of, desk.granted)
		case cost > 0:
			desk.granted[of]--
		}
	}
	if undecided != bypasses {
		t.Fatalf("%d bypasses counted, want %d", bypasses, undecided)
	}
}

// leftOut reports whether a rule of a request's is replaced by one that it does not replace itself, by whatever detour.
func leftOut(rules []*policy.EnvoyRule, r *policy.EnvoyRule) bool {
	replaces := func(a, b *policy.EnvoyRule) bool { return a != b && slices.Contains(a.Replaces, b.Name) }
	below := map[*policy.EnvoyRule]bool{r: true} // what r replaces
	for grown := true; grown; {
		grown = false
		for _, to := range rules {
			for from := range below {
				if to != nil && !below[to] && replaces(from, to) {
					below[to], grown = true, true
				}
			}
		}
	}
	return slices.ContainsFunc(rules, func(by *policy.EnvoyRule) bool { return by != nil && !below[by] && replaces(by, r) })
}
