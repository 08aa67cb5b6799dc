// Package audit keeps the audit trail of one replica of the control group: who did what, when, why, and
// what came of it, refused attempts included.
//
// The trail is a bbolt file beside the stores of the group. Each record is kept under the index of its log
// entry together with the running hash of the trail up to it, so that replicas can be compared, and damage is
// found: Open reads and checks everything.
//
// # Guarantees
//
// Append is durable when it returns, and idempotent: a record that is there already must be the same. The
// newest Max records are kept. A snapshot streams the trail as of one record while later ones are
// appended. Nothing is repaired: a file that is damaged is refused, with the remedy. The file holds nothing
// that the group's snapshot and log do not, so with the file gone a start makes it anew.
//
// # The caller's duties
//
// Append in the order of the log, from one goroutine. Treat every error of Append as the end of the process:
// what is on the disk is then unknown. Release each Cut.
//
// It does not decide what is recorded; the control state does.
package audit
