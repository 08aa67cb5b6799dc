package gateway

import (
	"strings"
	"testing"
)

// Shows that a connection from before a change of the callers' CAs gives nobody an identity that they do not back, and
// that one whose certificate still holds is served once more and then ended, by HTTP/1 and HTTP/2 alike.
func TestCallersCAChanges(t *testing.T) {
	ca, other := mustCA(t), mustCA(t)
	cert, key := ca.issue(t, "server")
	alice, aliceKey := ca.issue(t, "alice")
	const optional = `
tls: {cert: server.pem, key: server-key.pem, client_ca: ca.pem}
callers: {all: [{certificate: {name: uri}}, {client_ip: {}}]}
fallback: {charges: [{class: default}]}
principal_header: X-Who
`
	required := strings.Replace(optional, "ca.pem}", "ca.pem, client_certificates: required}", 1)
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		known := "200 " + proto + " uri:spiffe://example.org/alice https 0"
		unknown := "200 " + proto + " ip:127.0.0.1 https 0"
		for _, tt := range []struct {
			name, config, cas  string
			with               bool
			before, then, anew string
		}{
			{"removed", optional, other.pem(), true, known, "421 " + proto, "error"},
			{"one more", optional, ca.pem() + other.pem(), true, known, known, known},
			{"required now", required, ca.pem(), false, unknown, "421 " + proto, "error"},
		} {
			t.Run(tt.name+" "+proto, func(t *testing.T) {
				r := mustRig(t, optional, whoAndProto, "server.pem", cert, "server-key.pem", key, "ca.pem", ca.pem())
				client := ca.client(t, proto == "HTTP/2.0")
				if tt.with {
					client = ca.client(t, proto == "HTTP/2.0", alice, aliceKey)
				}
				if got := r.ask(t, client); got != tt.before {
					t.Errorf("before: %q, want %q", got, tt.before)
				}
				r.put(t, "ca.pem", tt.cas)
				r.put(t, "gateway.yaml", r.whole(tt.config))
				r.hangups <- nil
				r.reloads(t, reloadApplied, 1)
				if got := r.ask(t, client); got != tt.then {
					t.Errorf("on the old connection: %q, want %q", got, tt.then)
				}
				until(t, "the old connection ends", func() bool { return r.metric(t, "quorate_gateway_connections") == "0" })
				if got := r.ask(t, client); got != tt.anew {
					t.Errorf("on a new connection: %q, want %q", got, tt.anew)
				}
			})
		}
	}
}
