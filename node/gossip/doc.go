// Package gossip finds the other nodes of a cluster and says which of them seem to be up. It wraps hashicorp's
// memberlist.
//
// What it tells is a hint: addresses to try, and a reason to look at a node more closely. Who is a member, who
// owns or leads anything, and whether a node may be replaced are decided by logs and epochs; nothing that must be
// right may rest on what is seen here, and everything must go on, slower, without it.
//
// Guarantees:
//
//   - Each packet and each stream is sealed with AES-256-GCM under the cluster's key, with the cluster id as
//     label. What is not is dropped before memberlist reads it: a node of another cluster, or with another key, is
//     never seen. Only where both the bind and the advertised address are loopback may the key be missing; then
//     one made from the cluster id takes its place, which keeps clusters apart but protects nothing, and nothing
//     is sent to an address that is not loopback.
//   - A node is seen alive from when it was heard of until it missed its probes or said that it leaves, and as not
//     alive from then on. At most 1,024 nodes are known; when one more comes, the one that has been gone longest is
//     forgotten.
//   - Nodes that were parted find each other again: while this node is alone, or misses a seed or a node that it
//     has seen within the last hour, it asks some of them now and then, at most 16 a time, at intervals that are
//     drawn at random.
//   - A second node with the name of another is not taken in while the first is up, nor for half a minute after it
//     went down without saying so. Both are logged.
//
// What somebody without the key can do: make this node read packets of up to 4 KiB, each of which costs one
// attempt to open it, and hold up to 32 streams of up to 1 MiB for up to 5 s; at that bound the oldest is ended
// for the next one. Refusals are logged as a count. There is no protection against replays: recorded packets and
// streams of this cluster can be sent again, which may show a node as gone until it has answered, or make this
// node answer or pass on a probe. So at most 2,000 packets a second are taken, and 64 streams served at a time;
// what comes beyond is dropped.
//
// What somebody with the key can do: lie about all nodes, also about others than himself, and so hide or invent
// them. He cannot make this node crash or use memory without bound: memberlist before v0.7.0 trusts lengths and
// lists that it is sent, so what is sealed is inspected too, and compression, user messages and user state, which
// Quorate does not use, are refused.
//
// The caller keeps the key secret, gives the same one to all nodes, reads Changed in one place, and closes what he
// opened. After Close some of memberlist's goroutines may go on for up to four probe intervals (8 s); they send
// nothing.
package gossip
