// Package jepsen is the chaos and failover suite: a module of its own, which the product does not need.
//
// In model the state machine and its timelines run alone, by seeds, before a judge that counts by itself.
// In sim a whole cluster runs in one process under a simulated network, disk and clock, thousands of
// schedules a minute; in disk real processes lose their power, their space or their disk; in cluster
// they are killed and paused while nodes and policies come and go; in gateways the processes that ask
// them are real as well, and know them only through the SDK. All three run nodes with process. Package
// mutants leaves out one rule of the product at a time, and wants the checker that is there for it to notice.
package jepsen
