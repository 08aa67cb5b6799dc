package caller

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/sdk"
)

func known(_ context.Context, key string) (string, error) {
	switch key {
	case "k1", "k1-second":
		return "acme", nil
	case "long":
		return strings.Repeat("x", MaxPrincipalBytes+1), nil
	case "nul":
		return "a\x00b", nil
	case "bytes":
		return "\xff", nil
	case "down":
		return "", errors.New("the database is away")
	case "revoked":
		return "", ErrInvalid
	}
	return "", nil
}

func header(name string, values ...string) http.Header { return http.Header{name: values} }

func wantKind(t *testing.T, what string, principal string, err, kind error) {
	t.Helper()
	var e *Error
	if principal != "" || !errors.Is(err, kind) || !errors.As(err, &e) || e.Detail == "" {
		t.Errorf("%s: %q, %v, want %v", what, principal, err, kind)
	}
}

// Shows what an API key's lookup turns into: a known key a principal, and every other shape of key, header or answer
// the error that it calls for, never a principal and never the key itself.
func TestAPIKey(t *testing.T) {
	key := APIKey("X-Api-Key", known)
	for _, k := range []string{"k1", "k1-second"} {
		if got, err := key.Principal(mustHTTP(t, "", header("X-Api-Key", k))); got != "acme" || err != nil {
			t.Errorf("%s: %q, %v", k, got, err)
		}
	}
	for name, c := range map[string]struct {
		values []string
		kind   error
	}{
		"none": {nil, ErrMissing}, "empty": {[]string{""}, ErrMissing}, "unknown": {[]string{"acme"}, ErrInvalid},
		"revoked": {[]string{"revoked"}, ErrInvalid}, "twice": {[]string{"k1", "k1"}, ErrMalformed},
		"huge": {[]string{strings.Repeat("k", 1<<20)}, ErrMalformed}, "long name": {[]string{"long"}, ErrMalformed},
		"NUL": {[]string{"nul"}, ErrMalformed}, "no UTF-8": {[]string{"bytes"}, ErrMalformed},
		"lookup fails": {[]string{"down"}, ErrUnavailable},
	} {
		got, err := key.Principal(mustHTTP(t, "", http.Header{"X-Api-Key": c.values}))
		wantKind(t, name, got, err, c.kind)
		var e *Error
		if errors.As(err, &e) && strings.Contains(e.Detail, "database") {
			t.Errorf("%s: the public is told %q", name, e.Detail)
		}
	}
}

// Shows the other places of a key: Authorization with any case of Bearer, and the query, which must name it once and be
// readable whole.
func TestBearerAndQueryKey(t *testing.T) {
	for value, kind := range map[string]error{
		"Bearer k1": nil, "bearer  k1 ": nil, "Basic k1": ErrMissing, "Bearer": ErrMissing, "Bearer ": ErrMissing,
		"k1": ErrMissing, "Bearer other": ErrInvalid,
	} {
		got, err := BearerKey(known).Principal(mustHTTP(t, "", header("Authorization", value)))
		if kind == nil && (got != "acme" || err != nil) {
			t.Errorf("%q: %q, %v", value, got, err)
		} else if kind != nil {
			wantKind(t, value, got, err, kind)
		}
	}
	for query, kind := range map[string]error{
		"key=k1": nil, "a=b&key=k1": nil, "": ErrMissing, "key=": ErrMissing, "key=k1&key=k2": ErrMalformed,
		"key=k1;key=k2": ErrMalformed, "key=k1&%zz": ErrMalformed, "Key=k1": ErrMissing, "key=no": ErrInvalid,
	} {
		r := mustHTTP(t, "", nil)
		r.HTTP.URL.RawQuery = query
		got, err := QueryKey("key", known).Principal(r)
		if kind == nil && (got != "acme" || err != nil) {
			t.Errorf("%q: %q, %v", query, got, err)
		} else if kind != nil {
			wantKind(t, query, got, err, kind)
		}
	}
	got, err := QueryKey("key", known).Principal(FromGRPC(t.Context(), "/s/m", nil))
	wantKind(t, "gRPC", got, err, ErrMissing)
}

