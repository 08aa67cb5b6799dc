// Package bench puts a load on a service that decides checks, and measures what comes of it.
//
// A Load is either a closed loop, in which each of a number of clients sends its next check when the one before was
// answered, or an open one, in which checks are due by a Schedule that does not care how the service fares. In an
// open loop the latency of a check runs from the instant at which it was due: a service that stands still for a
// second delays all that was due in that second, and the percentiles show it. Nothing is left out: what failed, and
// what was given up, is in the percentiles with the time that it took.
//
// # Guarantees
//
// What is measured is what happens between the end of the warm-up and the end of the duration. A closed loop counts
// what was answered in that time. An open loop counts what was due in it, and its rate runs until the last of it was
// answered, so that a backlog cannot pass for throughput. A canceled Load ends in an orderly way: no more is sent,
// what is under way is waited for, and the report is of the part that was measured.
//
// Keys are numbered, and the number alone says whether a key belongs to the exhausted share and what it is called:
// two runs with the same arguments ask for the same principals.
//
// # The caller's duties
//
// Give the class a policy whose limits, timeout and failure mode suit the measurement: the limits decide which share
// is denied, and a timeout of 100 ms turns a queue into unavailability. Use a fresh prefix where usage of an earlier
// run would disturb. Run the generator on a machine of its own where its share of the processors matters; the report
// tells what it used.
//
// # What it does not do
//
// It is no correctness test: it counts outcomes and does not judge them. It starts no cluster. It knows the products
// that it can be compared with as Targets alone: package peers, a module of its own, has them.
package bench
