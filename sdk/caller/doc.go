// Package caller finds out who a request is charged to: keys, which turn what a request shows into a principal. The
// same keys serve HTTP and gRPC.
//
// Guarantees:
//   - A key gives a principal that the cluster accepts, or an error: never an empty one, never a shortened one, never
//     one that several callers share because their credentials could not be read.
//   - Principals of different kinds never meet: those of tokens, certificates and addresses begin with a prefix of
//     their own ("sub:", "uri:", "dns:", "cn:", "ip:"), so a user who is named like an address does not share that
//     address's usage. What APIKey, BearerKey, QueryKey and KeyFunc return is taken as it is, without one.
//   - No principal is a header's bare value. An API key goes through a lookup, a token is verified, a certificate was
//     verified in the handshake, and of X-Forwarded-For only what trusted proxies wrote counts.
//   - What is read of a request is bounded, whatever its size.
//
// The caller's duties: state the number of trusted proxies right (each of them must append to X-Forwarded-For; one too
// many, and clients choose their address); give principals that the functions behind APIKey, BearerKey, QueryKey and
// KeyFunc return a prefix of their own where FirstOf, or another route, puts them beside others; terminate TLS here
// where certificates name the caller, and demand them (tls.RequireAndVerifyClientCert).
//
// It knows no revocation of tokens or certificates, reads no Forwarded header (RFC 7239), and authorises nothing: it
// only says whose allowance is meant.
package caller
