// Package node is one node put together: its files, its replica of the partition, its Raft listener and its
// gRPC and HTTP doors, from one configuration. It is what `quorate server` and `quorate dev` start.
//
// Guarantees:
//   - A cluster forms once, when all its nodes say that they have nothing, by the first of them. A node with
//     a new data directory takes part only when the others tell that no other directory of it is counted on.
//   - A data directory whose log ends before what a node that answers saw it have does not take part.
//   - A start that is refused says one thing, why, and changes nothing in the data directory but its lock.
//   - Members are added and promoted by the leader, one at a time, and removed only when an operator asks,
//     when a majority of the rest is up.
//   - With TLS, a certificate that the other nodes would refuse ends the start before anything is touched; changed
//     files come into force without a restart, and bad ones do not. Without TLS it listens on loopback only.
//   - While it is not clear whether the node takes part, its doors are open and say what it waits for.
//
// The caller's duties: give Start a fatal function that ends the process at once, since a node whose disk
// has failed must not go on, and call Run once.
//
// It decides no quota and replicates nothing by itself.
package node
