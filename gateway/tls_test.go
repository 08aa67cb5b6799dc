package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

func mustKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// authority issues certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func mustCA(t *testing.T) *authority {
	t.Helper()
	a := &authority{key: mustKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// issue is a certificate and its key, in PEM.
func (a *authority) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k := mustKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{{127, 0, 0, 1}},
		URIs: []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/" + name}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	b, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: b}))
}

// client calls over TLS, with a certificate when one is given.
func (a *authority) client(t *testing.T, http2 bool, pair ...string) *http.Client {
	t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AddCert(a.cert)
	if len(pair) > 0 {
		c, err := tls.X509KeyPair([]byte(pair[0]), []byte(pair[1]))
		if err != nil {
			t.Fatal(err)
		}
		config.Certificates = []tls.Certificate{c}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: http2}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// ask is the status of a GET, its protocol, and what the upstream was told; or the error.
func (r *rig) ask(t *testing.T, c *http.Client, headers ...string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.Addr().String()+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return "error"
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		b = nil
	}
	return strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", resp.Proto, " ", string(b)))
}

const tlsConfig = `
tls: {cert: server.pem, key: server-key.pem, client_ca: ca.pem}
callers:
  all:
    - certificate: {name: uri}
    - api_key: {file: keys.yaml}
    - jwt: {jwks_file: jwks.json, algorithms: [ES256], issuer: me, audience: here}
    - client_ip: {}
fallback: {charges: [{class: default}]}
principal_header: X-Who
`

func whoAndProto(w http.ResponseWriter, q *http.Request) {
	fmt.Fprint(w, q.Header.Get("X-Who"), " ", q.Header.Get("X-Forwarded-Proto"), " ", len(q.Header["X-Api-Key"]))
}

// Shows over TLS, by HTTP/1 and HTTP/2 alike, that the first credential shown counts, each of its kind, and that one
// which is not accepted is 401 and is not made up for by another that would be.
func TestCallers(t *testing.T) {
	ca, signer := mustCA(t), mustKey(t)
	cert, key := ca.issue(t, "server")
	alice, aliceKey := ca.issue(t, "alice")
	mallory, malloryKey := mustCA(t).issue(t, "alice")
	r := mustRig(t, tlsConfig, whoAndProto, "server.pem", cert, "server-key.pem", key, "ca.pem", ca.pem(),
		"jwks.json", mustJWKS(t, signer))
	token := func(k *ecdsa.PrivateKey, audience string) string {
		tok := jwt.NewWithClaims(jwt.SigningMethodES256, jwt.MapClaims{
			"iss": "me", "aud": audience, "sub": "bob", "exp": time.Now().Add(time.Minute).Unix(),
		})
		tok.Header["kid"] = "k1"
		s, err := tok.SignedString(k)
		if err != nil {
			t.Fatal(err)
		}
		return "Bearer " + s
	}
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		h2 := proto == "HTTP/2.0"
		plain, with := ca.client(t, h2), ca.client(t, h2, alice, aliceKey)
		for name, tt := range map[string]struct {
			client  *http.Client
			headers []string
			want    string
		}{
			"address":           {plain, nil, "200 " + proto + " ip:127.0.0.1 https 0"},
			"key":               {plain, []string{"X-Api-Key", keyAcme}, "200 " + proto + " account:acme https 0"},
			"token":             {plain, []string{"Authorization", token(signer, "here")}, "200 " + proto + " sub:bob https 0"},
			"certificate":       {with, nil, "200 " + proto + " uri:spiffe://example.org/alice https 0"},
			"certificate first": {with, []string{"X-Api-Key", "wrong"}, "200 " + proto + " uri:spiffe://example.org/alice https 0"},
			"wrong key":         {plain, []string{"X-Api-Key", "wrong"}, "401 " + proto},
			"wrong key, good token": {plain, []string{"X-Api-Key", "wrong", "Authorization", token(signer, "here")},
				"401 " + proto},
			"forged token":           {plain, []string{"Authorization", token(mustKey(t), "here")}, "401 " + proto},
			"another audience":       {plain, []string{"Authorization", token(signer, "there")}, "401 " + proto},
			"no token":               {plain, []string{"Authorization", "Bearer x"}, "401 " + proto},
			"stranger's certificate": {ca.client(t, h2, mallory, malloryKey), nil, "error"},
		} {
			if got := r.ask(t, tt.client, tt.headers...); got != tt.want {
				t.Errorf("%s: %q, want %q", name, got, tt.want)
			}
		}
	}
}

