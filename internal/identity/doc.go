// Package identity says who is at the other end of a connection: certificates, the roles that they carry,
// and TLS configurations that follow the files they are read from.
//
// A certificate names its owner in one URI among its subject alternative names:
//
//	quorate://CLUSTER/node/n0
//	quorate://CLUSTER/gateway/NAME?classes=a,b
//	quorate://CLUSTER/admin/NAME
//	quorate://CLUSTER/viewer/NAME
//
// Guarantees:
//   - TLS 1.3 only, the server shows a certificate always and the client unless it has none (OpenCA) and the server
//     lets it (Source.Server), and no session is resumed: each new connection is judged by the certificates and CAs
//     that are in force when it is made.
//   - A certificate of another cluster is refused, even from the same CA.
//   - A Source never goes from good files to bad ones: it keeps the old, says so, and looks again. Connections
//     that are there go on.
//   - What is made here is never written over an existing file, and keys are readable by their owner only.
//
// The caller's duties: run Source.Watch where certificates shall be replaced without a restart, and ask
// ID.Role and ID.MayAsk before doing what the other end asks for.
//
// It knows no revocation: a certificate that must not count any more is outlived, or its CA is replaced. Validity
// is judged by the wall clock; no quota decision is.
package identity
