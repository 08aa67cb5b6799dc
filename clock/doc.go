// Package clock keeps partition time: the time that a partition's leader writes into the log and by
// which admissions expire.
//
// What it guarantees: the offset between partition time and true time, taken where each stamp is drawn,
// never grows along the log, as long as no machine's CLOCK_MONOTONIC_RAW runs fast by more than the drift
// bound. So two admissions that are W apart in partition time are at least W apart in reality. By default it
// needs no wall clock, and it compares no clocks of different machines.
//
// The caller's duties, with the names of the rules that they carry:
//
//   - T1: put the term that a stamp was drawn for into the entry, and refuse an entry that the log holds
//     in another term.
//   - T2: call [Timeline.Lead] only after an entry of the leadership's own term has been applied, and draw
//     stamps for that term only.
//   - T3: call [Timeline.Applied] after each stamped entry, and [Timeline.Restored] after each snapshot.
//   - T4: draw the stamp after the batch is closed, and propose at once; take the larger of a stamp and
//     the partition time before it.
//
// T5, the span since the anchor by the slower of two clocks, is this package's own.
//
// Downtime of all replicas keeps admissions longer by as much, unless [TrustBounded] lets the wall clocks
// prove, once at the start of a process, how long it was. For that the caller makes the [Timeline] when
// the process starts, and puts [Timeline.WallBound], drawn after the stamp, into each entry. With it the
// guarantee rests on wall clocks that are off by no more than their kernels say, or five seconds.
//
// Leases run the other way round, on the faster clock. [Pace] lets followers notice a leader whose time
// runs fast; [WallWatch] tells of wall clocks that jump. Nothing here is persisted: readings mean nothing
// on another machine or after a restart.
package clock
