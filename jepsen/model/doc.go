// Package model runs the state machine alone, fast and by a seed: two or three partitions of three replicas each, on
// machines with clocks of their own, whose true time only the run knows. Leaders come, go stale and come back; stamps
// are held over; entries are lost and inherited; replicas restart, and are sent snapshots whose pieces were written
// between entries; policies change; slots are split off, merged and moved, step by step, with steps lost, repeated, too
// early and undone. Callers ask with weights, for several classes at once, again under the same id, under old routes,
// and at the very nanosecond at which something ends.
//
// The state machine and the timelines are the product's. What carries them, a log that is agreed on, is the model's,
// without goroutines, so a seed gives a run whole.
//
// # What a run shows
//
// A judge that knows the true time and counts by itself sees every entry once, as the first replica applied it, and all
// replicas at each entry: see the invariants in judge.go.
//
// # What it does not do
//
// Raft, disks, queues and the network are not in it: package sim has those.
package model
