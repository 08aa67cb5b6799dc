package rpc

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// doorFields are the strings of a check and of its further charges, with their bounds in bytes.
var doorFields = []struct {
	name  string
	bound int
	also  bool
}{
	{"principal", 512, false}, {"api_class", 128, false}, {"decision_id", 128, false},
	{"tier", 64, false}, {"api_class", 128, true}, {"tier", 64, true},
}

// wireCheck is aCheck as bytes, with one string replaced.
func wireCheck(t *testing.T, field int, value string) []byte {
	t.Helper()
	messages := quoratev1.File_quorate_v1_quota_proto.Messages()
	number := func(message, name string) protowire.Number {
		f := messages.ByName(protoreflect.Name(message)).Fields().ByName(protoreflect.Name(name))
		if f == nil {
			t.Fatalf("%s has no field %s", message, name)
		}
		return f.Number()
	}
	values := map[string]string{"principal": "acme", "api_class": "convert", "decision_id": "d1"}
	f := doorFields[field]
	var charge []byte
	if f.also {
		of := map[string]string{"api_class": "x"}
		of[f.name] = value
		for name, v := range of {
			charge = protowire.AppendTag(charge, number("Charge", name), protowire.BytesType)
			charge = protowire.AppendString(charge, v)
		}
	} else {
		values[f.name] = value
	}
	var b []byte
	for name, v := range values {
		b = protowire.AppendTag(b, number("CheckRequest", name), protowire.BytesType)
		b = protowire.AppendString(b, v)
	}
	if f.also {
		b = protowire.AppendTag(b, number("CheckRequest", "also"), protowire.BytesType)
		b = protowire.AppendBytes(b, charge)
	}
	return b
}

// textCheck is the same as JSON. value is put in as it is.
func textCheck(field int, value string) string {
	values := map[string]string{"principal": "acme", "api_class": "convert", "decision_id": "d1"}
	f := doorFields[field]
	also := ""
	if f.also {
		of := map[string]string{"api_class": "x"}
		of[f.name] = value
		also = `,"also":[{` + members(of) + `}]`
	} else {
		values[f.name] = value
	}
	return "{" + members(values) + also + "}"
}

func members(m map[string]string) string {
	var out []string
	for name, v := range m {
		out = append(out, fmt.Sprintf(`"%s":"%s"`, name, v))
	}
	return strings.Join(out, ",")
}

// Shows for every string of a check, those of further charges included, over both protocols: its bound
// counts bytes and not letters, is itself accepted, and what lies beyond it, is no UTF-8 or has a NUL
// is invalid_argument and unseen by the backend.
func TestEveryStringAtTheDoor(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	send := func(field int, value string) (reply, error) {
		var out []byte
		err := n.conn.Invoke(within(t, 5*time.Second), "/quorate.v1.Quota/CheckAndConsume",
			wireCheck(t, field, value), &out, grpc.ForceCodec(rawCodec{}))
		return n.mustPost(t, textCheck(field, value)), err
	}
	for i, f := range doorFields {
		what := fmt.Sprintf("%s, further charge: %v", f.name, f.also)
		good := []string{strings.Repeat("x", f.bound), strings.Repeat("é", f.bound/2), "x y", "\u007f", "😀"}
		bad := []string{strings.Repeat("x", f.bound+1), strings.Repeat("é", f.bound/2) + "x",
			"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "a\x00b"}
		if f.name != "tier" {
			bad = append(bad, "")
		}
		for _, v := range good {
			if r, err := send(i, v); err != nil || r.status != 200 {
				t.Errorf("%s %.20q: %v and HTTP %d %s", what, v, err, r.status, r.body)
			}
		}
		if got := len(backend.seen()); got != 2*len(good)*(i+1) {
			t.Fatalf("%s: %d checks reached the backend, want %d", what, got, 2*len(good)*(i+1))
		}
		for _, v := range bad {
			r, err := send(i, v)
			mustBeInvalid(t, fmt.Sprintf("%s %.20q", what, v), err)
			if r.status != 400 || !strings.Contains(r.body, `"reason":"invalid_argument"`) {
				t.Errorf("%s %.20q: HTTP %d %s", what, v, r.status, r.body)
			}
		}
		if got := len(backend.seen()); got != 2*len(good)*(i+1) {
			t.Fatalf("%s: a malformed check reached the backend", what)
		}
	}
	for _, gateway := range []string{"", "g\x00", strings.Repeat("g", 257)} {
		req := aCheck()
		req.RouteEpoch = 7
		_, err := quoratev1.NewPeerClient(n.conn).ForwardCheck(within(t, 5*time.Second),
			&quoratev1.ForwardCheckRequest{ClusterId: testCluster, Gateway: gateway, Check: req})
		mustBeInvalid(t, fmt.Sprintf("gateway %.20q", gateway), err)
	}
}

// Shows that headers above the bound are refused before a check is read, over both protocols, and
// that the node serves on.
func TestOversizedHeaders(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	large := strings.Repeat("h", 2*maxHeaderBytes)
	req, err := http.NewRequestWithContext(within(t, 5*time.Second), http.MethodPost, n.url+"/v1/check",
		strings.NewReader(aBody))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Large", large)
	// The server hangs up with the rest unread, so the reset can overtake its 431.
	if resp, err := n.http.Do(req); err == nil {
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("HTTP %d, %v", resp.StatusCode, err)
		}
	}
	ctx := metadata.AppendToOutgoingContext(within(t, 5*time.Second), "x-large", large)
	if d, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(ctx, aCheck()); err == nil {
		t.Errorf("gRPC: %v", d)
	}
	if len(backend.seen()) != 0 {
		t.Fatal("one of them reached the backend")
	}
	if r := n.mustPost(t, aBody); r.status != 200 {
		t.Errorf("afterwards: HTTP %d", r.status)
	}
	_, err = quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, 5*time.Second), aCheck())
	if err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Shows that messages beyond what the transport takes in are refused without reaching the backend.
