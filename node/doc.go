// Package node is one node put together: its files, its replicas of the control group and of partitions, its
// Raft listener, its gossip and its gRPC and HTTP doors, from one configuration. It is what `quorate server` and
// `quorate dev` start.
//
// Guarantees:
//   - A cluster is made once, when an operator says so, by the node that was told to, after all nodes that it is
//     configured to join have said that they have nothing. A node with a new data directory takes part only when the
//     node that leads the control group says that this directory is one of the cluster's.
//   - A data directory whose log ends before what a node that answers saw it have does not take part.
//   - A start that is refused says one thing, why, and changes nothing in the data directory but its lock.
//   - Members of a group are changed by its leader, one at a time, towards what the cluster's state asks for: one goes
//     only when those that are to stay have their votes, and a majority of the rest is up.
//   - Slots move by plans, which the node that leads the control group drives: whichever that is goes on where the last
//     one was. A partition that is made for a plan gets slots only when each of its replicas has its vote. Until a plan
//     is decided it can be undone; after that both ends make their steps, however long it takes.
//   - Files of a partition are removed only when the control group's log has made it and taken it out again.
//   - A backup has all partitions as they stood while no slot moved, under one policy, each read back before it counts.
//     A restore reads all of a backup before it changes anything, on nodes that have nothing; when it is cut short, it
//     goes on with the same backup and takes no other. Both keep their files where they leave the room on the disk that
//     the node itself needs, and have one, or a few, partitions in memory beside its own.
//   - Checks are decided only under a policy lease, which says that the policy in force was confirmed by a majority of
//     the control group within the last ten seconds, and that the partition owned slots then.
//   - With TLS, a certificate that the other nodes would refuse ends the start before anything is touched; changed
//     files come into force without a restart, and bad ones do not. Without TLS it listens on loopback only.
//   - While it is not clear whether the node takes part, its doors are open and say what it waits for.
//
// The caller's duties: give Start a fatal function that ends the process at once, since a node whose disk
// has failed must not go on, and call Run once.
//
// It decides no quota and replicates nothing by itself.
package node
