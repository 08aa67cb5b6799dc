// Command jepsen runs the chaos suite.
//
//	jepsen run      makes a run: a cluster, workloads, faults, and judges it
//	jepsen check    judges a saved run again
//	jepsen list     the mixes, faults, workloads and checkers that there are, and what this machine has
//
// Exit status: 0 all that was judged holds, 1 it does not, or the run itself failed, 2 wrong usage.
//
// It needs Linux.
package main
