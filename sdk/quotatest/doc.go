// Package quotatest is a fake Quorate for the tests of whoever calls one: nodes on loopback, or in memory, that speak
// quorate.v1.Quota and decide by a policy file, in this process, with a clock of the test's choice and with every
// failure that a gateway has to cope with.
//
//	server := quotatest.Start(t, `
//	version: v1
//	default: {limits: [{name: default, limit: 100, window: 60s}]}
//	classes:
//	  convert: {limits: [{name: per-minute, limit: 3, window: 60s}], on_unavailable: deny}
//	`)
//	client, err := sdk.New(server.Addrs(), sdk.WithDialOptions(server.DialOptions()...))
//
// Guarantees. It decides as the real cluster does, which its tests show by asking both the same: the rolling log of
// each principal and class is exact, with its left edge outside; limits of overrides, tiers and groups and further
// charges are one decision; a decision id is answered from its record within the replay horizon; and what is refused is
// refused for the same reason. Several nodes share what is decided, as replicas do; a node that does not lead a
// principal's partition forwards, and the answer names the leader. Everything it keeps is bounded, and nothing outlives
// Close, which Start calls at the test's end.
//
// After a change of the policy or the map, Await waits until a client has taken it. Heal ends the failures that were
// set, of nodes that run; Restart starts those that were stopped.
//
// Under testing/synctest use InMemory: then no file descriptor is waited for, and time is the bubble's.
//
// The caller's duties: only tests use it. It listens in plaintext, and whoever connects is the gateway "insecure".
//
// What it does not do: keep anything, elect (a test says who leads, and when), authenticate, speak TLS, HTTP or the
// administrators' services. Where the real cluster enforces an earlier rule beside a new one with a longer window until
// that is exact, the fake, which forgets nothing that old, counts by the new one alone. Logs are never packed, however
// long they get.
package quotatest
