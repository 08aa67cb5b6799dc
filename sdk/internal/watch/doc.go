// Package watch follows the cluster's configuration: the partition map and what the policy says of each class.
//
// Guarantees: it follows one node at a time, over a connection of its own, and goes to another one, in random order,
// when the node breaks off, says something that cannot be, nothing for SilentAfter, or for BehindFor an older map or
// policy than was seen elsewhere, which confirms nothing meanwhile. An older policy revision than one that was seen is
// not taken, unless the cluster was restored since; nor is anything of another cluster, or of none. Live says whether
// the configuration was confirmed within LiveFor.
// While it looks for one to follow, a node that says nothing is not waited for alone: another one is tried beside it
// after a quarter of a second, three at a time at most, and the first whose configuration holds is followed. Why none
// can be is logged when it changes, and kept as LastError.
//
// The caller is told of each change by its Sink, from one goroutine. Run ends with its context, and leaves nothing
// behind.
package watch
