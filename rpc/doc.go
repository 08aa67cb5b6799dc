// Package rpc is a node's edge: the gRPC services of quorate.v1 and the HTTP API, forwarding to the
// node that leads a principal's partition, and the translation of answers and errors.
//
// Guarantees:
//   - It decides nothing. An answer is what the Backend, or the node that was forwarded to, decided;
//     any outcome but a plain allow is rendered as not allowed.
//   - A malformed request is answered invalid_argument before the Backend sees it.
//   - Each check that a stream took in gets one answer there, or the stream breaks. A stream that the node ends, since
//     it stops or was sent what is no frame, ends after those answers; who does not read them is not waited for longer
//     than half a minute, and told that the outcome is unknown. What was answered while a frame of answers was on its
//     way leaves as the next one; nothing waits for company. One check's fault is its own, one frame's the stream's.
//   - Streamed checks that this node leads are asked of a [Queuer] together, by frames. What it does not settle goes on
//     like any other check, as if it had been asked alone before.
//   - A check is passed on at most once, with its decision id, the identity that the first node
//     authenticated, and the caller's deadline.
//   - After an attempt whose fate is unknown, only a decision settles the check, and no further
//     attempt starts later than half the replay horizon after the first: the same id could be
//     decided anew once its record has ended.
//   - An operator's call is answered by the node that is asked, or passed on to the one that it names, which does
//     not pass it on again; asked again only while it has certainly changed nothing.
//   - A watch is told the newest configuration at once, then each change, those in quick succession as one; a
//     reader that is slow is told the newest only. Each change is encoded once, for all watches. Where nothing changes,
//     the watch says that every two seconds.
//   - Without TLS it listens on loopback only. With TLS every call is allowed by the role in its caller's
//     certificate (one table, access.go), checks also by the classes in it, and a gateway's decisions are recorded
//     under the name in it. Only the probes /livez and /readyz are open to all. Whoever shows a token over gRPC is
//     judged by that instead, also without a certificate; a token is in no log and no answer.
//   - Refused calls that would have changed something are noted in the audit trail, a few of each caller's.
//   - Every queue, wait, message and connection count is bounded; one gateway's streams have three quarters of the
//     checks that may be unanswered, at most, and are read no further while their answers are not. No name that a
//     caller chooses reaches a metric's label.
//
// The caller's duties: a Backend that honours contexts, whose Admin.Token answers at once, and Shutdown before the
// Backend is closed.
//
// A further method of the Admin service is a line in operations (admin.go), one in access (access.go) and a method of
// the interface Admin; a stream is a method of adminService besides.
//
// It does not make or read certificates (see internal/identity), keep tokens, policies or usage, or batch.
package rpc