// Shows that gRPC metadata serves as headers do, under any spelling of the name.
func TestMetadataIsRead(t *testing.T) {
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-api-key", "k1"))
	if got, err := APIKey("X-Api-Key", known).Principal(FromGRPC(ctx, "/s/m", nil)); got != "acme" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

func shown(c *x509.Certificate) *Request {
	return &Request{TLS: &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c}}}}
}

// Shows that only a verified certificate that has not ended names a caller, by exactly one name, with the prefix of its
// kind.
func TestCertificate(t *testing.T) {
	uri := &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/billing"}
	c := &x509.Certificate{
		NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{uri}, DNSNames: []string{"a.example"},
		Subject: pkix.Name{CommonName: "ip:203.0.113.7"},
	}
	for want, name := range map[string]CertificateName{
		"uri:spiffe://example.org/billing": URIName, "dns:a.example": DNSName, "cn:ip:203.0.113.7": CommonName,
	} {
		if got, err := Certificate(name).Principal(shown(c)); got != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	more := *c
	more.URIs, more.DNSNames, more.Subject = []*url.URL{uri, uri}, nil, pkix.Name{}
	for _, name := range []CertificateName{URIName, DNSName, CommonName} {
		got, err := Certificate(name).Principal(shown(&more))
		wantKind(t, "several names or none", got, err, ErrInvalid)
	}
	ended := *c
	ended.NotAfter = time.Now().Add(-time.Second)
	got, err := Certificate(URIName).Principal(shown(&ended))
	wantKind(t, "ended", got, err, ErrInvalid)
	for what, r := range map[string]*Request{
		"plaintext": {}, "no certificate": {TLS: &tls.ConnectionState{}},
		"not verified": {TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}},
	} {
		got, err := Certificate(URIName).Principal(r)
		wantKind(t, what, got, err, ErrMissing)
	}
}

// Shows that FirstOf falls through a credential that is missing, and never through one that is wrong.
func TestFirstOf(t *testing.T) {
	key := FirstOf(APIKey("X-Api-Key", known), ClientIP(Proxies{}))
	for value, want := range map[string]string{"": "ip:192.0.2.9", "k1": "acme"} {
		if got, err := key.Principal(mustHTTP(t, "192.0.2.9:1", header("X-Api-Key", value))); got != want || err != nil {
			t.Errorf("%q: %q, %v, want %q", value, got, err, want)
		}
	}
	for value, kind := range map[string]error{"guessed": ErrInvalid, "down": ErrUnavailable, "long": ErrMalformed} {
		got, err := key.Principal(mustHTTP(t, "192.0.2.9:1", header("X-Api-Key", value)))
		wantKind(t, value, got, err, kind)
	}
	got, err := FirstOf(APIKey("A", known), BearerKey(known)).Principal(mustHTTP(t, "", nil))
	wantKind(t, "none", got, err, ErrMissing)
}

// Shows that each way to make a key that cannot work is told when it is made, and that such a key names nobody.
func TestBrokenKeys(t *testing.T) {
	for name, k := range map[string]Key{
		"zero": {}, "no function": KeyFunc(nil), "no lookup": APIKey("X-Api-Key", nil), "no header": APIKey("", known),
		"bad header": APIKey("a b", known), "no bearer lookup": BearerKey(nil), "no parameter": QueryKey("", known),
		"no name": Certificate(nil), "none of none": FirstOf(), "one broken": FirstOf(BearerKey(known), Key{}),
		"no token rule": JWTSubject(JWT{}),
	} {
		if k.Err() == nil {
			t.Errorf("%s: no error", name)
		}
		got, err := k.Principal(mustHTTP(t, "", nil))
		wantKind(t, name, got, err, ErrUnavailable)
	}
}

