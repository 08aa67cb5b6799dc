// Package process runs nodes as real processes: it builds the program under test, finds free ports, starts, kills and
// pauses a node's process, cuts it off from the others, tells why it ended, runs commands, and waits for conditions.
//
// A process ends with the one that started it, however that ends. Nothing here knows what a cluster is made of: the
// packages beside it lay nodes out, form clusters, and judge what they do.
//
// It needs Linux.
package process
