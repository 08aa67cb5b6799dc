// Package talk is what a gateway process and the test that drives it say to each other: the test writes commands to
// its standard input, the gateway events to its standard output, each one line of JSON.
//
// Instants are nanoseconds of this machine's monotonic clock, which is one for all its processes, so that the test can
// put what several gateways saw in order.
//
// The caller's duties: to read what is written, or the gateway stands still. The package neither starts nor judges
// anything. It needs Linux.
package talk
