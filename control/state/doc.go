// Package state is the state machine of the control group: which nodes the cluster has, which partition
// owns which slots under which epoch, which policy revision is in force, and which plans move what.
//
// It is pure and deterministic. Applying a command is a function of the state and the command; it reads no
// clock, no file and no random number. Replicas that apply the same commands have the same state, which
// [State.Digest] proves. Wall time is in commands for people to read; it decides nothing.
//
// What it guarantees: map version, ownership counter, policy revision, partition id and plan number only
// grow and are never used twice; each slot has at most one owner; a slot that has an owner gets another one only
// by the decision of a plan on equal digests, under a larger epoch; a publish counts only if nothing was published
// since the revision that it names; at most one plan is open per partition; a command that is applied again
// under the same id changes nothing and gets its first result; every attempt, refused ones too, makes a
// [Record] whose running hash is part of the digest. A cluster that is made of a backup goes on with its numbers,
// under a larger incarnation.
//
// The caller's duties:
//
//  1. Apply each entry of the log once, in order, by [Machine.Apply]. One that [DecodeCommand] refuses must
//     stop the replica; it must not be skipped.
//  2. Keep every Record that Apply returns, beside the state.
//  3. Give each command an id, and give a command that is sent again the same one.
//  4. Say that a majority holds a body ([Publish.Held], [Rollback.Held]) only after a majority has said so,
//     each under the body epoch that the command carries; drop a body only when a sweep allows it
//     ([State.Wants], [Sweep]).
//  5. Note what is done outside this state by KindNote; draw a token's secret at random, and give its hash only.
//  6. Decide a plan on the digests that both ends have reported, and close it only when each end that it still has
//     (State.Ends) has done what follows; say in the comment of an abort why. Make nothing of a partition that is not
//     in the state, nor of its files: its id is never used again.
//  7. Propose a class switch only for a class that the body of its base revision lists.
//
// A [State] is immutable, so that readers need no lock: a change makes another one.
//
// It does not hold policy bodies, only their digests, nor secrets of tokens, only their hashes; it does not know
// Raft, files, the network, or which node it runs on.
package state
