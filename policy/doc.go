// Package policy is the model of a policy: which limits hold for whom, and how a class behaves.
//
// It reads a policy from YAML or JSON text, checks it, resolves the rule of a check, or of a descriptor of Envoy's,
// encodes a policy canonically, tells two policies apart, and makes one of another with classes switched.
//
// Guarantees:
//
//   - A *Policy made by New, Parse, Decode or With is valid within the bounds of this package and is
//     never changed again, so any number of goroutines may read it.
//   - Resolution (ClassOf, RuleFor, GroupOf, Windows) is pure and allocates nothing.
//   - The encoding is canonical: equal policies have equal bytes, Decode accepts no other bytes for
//     them, and Digest is the SHA-256 of those bytes. Replicas compare it.
//   - Parse and Decode neither panic nor use memory out of proportion to their input, whatever the
//     input is.
//   - Everything here is a function of its arguments: no clock, no randomness, no input or output.
//
// The caller's duties: treat every map and slice reachable from a Policy as read-only; pass to
// RuleFor, GroupOf and Windows the class name that ClassOf returned, not the one a client sent;
// bound the bytes handed to Decode (Parse bounds its own, see MaxSourceBytes).
//
// What it does not do: number revisions, keep history, compare a version label with earlier ones,
// or count usage.
package policy
