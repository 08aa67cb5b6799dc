// Package envoy answers Envoy's global rate limit protocol, envoy.service.ratelimit.v3, with decisions.
//
// The policy in force says, by domain, which check a descriptor is. A request's descriptors of one principal are
// decided as one, up to eight; further ones one after another, in the order of the first descriptor of each, until one
// is denied.
//
// Guarantees:
//   - The answer is OK only where each descriptor was allowed by a decision, or was let through by the policy: by a
//     rule that is unlimited, a rule that replaces its own, or a domain that lets through what no rule matches; or
//     where its class lets through what nobody can decide, which is counted. It is never UNKNOWN. What cannot be
//     answered is an error of gRPC, for which Envoy's failure_mode_deny has to be true.
//   - A request that is malformed anywhere, or asks for a class that its caller may not ask for, consumes nothing.
//   - Descriptors with hits_addend 0 are looked up, all before anything is consumed, and consume nothing.
//   - A status for each descriptor, in the order of the request. What is over a limit names that limit, each descriptor
//     of a decision the one that denied it. What is over the limit for want of a rule, or by a class that is switched
//     off, has a reason instead, in the answer's headers and its dynamic metadata; so has, beside its limit, what no
//     waiting helps. Not asked, since something else was denied: over the limit, with no limit named. Numbers that
//     Envoy has no room for are stated as less than there is, never as more.
//   - Only the entry whose key the policy's domain names as request_id names decisions. Without it, or without such a
//     key, each request is new. The same request id with the same domain and descriptors repeats a decision; with
//     others it is another one.
//   - A request is bounded: in descriptors and entries, and so in questions, and in time by MaxSpan.
//   - No name that a caller chooses reaches a metric's label.
//
// The caller's duties: a Desk that knows from the context who calls, and a recovery from panics around the service.
//
// What it does not do: cap what one node lets through by itself, as a gateway with on_unavailable: local does (such a
// class is denied by an error); take limits from a request; hand allowances back.
package envoy