func TestMessageBeyondTheTransport(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	var out []byte
	err := n.conn.Invoke(within(t, 5*time.Second), "/quorate.v1.Quota/CheckAndConsume",
		make([]byte, transportMessageBytes+1), &out, grpc.ForceCodec(rawCodec{}))
	if status.Code(err) == codes.OK || len(backend.seen()) != 0 {
		t.Errorf("%v, %d seen", err, len(backend.seen()))
	}
}

// Shows which requests of browsers' pages are refused, and that programs, the address bar and the
// node's own pages are not; and what may be said of the body's type.
func TestPagesAndContentTypes(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	want := 0
	for _, c := range []struct {
		status  int
		headers []string
	}{
		{200, nil},
		{200, []string{"Content-Type", "application/json"}},
		{200, []string{"Content-Type", "Application/JSON; charset=utf-8"}},
		{200, []string{"Content-Type", "application/x-www-form-urlencoded"}},
		{400, []string{"Content-Type", "application/jsonp"}},
		{400, []string{"Content-Type", "application/problem+json"}},
		{400, []string{"Content-Type", "text/plain"}},
		{400, []string{"Content-Type", "application/grpc"}},
		{400, []string{"Content-Type", ";"}},
		{200, []string{"Sec-Fetch-Site", "none"}},
		{200, []string{"Sec-Fetch-Site", "same-origin", "Origin", n.url}},
		{200, []string{"Origin", n.url}},
		{403, []string{"Sec-Fetch-Site", "cross-site"}},
		{403, []string{"Sec-Fetch-Site", "same-site"}},
		{403, []string{"Origin", "https://evil.example"}},
		{403, []string{"Origin", "null"}},
		{403, []string{"Origin", "http://127.0.0.1:1"}},
		{403, []string{"Origin", "https://evil.example", "Content-Type", "application/x-www-form-urlencoded"}},
	} {
		r := n.mustPost(t, aBody, c.headers...)
		if r.status == 200 {
			want++
		}
		if r.status != c.status || c.status != 200 && strings.Contains(r.body, `"allowed":true`) {
			t.Errorf("%q: %d %s, want %d", c.headers, r.status, r.body, c.status)
		}
	}
	if got := len(backend.seen()); got != want {
		t.Errorf("%d checks reached the backend, %d were answered", got, want)
	}
}

// FuzzHTTPDoor shows that whatever body is posted, the handler does not panic, passes on nothing that
// the state machine would call malformed, and says 200 only where the backend allowed.
func FuzzHTTPDoor(f *testing.F) {
	f.Add([]byte(aBody))
	f.Add([]byte(`{"principal":"ac","api_class":"c","decision_id":"d","cost":9007199254740992}`))
	f.Add([]byte(`{"principal":"a","api_class":"c","decision_id":"d","cost":-1,"also":[{"api_class":"x"}]}`))
	f.Add([]byte(`{"principal":"a\u0000","api_class":"c","decision_id":"d"}`))
	f.Add([]byte("{\"principal\":\"\xff\",\"api_class\":\"c\",\"decision_id\":\"d\"}"))
	answers := []fsm.Reason{fsm.ReasonAllowed, fsm.ReasonQuotaExhausted, fsm.ReasonUnspecified,
		fsm.ReasonBlocked, fsm.ReasonCapacity, fsm.Reason(200)}
	var given []fsm.Reason
	var malformed error
	backend := &fakeBackend{horizon: time.Minute}
	backend.check = func(_ context.Context, c fsm.Check) (Answer, error) {
		if err := fsm.ValidateCheck(&c); err != nil {
			malformed = err
		}
		given = append(given, answers[len(c.Principal)%len(answers)])
		return Answer{Decision: fsm.Decision{Reason: given[len(given)-1]}}, nil
	}
	n := mustNode(f, "n1", backend)
	f.Fuzz(func(t *testing.T, body []byte) {
		given = nil
		rec := httptest.NewRecorder()
		n.Server.http.Handler.ServeHTTP(rec,
			httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/check", bytes.NewReader(body)))
		if malformed != nil {
			t.Fatalf("%q reached the backend: %v", body, malformed)
		}
		allowed := len(given) == 1 && given[0] == fsm.ReasonAllowed
		if (rec.Code == 200) != allowed || len(given) > 1 {
			t.Fatalf("%q: HTTP %d after %v", body, rec.Code, given)
		}
		if strings.Contains(rec.Body.String(), `"allowed":true`) != allowed {
			t.Fatalf("%q: %s after %v", body, rec.Body, given)
		}
		if got := n.metric(t, "quorate_panics_total"); got != 0 {
			t.Fatalf("%q: %v panics", body, got)
		}
	})
}
