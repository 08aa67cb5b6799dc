// Package envoyimport turns the configuration of Envoy's ratelimit service into a policy.
//
// Each limit becomes a class, and the descriptors that it is for become rules of the policy's section envoy. What has
// no exact counterpart is told, with what became of it.
//
// Guarantees: through the imported policy no more is admitted in any window of a limit's length than the limit's
// number, where the original admits up to twice that around the turn of a window; a month counts as 31 days, a year as
// 366. What the original lets through without counting, because no descriptor of its configuration matches, is let
// through.
//
// The caller's duties: show the notes to who imports, and let him decide about the policy's default, which blocks.
//
// What it does not do: read files, or talk to a cluster.
package envoyimport
