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
//   - Checks are decided only under a policy lease, which says that the policy in force was confirmed by a majority of
//     the control group within the last ten seconds.
//   - With TLS, a certificate that the other nodes would refuse ends the start before anything is touched; changed
//     files come into force without a restart, and bad ones do not. Without TLS it listens on loopback only.
//   - While it is not clear whether the node takes part, its doors are open and say what it waits for.
//
// The caller's duties: give Start a fatal function that ends the process at once, since a node whose disk
// has failed must not go on, and call Run once.
//
// It decides no quota and replicates nothing by itself.
package node
