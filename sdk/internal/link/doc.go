// Package link is the connection to one node: it sends checks over a CheckStream, as many as there are in one frame,
// and brings each its answer.
//
// Guarantees: what queued while the last frame was being sent, or while answers were being handed out, leaves in the
// next one, with no timer in between; a frame has at most bound.FrameChecks and bound.FrameBytes. Each check gets
// exactly one result, by its deadline. A result says whether the check may have left: of what was handed to a stream
// that broke, or that the caller stopped waiting for, the fate is unknown; of what was still queued nothing can have
// been consumed, and if its time ended there while the node took what it was sent, the result says that it is crowded,
// and not that the node is away. An answer that has come in counts, also when its stream has ended meanwhile. A node
// that has answered nothing for SilentAfter although checks were sent, has not taken a frame in for so long, or a
// stream to which has not opened, is given up: its stream ends, all its checks get a result, and Suspect says so for a
// while. One that merely answers late is not, nor is one for checks that never left. The next check opens a stream
// again. No goroutine or timer is left after Close.
//
// Checks are encoded and answers decoded here, without the messages of the contract: byte for byte as proto.Marshal
// does the one, and exactly as proto.Unmarshal does the other, what it refuses included.
//
// The caller bounds how many checks it asks at once, and keeps its calls: a check that nobody waits for any more is
// not kept. It gives strings that are UTF-8. It retries, under the same decision id.
package link
