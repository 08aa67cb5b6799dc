// Package fsm is the quota state machine of one partition: it takes the entries of the partition's
// log, one after another, and answers the checks in them. It is the only place where a quota is
// decided.
//
// It is pure and deterministic. A step is a function of the state and the entry; it reads no clock, no
// file and no random number, uses integers only, and imports nothing that could do otherwise. Replicas
// that apply the same entries have the same state, which [Machine.Digest] proves.
//
// What it guarantees, for limits that are exact: the costs admitted in any rolling window (t-W, t] of
// partition time never sum to more than the limit; a check consumes from all its limits or from none;
// an admission is kept until no limit can count it any more; a recorded decision is repeated, and not
// made again, until its replay horizon has passed. That windows of partition time are windows of real
// time is the duty of whoever draws the stamps.
//
// The caller's duties:
//
//  1. Apply each entry of the log once, in order, with the Raft term that the log holds it in, by
//     [Machine.Step]. An entry that cannot be decoded must stop the replica; it must not be skipped. Before
//     the step, find the policy that the entry names where [Machine.Needs] asks for it.
//  2. Draw the stamp of an entry in the leadership whose term it carries, after an entry of that term
//     has been applied, and from a clock that never runs faster than real time.
//  3. Answer a check only after its entry is committed and applied.
//  4. Write snapshots with [Machine.BeginSnapshot] and [Snapshot.Next], and apply no entry during a
//     call of Next.
//
// How the state is laid out: principals in shards by their slot; per (principal, class) one rolling
// log ([rolling]) that all limits read; replay records by a keyed hash; an agenda per shard of what
// ends when. Nothing is linear in the size of the state: an entry forgets a bounded number of things
// that have ended, and a lookup compares the end of what it finds, so what waits to be forgotten
// changes no answer.
//
// It does not know Raft, the network, other partitions, or which node it runs on.
package fsm
