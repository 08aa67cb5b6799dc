package rpc

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func cost(n int64) *int64 { return &n }

// malformed are requests that break one rule of the contract each.
var malformed = map[string]func(*quoratev1.CheckRequest){
	"no principal":       func(r *quoratev1.CheckRequest) { r.Principal = "" },
	"long principal":     func(r *quoratev1.CheckRequest) { r.Principal = strings.Repeat("p", 513) },
	"NUL in principal":   func(r *quoratev1.CheckRequest) { r.Principal = "a\x00b" },
	"no class":           func(r *quoratev1.CheckRequest) { r.ApiClass = "" },
	"long class":         func(r *quoratev1.CheckRequest) { r.ApiClass = strings.Repeat("c", 129) },
	"NUL in class":       func(r *quoratev1.CheckRequest) { r.ApiClass = "\x00" },
	"no decision id":     func(r *quoratev1.CheckRequest) { r.DecisionId = "" },
	"long decision id":   func(r *quoratev1.CheckRequest) { r.DecisionId = strings.Repeat("d", 129) },
	"NUL in decision id": func(r *quoratev1.CheckRequest) { r.DecisionId = "d\x00" },
	"long tier":          func(r *quoratev1.CheckRequest) { r.Tier = strings.Repeat("t", 65) },
	"NUL in tier":        func(r *quoratev1.CheckRequest) { r.Tier = "\x00" },
	"cost 0":             func(r *quoratev1.CheckRequest) { r.Cost = cost(0) },
	"negative cost":      func(r *quoratev1.CheckRequest) { r.Cost = cost(-1) },
	"smallest cost":      func(r *quoratev1.CheckRequest) { r.Cost = cost(-1 << 63) },
	"cost above 2^53":    func(r *quoratev1.CheckRequest) { r.Cost = cost(1<<53 + 1) },
	"largest cost":       func(r *quoratev1.CheckRequest) { r.Cost = cost(1<<63 - 1) },
	"empty further class": func(r *quoratev1.CheckRequest) {
		r.Also = []*quoratev1.Charge{{}}
	},
	"further cost 0": func(r *quoratev1.CheckRequest) {
		r.Also = []*quoratev1.Charge{{ApiClass: "x", Cost: cost(0)}}
	},
	"8 further charges": func(r *quoratev1.CheckRequest) {
		for range 8 {
			r.Also = append(r.Also, &quoratev1.Charge{ApiClass: "x"})
		}
	},
}

// Shows that each rule about a request's fields holds over gRPC, HTTP and between nodes, with an
// explained invalid_argument, and that nothing malformed reaches the backend.
func TestMalformedFields(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	for name, breakIt := range malformed {
		req := aCheck()
		breakIt(req)
		_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), req)
		mustBeInvalid(t, name+" over gRPC", err)

		forwarded := proto.Clone(req).(*quoratev1.CheckRequest)
		forwarded.RouteEpoch = 7
		_, err = quoratev1.NewPeerClient(n.conn).ForwardCheck(within(t, 5*time.Second),
			&quoratev1.ForwardCheckRequest{ClusterId: testCluster, Gateway: "g", Check: forwarded})
		mustBeInvalid(t, name+" between nodes", err)

		if r := n.mustPost(t, mustJSON(t, req)); r.status != 400 ||
			!strings.Contains(r.body, `"reason":"invalid_argument"`) {
			t.Errorf("%s over HTTP: %d %s", name, r.status, r.body)
		}
	}
	if seen := backend.seen(); len(seen) != 0 {
		t.Errorf("%d malformed checks reached the backend: %+v", len(seen), seen[0])
	}
}

func mustBeInvalid(t *testing.T, what string, err error) {
	t.Helper()
	e := errtable.FromStatus(err)
	if status.Code(err) != codes.InvalidArgument || e.Reason != quotaerr.InvalidArgument || e.Message == "" ||
		e.Cause != nil { // a cause is kept when the status has no ErrorInfo
		t.Errorf("%s: %v", what, err)
	}
}