// Shows that a rule yields its charges in order with cost and tier, and refuses, before anything is asked, a cost or a
// tier that no check can have.
func TestRuleIdentities(t *testing.T) {
	cost := int64(7)
	tier := "pro"
	rule := Rule{Charges: []Charge{
		{Class: "per-ip", Key: ClientIP(Proxies{})},
		{
			Class: "convert", Key: APIKey("X-Api-Key", known),
			Cost: func(*Request) (int64, error) { return cost, nil },
			Tier: func(*Request) (string, error) { return tier, nil },
		},
	}}
	if err := rule.Err(); err != nil {
		t.Fatal(err)
	}
	r := mustHTTP(t, "192.0.2.9:1", header("X-Api-Key", "k1"))
	got, err := rule.Identities(r)
	want := []sdk.Identity{
		{Principal: "ip:192.0.2.9", Class: "per-ip", Cost: 1},
		{Principal: "acme", Class: "convert", Tier: "pro", Cost: 7},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, cost = range []int64{0, -1, -1 << 63, 1<<53 + 1} {
		if _, err := rule.Identities(r); !errors.Is(err, ErrMalformed) {
			t.Errorf("cost %d: %v", cost, err)
		}
	}
	cost = 1 << 53
	for _, tier = range []string{strings.Repeat("t", 65), "a\x00", "\xff"} {
		if _, err := rule.Identities(r); !errors.Is(err, ErrMalformed) {
			t.Errorf("tier %q: %v", tier, err)
		}
	}
}

// Shows that a rule without charges is no rule unless it says unlimited, and that classes are checked.
func TestRulesAreChecked(t *testing.T) {
	key := ClientIP(Proxies{})
	for name, r := range map[string]Rule{
		"zero": {}, "both": {Charges: Limit("c", key).Charges, Unlimited: true}, "no class": Limit("", key),
		"long class": Limit(strings.Repeat("c", 129), key), "NUL": Limit("a\x00", key), "no key": Limit("c", Key{}),
		"nine": {Charges: make([]Charge, 9)},
	} {
		if r.Err() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	for name, r := range map[string]Rule{"limit": Limit("c", key), "unlimited": Unlimited()} {
		if err := r.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Shows that a gRPC call shows its connection's address and certificate as an HTTP request does.
func TestPeerIsRead(t *testing.T) {
	c := &x509.Certificate{NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a.example"}}
	ctx := peer.NewContext(t.Context(), &peer.Peer{
		Addr:     &net.TCPAddr{IP: net.ParseIP("203.0.113.7"), Port: 1},
		AuthInfo: credentials.TLSInfo{State: *shown(c).TLS},
	})
	for want, key := range map[string]Key{"ip:203.0.113.7": ClientIP(Proxies{}), "dns:a.example": Certificate(DNSName)} {
		if got, err := key.Principal(FromGRPC(ctx, "/s/m", nil)); got != want || err != nil {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
}

// Shows that a key's error says each thing once and, where the key's own function has only named a condition, tells the
// public what fits it: of a request that cannot be read, nothing of a credential. What the function says itself stands.
func TestErrorsSayItOnce(t *testing.T) {
	own := &Error{Kind: ErrMalformed, Detail: "send a form with one field account"}
	for name, c := range map[string]struct {
		err          error
		detail, text string
	}{
		"own": {own, own.Detail, "the request cannot be read: " + own.Detail},
		"malformed": {ErrMalformed, "send the request in the form that this service asks for",
			"the request cannot be read: send the request in the form that this service asks for"},
		"malformed, why": {fmt.Errorf("a body of two accounts: %w", ErrMalformed),
			"send the request in the form that this service asks for", "a body of two accounts: the request cannot be read"},
		"invalid": {ErrInvalid, "send a credential that this service knows",
			"the credential is not accepted: send a credential that this service knows"},
		"invalid, why": {fmt.Errorf("revoked: %w", ErrInvalid), "send a credential that this service knows",
			"revoked: the credential is not accepted"},
		"other": {errors.New("the database is away"), "try again later",
			"the credential cannot be judged at present: try again later: the database is away"},
	} {
		_, err := KeyFunc(func(*Request) (string, error) { return "", c.err }).Principal(mustHTTP(t, "", nil))
		var e *Error
		if !errors.As(err, &e) || e.Detail != c.detail || e.Error() != c.text || strings.Contains(e.Detail, "credential") != strings.Contains(c.text, "accepted") {
			t.Errorf("%s: the public is told %q, the operator %q", name, e.Detail, err)
		}
	}
}
