// Command gateway is a gateway with nothing behind it: it has checks decided by the SDK as its test says, and tells
// what came of each. It knows of the cluster only what the SDK's API gives.
//
// It reads commands and writes events as package talk has them, and ends when its input does. Its flags are the nodes'
// addresses and the TLS files; -policy gives the client a policy file.
//
// It needs Linux.
package main
