// Package agreement has the replicas of a group prove to each other that they have the same state.
//
// Each entry of a log carries the index up to which its proposer had applied the log, and the digest of its
// state there; every replica compares that with its own digest at the same index, which needs no clock and
// no coordination. Where they differ one of the two is wrong, and only a majority can say which. So whoever
// sees it stops answering and asks all; the replica outside the majority stops for good, and when there is
// no majority, all do.
//
// The caller's duties: call [Agreement.Doubt] for each difference that an entry shows, answer other replicas
// by [Agreement.Suspect], and give no answers of the state while [Agreement.Halted] is an error.
//
// It does not compute digests, send anything itself, or repair a replica.
package agreement
