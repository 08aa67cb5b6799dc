// Package admin answers operators: what they look at, and what they change.
//
// # Guarantees
//
// Whatever changes something is in the audit trail with who asked and why, together with the change itself where
// that is one of the control group, else before it is made. What is refused is there too, but for a node that
// could not answer at all, and before there is a cluster. The log alone has the hand-overs of leadership that the
// cluster makes in the name of ItselfName. A backup is there before its first byte, and which it was after its last.
//
// A change is made by the node that leads the control group, or the partition, and by no other: elsewhere the
// answer is not_leader, and names who does. An error of any other reason than outcome_unknown says that nothing
// was changed.
//
// A policy is put in force only after this package has decoded and checked it, whoever sent it, and only when a
// majority of nodes holds its body.
//
// What is looked at is as of after the call, and not_leader where this node cannot say that, so that the call is
// passed on. While the control group has no leader at all it is what this node has, which may be old; of the
// audit trail that is said. Whether a revision is active everywhere is so whichever node says it. DownloadPolicy
// alone is never passed on: it is as of after the call where this node can catch up with the control group, else as
// this node has it, and the answer says which revision that is.
//
// # The caller's duties
//
// Authenticate and authorise. Pass a call on when the answer is not_leader. Call Token for each call with a
// secret: a revoked one counts no more as soon as this node knows.
//
// # What it does not do
//
// It does not speak gRPC, moves no replica and decides no quota. It asks the rest of the node by Cluster.
package admin
