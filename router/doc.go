// Package router finds the partition, and the node, that decides for a principal, and says what to do after
// an error.
//
// # Guarantees
//
// A [Map] is immutable; a [Table] holds the newest that it was given and never goes back to an older one, or
// to that of another cluster. Looking a principal up takes one hash and no lock. What errors teach of
// leaders is kept beside the map, and only while it belongs to the epoch that the map gives.
//
// [Next] is a pure function of what is known of a decision so far and of the last error: it never sends more
// often, or later, than a gateway may, and it says when something may have been consumed. An attempt that could not
// be sent is none of the sends that a decision has: while no node can be reached it goes on, with growing waits, for
// as long as there is time, so that a restart of the nodes is outlasted by who may wait for it.
//
// It also says when a class's failure mode decides: where no owner could be reached, and only there. That is so if
// an attempt could not be sent or got no answer, or met a node without a majority or lease, and if no node leads:
// not_leader is a reason to ask elsewhere and to wait, and when time or sends are over with it as the last word, an
// election has outlasted the decision. It is the same outage to the user whichever of these his attempts met, and
// in whichever order. It is not so once a move of slots or a change of policies was seen, nor where the last answer
// is that of an owner, nor for a lone not_leader that names a leader who was not asked for want of time or budget.
//
// # The caller's duties
//
// Send every attempt of a decision with the same decision id. Give Update each map that comes. Tell Learn of
// each not_leader and wrong_epoch. Add jitter to waits, upwards only.
//
// # What it does not do
//
// It opens no connection, holds no usage and decides no quota: an owner checks slot and epoch itself, so a
// wrong route costs a round trip and nothing else. It imports nothing of the server.
package router
