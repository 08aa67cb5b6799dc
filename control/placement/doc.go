// Package placement says, from what is known of nodes and replicas, which single step brings the replicas
// nearest to where they should be: spread over zones first and over nodes second, off nodes that are
// draining, removed or dead.
//
// Next does so for the partitions. NextControl does it for the control group, of which every node has a replica,
// and only some a vote. Place chooses the nodes of a new partition, NextSplit the partition that has too much to do.
//
// It is a pure function without memory: the next step is found from what is there, so it does not matter who
// made the step before, or whether it was finished.
//
// # Guarantees
//
// A step keeps a majority of the voters that are left up, and never leaves fewer voters than are wanted or
// than there were. A partition has one change at a time. From any start with enough nodes the steps end, and
// where they have ended nothing is moved until something changes. Only one partition at a time is moved for
// balance alone.
//
// A node whose disk has too little room keeps what it has, and gets neither a replica nor a leadership: it may hand
// its leaderships away by itself, and none comes back. A replica that has stopped for good counts for no majority.
// As a learner it is removed; as a voter it goes when one is too many, and else stays until its node is replaced.
//
// # The caller's duties
//
// Tell what is, not what should be: members as the group has them, a learner as caught up only when it has,
// how long a node has been down by a clock of one's own. Carry out a step, then ask again. Leave out
// partitions whose members are not known. See that a node which gave up a learner that had stopped for good does not
// open what is left of it when it is to have a replica again: that would stop too.
//
// It carries nothing out, and does not choose how many replicas there should be.
package placement
