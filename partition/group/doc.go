// Package group is a replicated log: one Raft group, as a node that takes part in it sees it. Group is
// all that the rest of the program knows of Raft; RaftGroup is its implementation on hashicorp/raft,
// and Listener the one socket on which all groups of a node are reached.
//
// # Guarantees
//
// An entry whose proposal gave a result is committed: it is durable on a majority, and the Applier of
// every replica gets it, in the same order. A proposal always ends, within Timing.Enqueue plus
// Timing.Proposal. ErrNotLeader is a definite no. ErrUnknown is everything else, and never a no: the
// entry may be committed later, under another leader too.
//
// Leadership is one Raft term. It is Ready once an entry of that term has been applied here, and it is
// reported as lost as soon as Raft knows; that may be later than another node's election. So whatever
// must not be decided by a deposed leader goes through the log, which a deposed leader cannot extend.
//
// # The caller's duties
//
// Claim the data directory (storage.Claim). Give Bootstrap to one replica, once, when the group is made; the
// others begin with empty stores and are reached by the leader. Say First only for a directory from which
// nothing was ever acknowledged. After Condemn only a replica of another instance takes the node's place.
//
// Let Config.Fatal end the process, and start it again: what it reports is in Raft's memory or on the disk,
// and only a start reads the disk anew. Restarting the process is one path for all such cases, and the same
// that a crash takes; to reopen a single group would need a second path, with a state machine that is put
// back to its snapshot beside others that serve. Close groups before their Listener. Promote a learner only
// when it has caught up. Hand leadership over only to drain a node or to balance.
//
// # Guards
//
// What is wrong in hashicorp/raft 1.7.3, or easily used wrongly, and what stands against it. None of it
// is optional.
//
//   - hashicorp/raft#695: heartbeats are handled on the connection's goroutine and change the term
//     under the main goroutine, which then stamps entries with a term that it does not lead; replicas
//     diverge. The transport ignores SetHeartbeatHandler, so heartbeats queue like all else. The price
//     is that they wait for the disk, hence Timing.Heartbeat of a second and more. Config.NotifyCh stays
//     nil: a receiver that is slow would hold the same window open.
//   - Over-commit: a follower commits up to the leader's commit index or its own last entry, whichever
//     is less, though a request may have verified less than either. The transport clamps the commit
//     index to the end of what the request carries.
//   - hashicorp/raft#661: a vote's term and candidate are two writes. See package storage.
//   - hashicorp/raft#498: some futures never complete. Each has a waiter with a deadline of its own;
//     Close ends what is left; Config.MaxProposals bounds the goroutines that such futures keep.
//   - hashicorp/raft#503: a leader whose disk hangs stays leader. Storage watches each write.
//   - hashicorp/raft#696: a transfer that a step-down interrupts leaves a mark that makes the node, when
//     it leads again, refuse every entry. Entries refused so for three election timeouts are fatal.
//   - hashicorp/raft#697: after the install of a snapshot Raft may believe in entries that went with the
//     old log, and refuse what follows. The log is dropped whole, memory and disk are compared after
//     each install, and a difference is fatal. Trailing entries are many times those in flight, which
//     keeps it from happening in the first place.
//   - A leader that has lost sight of how far a follower is sends a snapshot that ends before what the
//     follower has committed, and Raft goes back to it, dropping entries that it acknowledged. The transport
//     answers such a snapshot without installing it. Likewise a request that begins before what the follower
//     has compacted away, all of it committed, begins where the follower's log does; Raft would refuse it.
//   - After a refused request Raft reads no more of a pipeline's answers, but may send once more and wait in
//     that for as long as it leads. The pipeline ends with the refusal.
//   - A leader that cannot apply an entry of its own term for Timing.Ready hands over: it would
//     otherwise hold the place and serve nobody.
//   - Pre-votes need the transport to implement raft.WithPreVote, or Raft silently does without.
//   - Raft.AppliedIndex is what was handed to the state machine. AppliedIndex here is what it applied.
//   - Snapshot thresholds count entries, and an entry here is a batch of any size. Compaction goes by
//     bytes, Raft's own triggers are off.
//   - VerifyLeader and the leader lease count answers to requests from before the question, so neither
//     proves leadership. Group offers neither.
//   - A newest snapshot that cannot be read, or restored, ends the start. Raft would take an older one.
//
// # Connections
//
// Each begins with a preamble (cluster, group, sender, addressee), and a refusal says why, so that a
// wrong address or a node of another cluster shows itself on both ends. Raft's own requests carry
// neither, and one of them, TimeoutNow, is obeyed whoever sends it.
//
// # What it does not do
//
// It does not authenticate peers by itself: ListenerConfig.Secure does, and the Listener holds every preamble
// against what it found. It does not batch, stamp or retry. It
// does not offer reads: they ride on entries.
package group