// Shows that a certificate that has changed is shown to new connections, and that one which does not fit its key is
// refused while the old one goes on.
func TestCertificateIsRenewed(t *testing.T) {
	ca, next := mustCA(t), mustCA(t)
	cert, key := ca.issue(t, "server")
	r := mustRig(t, strings.ReplaceAll(tlsConfig, "client_ca: ca.pem", "client_ca: ca.pem, client_certificates: required"),
		whoAndProto, "server.pem", cert, "server-key.pem", key, "ca.pem", ca.pem(), "jwks.json", mustJWKS(t, mustKey(t)))
	alice, aliceKey := ca.issue(t, "alice")
	if got := r.ask(t, ca.client(t, true)); got != "error" {
		t.Errorf("without a certificate: %q", got)
	}
	const good = "200 HTTP/2.0 uri:spiffe://example.org/alice https 0"
	if got := r.ask(t, ca.client(t, true, alice, aliceKey)); got != good {
		t.Error(got)
	}
	fresh, freshKey := next.issue(t, "server")
	r.put(t, "server.pem", fresh)
	r.hangups <- syscall.SIGHUP
	r.reloads(t, reloadRefused, 1)
	if got := r.ask(t, ca.client(t, true, alice, aliceKey)); got != good {
		t.Error(got)
	}
	r.put(t, "server-key.pem", freshKey)
	r.hangups <- syscall.SIGHUP
	r.reloads(t, reloadApplied, 1)
	if got := r.ask(t, ca.client(t, true, alice, aliceKey)); got != "error" {
		t.Errorf("the old CA's client: %q", got)
	}
	if got := r.ask(t, next.client(t, true, alice, aliceKey)); got != good {
		t.Errorf("the new CA's client: %q", got)
	}
}

// Shows over TLS that HTTP/1 is read as strictly as without, and that what does not shake hands is dropped in time.
func TestShapesOverTLS(t *testing.T) {
	ca := mustCA(t)
	cert, key := ca.issue(t, "server")
	r := mustRig(t, tlsConfig+"bounds: {header_timeout: 500ms}\n", whoAndProto, "server.pem", cert, "server-key.pem", key,
		"ca.pem", ca.pem(), "jwks.json", mustJWKS(t, mustKey(t)))
	l := r.dial(t)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	c := tls.Client(l.Conn, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12})
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 400 ") {
		t.Errorf("%q %v", b, err)
	}
	plain, silent := r.dial(t), r.dial(t)
	plain.mustWrite(t, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
	plain.mustEnd(t, "plaintext")
	silent.mustEnd(t, "silence")
	if n := r.reached.Load(); n != 0 {
		t.Errorf("%d requests came to the upstream", n)
	}
}

func coordinates(t *testing.T, k *ecdsa.PrivateKey) (x, y string) {
	t.Helper()
	b, err := k.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(b[1:33]), base64.RawURLEncoding.EncodeToString(b[33:])
}

func mustJWKS(t *testing.T, k *ecdsa.PrivateKey) string {
	t.Helper()
	x, y := coordinates(t, k)
	return fmt.Sprintf(`{"keys": [{"kty": "EC", "crv": "P-256", "kid": "k1", "x": %q, "y": %q}]}`, x, y)
}
