// Package check judges histories. It needs no cluster and trusts as little as it can.
//
// Examine judges a history by what clients saw alone: which attempts they sent and were answered when, under which
// policies. An instant that a server tells counts only where a check says so.
//
// Run judges the directory of a whole run, by all checkers, and gives a Verdict. Beside the history it reads what the
// replicas traced of what they applied, where they did. That is evidence and not truth: it is compared between replicas
// and with what clients saw, and true time, which no server tells, bounds it. A violation comes with a certificate, the
// steps of a proof that can be followed by hand. Run writes nothing but LinearFile, of a run in which Porcupine found
// no order; whoever wants the verdict kept calls its Write.
//
// Each checker is for one invariant, which its Outcome says in words. One that had nothing to judge says so, and a run
// in which there was too little to see fails by vacuity: a verdict that could not have been another says nothing.
//
// What it does not do: it judges no decision that charges several classes beyond the first, leaves the carried rules of
// an earlier policy to Examine, and holds a run in memory, about 1 GiB for half a million attempts and a million
// decisions, so that there are bounds on both.
package check
