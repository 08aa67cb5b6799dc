// Package bodies keeps policy bodies as files of one directory, each under its digest.
//
// # Guarantees
//
// A body has its name only when it is whole and on the disk, with the digest that the name says. A reader
// is told when what it read is not the body any more. Nothing is unbounded: bodies have a largest size,
// chunks too, and few can be written at one time.
//
// Sweeping needs no clock. The control group counts body epochs. Whoever asks for a body (Has, Put) says
// under which epoch, and the body stays at least through the next one; Sweep drops only what nobody
// names and nobody has asked for since. A body that was found at the start counts as asked for at the first
// sweep.
//
// # The caller's duties
//
// Call Sweep with the epoch that a committed entry began, and with everything that the state then names.
// Use the directory in one process only.
//
// It does not spread bodies among nodes, and does not know what is in them.
package bodies
