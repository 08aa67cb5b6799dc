// Package httpanswer writes what an HTTP caller is told of a decision: the RateLimit headers of
// draft-ietf-httpapi-ratelimit-headers-10, Retry-After, and bodies as RFC 9457 has them. The nodes and the gateway's
// middleware answer alike by it.
//
// Guarantees: no header names a room larger, or a wait shorter, than there is; what a structured field cannot express
// is left out.
//
// It decides nothing, and imports nothing of the server.
package httpanswer
