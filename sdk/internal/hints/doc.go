// Package hints keeps what owners have denied a moment ago, so that the same check need not be sent again.
//
// Guarantees: a hint denies exactly the check that was denied, and only from when it is kept until retry_after_ms less
// one millisecond after the check's send, which is before the owner would admit it, and at most for MaxNanos, since
// usage can be forgiven and no gateway is told. A second denial does not make it longer. Revise ends all hints at once.
// Their number is bounded; the least recently used go first. Looking up allocates nothing.
//
// The caller sees to it that hints are asked for by first attempts only, and calls Revise when another policy revision
// is seen and when its view of the cluster is no longer live.
package hints
