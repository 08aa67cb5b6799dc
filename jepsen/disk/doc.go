// Package disk runs a cluster of real processes, each on a disk of its own that can fail: lose its power, fill
// up, or die under the running node. Its tests show what Quorate promises about disks, and that they would
// notice if it did not hold.
//
// A disk is an ext4 file system in a file, mounted by a loop device (Image). A power cut is the ioctl with which
// the kernel shuts a file system down without writing its journal, then kill -9: after the next mount, which
// replays the journal, only what had been synced is there. kill -9 alone shows nothing about syncs, since what
// was written stays in the kernel's cache. The same ioctl without the kill is a disk that dies: every write
// fails from then on.
//
// A Load has decisions made all the while and records each as sent or acknowledged. Each is one of its own, of
// a limit that they do not reach, so afterwards all can be accounted for: an acknowledged allow that is asked for
// again must be the recorded answer, and what was sent must be consumed once and not twice.
//
// Beside it an operator acts on the cluster all the while (Acts), publishing policies and making tokens, so that the
// control group, its audit trail and the policies' bodies have something to lose too: what was acknowledged must be
// there afterwards, the trail must tell of exactly what is there, and each node must be able to show the policy.
//
// The tests need Linux, root, loop devices and mkfs.ext4; without, they are skipped, and fail when
// QUORATE_DISK_REQUIRED is set. They run in a mount and process namespace of their own, so that neither a mount
// nor a process outlives them. The environment:
//
//   - QUORATE_BINARY: the program under test, an absolute path; else one is built.
//   - QUORATE_DISK_ROUNDS: how often each fault is repeated; else once.
//   - QUORATE_DISK_REQUIRED: not to be skipped.
package disk
