// Package storage keeps what one Raft group must not forget: its log, its term and vote, its snapshots,
// and how far this node has acknowledged. It also ties a data directory to the one node that may use it.
//
//	DIR/wal/         the log (backend "wal": raft-wal in segments of 8 MiB), or
//	DIR/log.db       the log (backend "boltdb")
//	DIR/stable.db    term and vote (bbolt)
//	DIR/snapshots/   the two newest snapshots
//	DIR/floor        how far this node has acknowledged
//
// # Guarantees
//
// Damage is noticed. Each entry is stored with a checksum and with the hash of the whole log before it,
// each value of the stable table with a checksum, each snapshot with a hash of what it says of itself
// beside Raft's checksum of its state. All of it is read and checked by Open; an entry once more each time
// it is read from the disk. The floor says where the log must reach, with which entry, and which term and
// vote must be there, so that a log or table that was cut, went back in time or was exchanged is noticed
// too. What does not add up is refused with ErrDamaged, in one line with the remedy.
//
// Nothing acknowledged is repaired. Open verifies with everything open for reading only; a refused disk is left as it
// was, to the byte.
//
// A good disk is never refused, whatever point a crash or a power cut comes at: see floor.go.
//
// Fail-stop. A write or sync that failed is never retried and never taken for done: the page may be
// marked clean although it is not on the disk. The first failure calls Config.Fatal, which is to end
// the process, and every later write fails as well. The same for an entry that turns out to be damaged
// while running, and for a write that does not come back (hashicorp/raft#503: a leader whose disk hangs
// goes on sending heartbeats, so nobody takes over).
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
// Claim the data directory before anything is opened in it, and Record a group before anything is
// acknowledged from its stores: Config.First is true only until then. Close the Store only after Raft has
// stopped. Let Fatal end the process; when it returns, the Store stays failed.
//
// # What it does not do
//
// It does not notice a whole data directory that was replaced by an older copy of itself: all of it agrees.
// Other replicas know. It does not notice the loss of what was written in the last second or so before a
// power cut if the disk had confirmed it and lost it nevertheless: the floor is synced once a second.
// It is no protection against somebody who changes data on purpose. It repairs nothing.
package storage
