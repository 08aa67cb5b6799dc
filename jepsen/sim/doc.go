// Package sim runs a whole partition cluster in one process, in simulated time: the real Raft behind the
// real group with its guards, the real partition, state machine, timeline and stores, over a simulated
// network, disk and clock. It is meant for a bubble of testing/synctest, whose clock is true time.
//
// A seed gives the faults and when they come. It does not give the order in which goroutines run, so a seed
// that fails may have to be run a few times before it fails again.
//
// # What a run shows
//
// That no fault of the model breaks an invariant: the exact cap in true time, one result for each decision
// id, no acknowledged allow lost, equal states at equal log indexes, one leader in each term, nothing
// committed without a majority that holds it durably, an end to every call, and life after the faults.
//
// # What it does not do
//
// Client connections, TLS, the encoding of Raft's requests, the file system and the operating system are
// not in it: package disk and the end-to-end tests of the command have those.
package sim