func mustJSON(t *testing.T, req *quoratev1.CheckRequest) string {
	t.Helper()
	body := map[string]any{"principal": req.GetPrincipal(), "api_class": req.GetApiClass(),
		"decision_id": req.GetDecisionId(), "tier": req.GetTier()}
	if req.Cost != nil {
		body["cost"] = req.GetCost()
	}
	var also []map[string]any
	for _, a := range req.GetAlso() {
		c := map[string]any{"api_class": a.GetApiClass()}
		if a.Cost != nil {
			c["cost"] = a.GetCost()
		}
		also = append(also, c)
	}
	if also != nil {
		body["also"] = also
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Shows that names at their bounds are accepted, so that the rows above refuse no more than they say.
func TestLargestFieldsPass(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	req := &quoratev1.CheckRequest{Principal: strings.Repeat("p", 512), ApiClass: strings.Repeat("c", 128),
		DecisionId: strings.Repeat("d", 128), Tier: strings.Repeat("t", 64), Cost: cost(1 << 53)}
	for range 7 {
		req.Also = append(req.Also, &quoratev1.Charge{ApiClass: "x"})
	}
	if _, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), req); err != nil {
		t.Error(err)
	}
	if r := n.mustPost(t, mustJSON(t, req)); r.status != 200 {
		t.Errorf("HTTP %d %s", r.status, r.body)
	}
	for _, c := range backend.seen() {
		if c.Cost != 1<<53 || len(c.Also) != 7 || c.Also[6].Cost != 1 || c.Gateway != InsecureName {
			t.Errorf("reached the backend as %+v", c)
		}
	}
}

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = data; return nil }
func (rawCodec) Name() string                       { return "proto" }

// Shows that bytes which are no message, strings that are not UTF-8 and messages above the bound are
// the caller's fault on every method, say so with an ErrorInfo, and still meet the interceptors.
func TestUndecodableMessages(t *testing.T) {
	n := mustNode(t, "n1", allowing())
	for what, raw := range map[string][]byte{
		"garbage":       {0xff, 0xff, 0xff, 0xff},
		"cut short":     {0x0a, 0x7f, 'a'},
		"invalid UTF-8": {0x0a, 0x02, 0xc3, 0x28},
		"too large":     make([]byte, maxMessageBytes+1),
	} {
		for _, method := range []string{
			"/quorate.v1.Quota/CheckAndConsume", "/quorate.v1.Quota/Peek", "/quorate.v1.Peer/ForwardCheck",
			ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName,
		} {
			var out []byte
			err := n.conn.Invoke(within(t, 5*time.Second), method, raw, &out,
				grpc.ForceCodec(rawCodec{}))
			mustBeInvalid(t, what+" to "+method, err)
		}
	}
	n2 := mustNode(t, "n1", allowing(), func(c *Config) {
		c.Authenticate = func(context.Context) (Identity, error) {
			return Identity{}, quotaerr.New(quotaerr.Unauthenticated, "show a certificate")
		}
	})
	var out []byte
	err := n2.conn.Invoke(within(t, 5*time.Second), "/quorate.v1.Quota/Peek", []byte{0xff}, &out,
		grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stranger's garbage gets %v, want unauthenticated", err)
	}
	err = n.conn.Invoke(within(t, 5*time.Second), "/quorate.v1.Quota/Bogus", []byte{}, &out,
		grpc.ForceCodec(rawCodec{}))
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown method gets %v", err)
	}
}

