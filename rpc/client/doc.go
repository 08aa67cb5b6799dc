// Package client talks to a cluster from a command line: it knows several nodes' addresses and gets an
// answer from whichever can give one.
//
// Guarantees: every attempt at a check carries the same decision id, so attempts do not add up, as long as
// all of them fall within the class's replay horizon; a definite answer is never asked for twice; an operator's
// call that changes something is asked again after an unknown outcome only where that is harmless, as the method
// says; a failure is a *quotaerr.Error. With TLS it talks to nodes of its own certificate's cluster only, whatever
// their CA; without a certificate, to nodes of any cluster that the CA knows. A token goes over TLS only, or stays
// on this machine. The client does not know the horizon, which can be as short as a second.
//
// The caller's duties: set a deadline on the context, well within the replay horizon; Close the client.
//
// It is not the gateway's SDK: it keeps no map, no hints and no failure modes.
package client
