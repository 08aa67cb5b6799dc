// Package backup is the format of a backup: one file that holds a copy of a whole cluster, with what proves that it is
// whole and unchanged.
//
// # The format
//
// The file is a tar archive, so that a person can look into it with any tar. Its files come in this order:
//
//	format            "quorate backup 1": what it is, and the version of this format
//	control           what is taken over of the control group's state
//	audit.jsonl       the audit trail, a record a line
//	bodies/HEX        the policies' bodies, each under its SHA-256
//	partitions/pN     the state of each partition
//	manifest.json     what the others are: of which cluster, when, and the size and SHA-256 of each
//	manifest.sha256   the SHA-256 of the manifest, as sha256sum writes it: it names the backup
//
// What is in control and in the partitions is for others to know; here they are bytes.
//
// # Guarantees
//
// For given files, manifest and instant there is one file, to the byte: headers are compared with those that Writer
// writes, padding and end must be zeros, names are those above and in their order, and nothing follows. So whatever is
// cut off, changed or added is refused, and nothing in a file decides where anything is written. Errors are one line
// and wrap one of ErrForeign, ErrNewer, ErrTruncated and ErrDamaged; a damaged one names the file within the backup.
//
// Everything streams: of a file's content no more than a buffer is in memory, of the manifest all, which is bounded.
// Reader and Verify take any bytes.
//
// # The caller's duties
//
//  1. Give Writer the files in their order, each with its size, then the manifest by Close.
//  2. Use nothing that Reader gives for anything that lasts before its Next has said io.EOF: the proof is at the end.
//     Open reads all of it first, and then again what is asked for.
//  3. Keep a file that Open was given unchanged meanwhile. What has changed is refused when it is read.
//
// It does not prove who made a backup: whoever can write one can make another. It does not compress or encrypt, and
// does not know what a partition is.
package backup
