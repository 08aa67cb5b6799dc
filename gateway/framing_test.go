package gateway

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// framed is a connection of HTTP/2 that is spoken frame by frame.
type framed struct {
	*http2.Framer
	head   bytes.Buffer
	pack   *hpack.Encoder
	stream uint32
}

func (r *rig) mustFrame(t *testing.T, ca *authority) *framed {
	t.Helper()
	l := r.dial(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	c := tls.Client(l.Conn, &tls.Config{
		RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"},
	})
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	f := &framed{Framer: http2.NewFramer(c, c)}
	f.pack, f.ReadMetaHeaders = hpack.NewEncoder(&f.head), hpack.NewDecoder(4096, nil)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return f
}

// ask sends a request, fields name and value in turns, and a body if there is one; it gives the status of the answer,
// or the word reset.
func (f *framed) ask(t *testing.T, body string, fields ...string) string {
	t.Helper()
	f.head.Reset()
	for i := 0; i+1 < len(fields); i += 2 {
		if err := f.pack.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	f.stream += 2
	id := f.stream - 1
	err := f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: f.head.Bytes(), EndHeaders: true, EndStream: body == "",
	})
	if err == nil && body != "" {
		err = f.WriteData(id, true, []byte(body))
	}
	if err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			if frame.StreamID == id {
				return frame.PseudoValue("status")
			}
		case *http2.RSTStreamFrame:
			if frame.StreamID == id {
				return "reset"
			}
		}
	}
}

// Shows by HTTP/2, frame by frame, that lengths and hosts which have two readings are refused as by HTTP/1, that none
// of them reaches the upstream, and that the connection goes on. A length that is no number is one of 0 to net/http,
// which resets the stream when there is a body, unless it is refused earlier.
func TestTwoReadingsOfHTTP2(t *testing.T) {
	ca := mustCA(t)
	cert, key := ca.issue(t, "server")
	r := mustRig(t, shapeRoutes+"tls: {cert: server.pem, key: server-key.pem}\n", nil, "server.pem", cert, "server-key.pem", key)
	f := r.mustFrame(t, ca)
	get := []string{":method", "GET", ":scheme", "https", ":authority", "a.example", ":path", "/"}
	post := append([]string{":method", "POST"}, get[2:]...)
	with := func(base []string, more ...string) []string { return append(append([]string(nil), base...), more...) }
	for name, tt := range map[string]struct {
		body   string
		fields []string
		want   string
	}{
		"plain":               {"", get, "200"},
		"no length":           {"abc", post, "200"},
		"a length":            {"abc", with(post, "content-length", "3"), "200"},
		"no body":             {"", with(post, "content-length", "0"), "200"},
		"the host twice":      {"", with(get, "host", "A.example"), "200"},
		"two lengths":         {"abc", with(post, "content-length", "3", "content-length", "4"), "400"},
		"one length twice":    {"abc", with(post, "content-length", "3", "content-length", "3"), "400"},
		"list of lengths":     {"abc", with(post, "content-length", "3, 3"), "reset"},
		"a sign":              {"abc", with(post, "content-length", "+3"), "reset"},
		"no number":           {"abc", with(post, "content-length", "x"), "reset"},
		"an empty length":     {"abc", with(post, "content-length", ""), "reset"},
		"no number, no body":  {"", with(post, "content-length", "x"), "400"},
		"a length of nothing": {"", with(post, "content-length", "3"), "400"},
		"another host":        {"", with(get, "host", "b.example"), "400"},
		"another port":        {"", with(get, "host", "a.example:1"), "400"},
		"two hosts":           {"", with(get, "host", "a.example", "host", "a.example"), "400"},
		"no host":             {"", with(get[:4], get[6:]...), "400"},
		"host alone":          {"", with(with(get[:4], get[6:]...), "host", "a.example"), "200"},
		"odd host":            {"", with(with(get[:4], ":authority", "a example"), get[6:]...), "400"},
		"coding":              {"abc", with(post, "transfer-encoding", "chunked"), "400"},
	} {
		before := r.reached.Load()
		if got := f.ask(t, tt.body, tt.fields...); got != tt.want && (tt.want != "reset" || got != "400") {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
		if got := r.reached.Load() - before; got != 0 && tt.want != "200" {
			t.Errorf("%s: it came to the upstream", name)
		}
	}
}

// Shows by HTTP/2 that a body that does not come in time is 408, and ends no other stream, and that one which is not as
// long as was said is not taken for a fault of the upstream.
func TestBodiesOfHTTP2(t *testing.T) {
	ca := mustCA(t)
	cert, key := ca.issue(t, "server")
	r := mustRig(t, streamRoutes+"tls: {cert: server.pem, key: server-key.pem}\nupstreams: {api: {url: URL, timeout: 500ms}}\n",
		nil, "server.pem", cert, "server-key.pem", key)
	f := r.mustFrame(t, ca)
	post := []string{":method", "POST", ":scheme", "https", ":authority", "a", ":path", "/", "content-length", "5"}
	for _, body := range []string{"abc", "abcdefgh"} {
		if got := f.ask(t, body, post...); got != "reset" && got != "400" {
			t.Errorf("%s: %s", body, got)
		}
	}
	until(t, "nothing is under way", func() bool { return r.underWay.Load() == 0 })
	f.head.Reset()
	for i := 0; i < len(post); i += 2 {
		if err := f.pack.WriteField(hpack.HeaderField{Name: post[i], Value: post[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	f.stream += 2
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: f.stream - 1, BlockFragment: f.head.Bytes(), EndHeaders: true})
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if _, goaway := frame.(*http2.GoAwayFrame); goaway {
			t.Error("the connection is to end")
		}
		if head, ok := frame.(*http2.MetaHeadersFrame); ok && head.StreamID == f.stream-1 {
			if got := head.PseudoValue("status"); got != "408" {
				t.Error(got)
			}
			break
		}
	}
	if got := f.ask(t, "", append([]string{":method", "GET"}, post[2:8]...)...); got != "200" {
		t.Errorf("the next: %s", got)
	}
	for _, reason := range []string{refusedUpstream, refusedSlow} {
		if got := r.metric(t, `quorate_gateway_refused_total{reason="`+reason+`"}`); got != "0" {
			t.Errorf("%s: %q", reason, got)
		}
	}
}
