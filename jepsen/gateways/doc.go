// Package gateways is the suite for what gateways do with the SDK: processes that know a cluster only through it, while
// the cluster's nodes are killed, stopped and slowed, its partitions split and its policies changed.
//
// Its tests show what the SDK promises: that all gateways' verified allows together keep every cap; that what is let
// through without one is let through only where the policy says so, and counted; that each class's failure mode does
// what it says while the cluster is away, and ends when it is back; that a slow owner costs no more than the class's
// timeout; and that most denials need no owner, and none comes too late.
//
// A gateway is a process of its own, the command in folder gateway, which tells of each check what was asked, when, and
// what came of it. Only that and the client's counters are judged. What an owner has decided is put together into one
// History of package cluster and examined there; when exactly an admission was decided is not known, only between which
// two instants, so that nothing is blamed wrongly. The judges here are shown, by invented events, to blame.
//
// All is on loopback, bounded in time and number, and ends with the test: the nodes as children of it, the gateways
// with the end of their input. The tests need Linux, and nothing else but, for one of them, wrk: QUORATE_WRK=1 asks for
// that one, which is skipped without. QUORATE_BINARY is the program under test, an absolute path; else one is built.
// QUORATE_GATEWAYS_SECONDS is for how long leaders are killed; without it 45, and 30 where the reference gateway stands
// between: that one is judged by what its callers and its upstream see.
package gateways
