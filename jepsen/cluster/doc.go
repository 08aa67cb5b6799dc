// Package cluster runs a cluster of real processes, as people would: certificates by `quorate cert`, TLS and an
// encrypted gossip, `cluster init`, and the commands of an operator, while processes are killed, paused and cut off.
// Its tests show what Quorate promises of a cluster that lives: that nodes come and go, policies change, slots move
// between partitions, data directories are lost and backups restored, and no cap is ever broken.
//
// A Load asks many nodes for the same few allowances, repeats what it got no answer to, and records each attempt with
// the instants at which it was sent and answered, by this machine's monotonic clock. Examine then goes through that
// History. When an admission was decided is not known, only that it was between its sending and its answer; so only
// what is certain counts: admissions that were made within one window wherever in these intervals they lie. What
// never got an answer counts as nothing. So Examine never blames wrongly, and TestChecker shows that it does blame.
//
// The nodes are children that end with the test, however it ends. The tests need Linux, and nothing else. The
// environment:
//
//   - QUORATE_BINARY: the program under test, an absolute path; else one is built.
//   - QUORATE_CHAOS_BINARY: the same with the build tag chaos, for TestMoves; else one is built.
//   - QUORATE_CLUSTER_SEED: a seed that was printed, to draw the same faults, principals and changes again.
//   - QUORATE_CLUSTER_LOGS: a directory that the nodes' logs are copied to in the end.
//   - QUORATE_MOVES: all, for all cases of TestMoves; else it runs cases for a minute.
//   - QUORATE_BENCH_RATE: how many checks a second BenchmarkFreeze asks for; 1,000 without it.
//   - QUORATE_BENCH_KILLS: how many leaders BenchmarkFailover kills; 50 without it.
package cluster
