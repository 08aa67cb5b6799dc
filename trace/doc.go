// Package trace reads recorded traces of quota checks and renders the answers to them.
//
// A trace is a file of JSON lines. A check line is
//
//	{"at": T, "principal": S, "api_class": S, "decision_id": S,
//	 "cost": N, "gateway": S, "tier": S, "policy_revision": N}
//
// of which the last four may be left out (cost 1, gateway Insecure, no tier, no revision check). A
// policy line is {"at": T, "policy": {…}}; the policy has the shape of a policy file. T is RFC 3339
// with up to nanoseconds, within the years 1970 to 2200.
//
// # Guarantees
//
// A Reader holds one line at a time and refuses one of more than MaxLineBytes. Strings reach the
// caller byte for byte, or not at all: invalid UTF-8 and unpaired surrogates make a check malformed
// instead of being replaced. A check whose values are wrong is a Line with Malformed set; it is
// answered and the trace goes on. Whatever makes it doubtful what the trace means (no JSON, unknown
// or repeated keys, no readable time, both a check and a policy) ends the run with an error that
// names the file and the line.
//
// # Duties of the caller
//
// A Malformed check is answered with MalformedAnswer and is no entry: it must not reach the state
// machine, so that it advances no time. The policy of a policy line is raw JSON, unread: the caller
// parses it. At is the stamp as written; that time never runs backwards is the state machine's
// business.
//
// The package decides nothing and keeps no state between lines.
package trace
