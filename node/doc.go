// Package node is one node put together: its files, its replica of the partition, its Raft listener and its
// gRPC and HTTP doors, from one configuration. It is what `quorate server` and `quorate dev` start.
//
// The caller's duties: give Start a fatal function that ends the process at once, since a node whose disk
// has failed must not go on, and call Run once.
//
// It contains no logic of its own beyond the order in which things start and stop.
package node
