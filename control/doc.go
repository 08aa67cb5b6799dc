// Package control is the control group of a cluster on one node: a replicated log, the state machine of
// package state behind it, the audit trail and the policy bodies beside it.
//
// # Guarantees
//
// Propose, Read and Confirm answer from a committed entry or not at all. An error says honestly what is
// known: not_leader is a definite no, and names the leader; outcome_unknown means that the entry may be
// committed, and the same command can be proposed again, here or on another node, without being applied
// twice. A refusal by the state machine is an answer too: its cause is a *state.Refusal.
//
// Confirm returns a policy revision that was in force after the call began: its entry is proposed after it.
// Callers that wait share an entry. So the lease of a partition's leader may run from the instant at which
// its request was sent.
//
// Active tells when a policy revision is active everywhere, from what partitions have noted or from a whole lease
// by this node's own clock; what it says is so on any node. Find gives all that name the same policy the same one,
// and waits for its body.
//
// A command is applied together with its line in the audit trail, and the trail's running hash is part of
// the state's digest. Commands carry their proposer's digest, and replicas compare.
//
// # The caller's duties
//
// Claim the data directory, and give Config.Open the group with the log backend boltdb. End the process when
// Fatal is called. Close the Control before the node's listener. Run Sweep now and then on the leader.
// Authenticate and authorise whoever is named as an actor; note refusals at the door by KindAttempt. Spread a
// body, and hear from a majority that it holds it (Bodies().Has), before proposing it.
//
// # What it does not do
//
// It does not talk to other nodes but through the log; it moves no replica and no slot: it says what is to
// be, others make it so, and package placement tells them in which steps. It is not on the path of a decision.
package control