// Shows what the HTTP API refuses beyond the rules about fields: everything that leaves open what
// was meant.
func TestMalformedBodies(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	with := func(field string) string { return aBody[:len(aBody)-1] + "," + field + "}" }
	for name, body := range map[string]string{
		"nothing":               "",
		"null":                  "null",
		"a list":                "[" + aBody + "]",
		"cut short":             aBody[:len(aBody)-1],
		"trailing comma":        aBody[:len(aBody)-1] + ",}",
		"two objects":           aBody + aBody,
		"trailing text":         aBody + "x",
		"trailing NUL":          aBody + "\x00",
		"unknown field":         with(`"limit":5`),
		"field in other case":   with(`"Cost":5`),
		"repeated field":        with(`"principal":"other"`),
		"repeated, escaped":     with(`"\u0070rincipal":"other"`),
		"null tier":             with(`"tier":null`),
		"null cost":             with(`"cost":null`),
		"cost as text":          with(`"cost":"1"`),
		"cost as bool":          with(`"cost":true`),
		"cost with fraction":    with(`"cost":1.0`),
		"cost with exponent":    with(`"cost":1e3`),
		"cost beyond int64":     with(`"cost":9223372036854775808`),
		"cost beyond any":       with(`"cost":` + strings.Repeat("9", 400)),
		"negative revision":     with(`"policy_revision":-1`),
		"revision beyond":       with(`"policy_revision":18446744073709551616`),
		"epoch with fraction":   with(`"route_epoch":7.5`),
		"attempt beyond":        with(`"attempt":4294967296`),
		"tier as number":        with(`"tier":1`),
		"also no list":          with(`"also":{}`),
		"also of text":          with(`"also":["x"]`),
		"also null":             with(`"also":null`),
		"unknown field in also": with(`"also":[{"api_class":"x","principal":"y"}]`),
		"repeated in also":      with(`"also":[{"api_class":"x","api_class":"y"}]`),
		"endless also":          with(`"also":[` + strings.Repeat(`{"api_class":"x"},`, 999) + `{"api_class":"x"}]`),
		"deep":                  with(`"also":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000)),
		"invalid UTF-8":         with("\"tier\":\"\xff\""),
		"lone high surrogate":   with(`"tier":"\ud800"`),
		"lone low surrogate":    with(`"tier":"\udc00"`),
		"surrogates reversed":   with(`"tier":"\udc00\ud800"`),
		"high, then text":       with(`"tier":"\ud800\u0041"`),
		"NUL by escape":         with(`"tier":"\u0000"`),
		"too large":             aBody + strings.Repeat(" ", maxBodyBytes),
	} {
		r := n.mustPost(t, body, "Content-Type", "application/json")
		if r.status != 400 || !strings.Contains(r.body, `"reason":"invalid_argument"`) {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	for _, ct := range []string{"text/plain", "multipart/form-data; boundary=x", "x/y/z"} {
		if r := n.mustPost(t, aBody, "Content-Type", ct); r.status != 400 {
			t.Errorf("Content-Type %q: %d", ct, r.status)
		}
	}
	if r := n.mustPost(t, aBody, "Content-Encoding", "gzip"); r.status != 400 {
		t.Errorf("Content-Encoding gzip: %d", r.status)
	}
	if seen := backend.seen(); len(seen) != 0 {
		t.Errorf("a malformed body reached the backend as %+v", seen[0])
	}
	// What curl -d says of every body.
	if r := n.mustPost(t, aBody, "Content-Type", "application/x-www-form-urlencoded"); r.status != 200 {
		t.Errorf("curl's Content-Type: %d", r.status)
	}
}

// Shows that every field of a well-formed body arrives, with large numbers and escapes exact.
func TestWellFormedBody(t *testing.T) {
	backend := allowing()
	backend.leader = func() Leadership { return Leadership{Node: "n1", Local: true, Epoch: 1<<63 + 1} }
	n := mustNode(t, "n1", backend)
	r := n.mustPost(t, `{"principal":"a\ud83d\ude00\"\\u","api_class":"convert","decision_id":"d1","tier":"pro",
		"cost":9007199254740992,"policy_revision":18446744073709551615,"route_epoch":9223372036854775809,
		"attempt":2,"also":[{"api_class":"x","tier":"t","cost":3},{"api_class":"y"}]}`,
		"Content-Type", "application/json; charset=utf-8")
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.body)
	}
	want := fsm.Check{Principal: "a😀\"\\u", Gateway: InsecureName, DecisionID: "d1",
		Charge:         fsm.Charge{Class: "convert", Tier: "pro", Cost: 1 << 53},
		Also:           []fsm.Charge{{Class: "x", Tier: "t", Cost: 3}, {Class: "y", Cost: 1}},
		PolicyRevision: 1<<64 - 1, RouteEpoch: 1<<63 + 1}
	mustEqual(t, backend.seen(), []fsm.Check{want})
}

// Shows that no body makes the parser panic, and that what it accepts is accepted again, and the same,
// when it is written anew.
func FuzzHTTPBody(f *testing.F) {
	f.Add([]byte(aBody))
	f.Add([]byte(`{"principal":"\ud83d\ude00","cost":-0,"also":[{"api_class":"x","cost":3}]}`))
	f.Add([]byte(`{"tier":"\\ud800"}`))
	f.Add([]byte("{\"tier\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, body []byte) {
		req, err := parseCheck(body)
		if err != nil {
			if quotaerr.ReasonOf(err) != quotaerr.InvalidArgument {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := parseCheck([]byte(mustJSON(t, req)))
		if err != nil {
			t.Fatalf("%q was accepted, but not written anew: %v", body, err)
		}
		if again.GetPrincipal() != req.GetPrincipal() || again.GetCost() != req.GetCost() ||
			len(again.GetAlso()) != len(req.GetAlso()) {
			t.Fatalf("%q became %v", body, again)
		}
	})
}
