// Package storage keeps what one Raft group must not forget: its log, its term and vote, and its
// snapshots, each in a directory of the group's own. It also ties a data directory to the one node
// that may use it.
//
//	DIR/wal/         the log (backend "wal": raft-wal in segments of 8 MiB), or
//	DIR/log.db       the log (backend "boltdb")
//	DIR/stable.db    term and vote (bbolt)
//	DIR/snapshots/   the two newest snapshots
//
// # Guarantees
//
// Fail-stop. A write or sync that failed is never retried and never taken for done: the page may be
// marked clean although it is not on the disk. The first failure calls Config.Fatal, which is to end
// the process, and every later write fails as well. The same for an entry or a snapshot at start that
// cannot be read, and for a write that does not come back (hashicorp/raft#503: a leader whose disk
// hangs goes on sending heartbeats, so nobody takes over).
//
// The vote is one write. Raft writes the term of a vote and its candidate one after the other
// (hashicorp/raft#661). A crash between the two would leave the new term with the candidate of an
// older vote, who would then be granted the new term without a look at its log.
//
// Snapshot and log agree. When a crash came between the install of a snapshot and the removal of the
// log that it replaced, Open removes that log: raft-wal would refuse the next entry as not contiguous,
// and entries that conflict with the snapshot would be offered for ever (hashicorp/raft#697). A log
// that begins after the end of the newest snapshot is refused, as is a newest snapshot that cannot be
// read: Raft alone would fall back to an older one.
//
// # The caller's duties
//
// Claim the data directory before anything is opened in it. Close the Store only after Raft has
// stopped. Let Fatal end the process; when it returns, the Store stays failed.
//
// # What it does not do
//
// It does not notice a flipped bit inside an entry, nor a log that was cut at an entry's end or removed:
// neither backend does. Entries carry a checksum of their own, which is checked when they are applied.
package storage
