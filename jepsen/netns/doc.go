// Package netns puts nodes on a network of their own that can be broken in every way: each of them, and the clients
// that ask them, gets a network namespace with one TUN device, and a switch in this process carries the IP packets
// from one to another. What they send goes through the kernel's own TCP, so that connections behave as they do
// between machines: a packet that is lost is sent again, and a link that carries nothing tells nobody.
//
// Each directed link has a process.Condition: it drops, delays, holds, loses or duplicates packets, and counts what
// it did, so that whoever breaks a link can show that the break was in effect. A link keeps 4 MiB and 4,096 packets
// at most that are late or held, and drops what is beyond.
//
// A namespace has no name. It lives as long as the thread that made it, sockets and processes in it, and the
// descriptor that is kept of it: nothing stays behind, however this process ends. The machine's own devices, routes
// and filters are not touched. A process that was started in a namespace ends with the Fabric at the latest, if it
// was to end with the thread that started it.
//
// Callers end processes before they close the Fabric. Only IPv4 is carried, unicast within the Fabric; there is no
// way out.
//
// It needs Linux, /dev/net/tun, and root: Available tells. The tests are skipped without; QUORATE_NETNS_REQUIRED has
// them fail instead.
package netns
