// Package quotaprom gives a client's counters to Prometheus.
//
// Guarantees: the only labels are class, which is one that the policy lists or default, and outcome, of a fixed set; no
// principal is ever one. Collecting reads counters and asks nobody.
//
// The caller registers the collector, one per client and registry.
package quotaprom
