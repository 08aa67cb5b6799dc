// Package handoff says which step a plan that moves slots needs next, be it a split, a merge, a move, a recovery or a
// restore.
//
// A plan is recorded in the control state (package control/state), which alone decides it. Its ends are the state
// machines of two partitions (package fsm), each of which makes a step once, answers a repeated one alike, and refuses
// all steps of a plan that has ended there. Between them is a driver: whoever leads the control group. [Next] tells it
// what to do, as a pure function of what it knows; [Driver] is what it knows, gathered from the answers. Neither reads
// a clock, and neither carries anything out.
//
// # Guarantees
//
// The freeze is committed before the destination is opened, the decision before the destination is activated, and the
// activation before the source is released. A plan that was decided is not aborted, one that was aborted is not
// activated. Drivers may change, overlap, sleep and repeat themselves at any step.
//
// A plan ends, done or undone, once the control group and both ends answer: before the decision it is aborted when its
// slots were frozen for FreezeLimitNanos, when it has come no further for StuckLimitNanos, or when a step was refused
// for good; after that every step is tried until it is made. An end that owns no slots is not waited for when the
// rest is done; nor is one whose recovery was decided meanwhile, since that has taken it out of the plan. A recovery
// that is open or was aborted takes nothing out of a plan: that waits, and goes on when the partition answers again.
//
// # The caller's duties
//
//  1. Drive a plan only while leading the control group, with the state that this node has applied; whatever that was
//     answered is in it. One driver per plan; ask Next, pause, carry out, Note, and again.
//  2. Ask an end at the leader of its partition, and have it answer only after it has applied an entry of its own
//     leadership: what it says must be committed. Say that a step was refused for good only when it was, by the state
//     machine.
//  3. Give a step up after WithinNanos, or as soon as the plan's phase has changed, and note that as a failure.
//  4. At a destination, one pull of a plan at a time: a new one ends the one before. A pull that brings nothing for
//     PullStallNanos fails. A pull from a replica or a backup answers with the manifest of what it has read, also where
//     there was nothing to fetch, and where the destination is sealed.
//  5. Grant no policy lease to a partition that owns no slots. A recovery rests on it: nobody has frozen the partition
//     that it replaces.
//  6. Note in the audit trail, by the comment of the abort, why: that is Step.Why.
//
// What it does not do: choose what is to move, and where to.
package handoff
