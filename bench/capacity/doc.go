// Package capacity says how large a cluster has to be for a load: how many owners and nodes, how much memory,
// network and disk.
//
// It is arithmetic from a table of figures, each with its source. What was not measured says so. The figures are of
// one machine: put your own in their place where they matter, with `quorate bench` on the machines that you mean to
// use.
//
// # What it does not do
//
// It knows no prices. It assumes that principals are spread evenly over the owners, which a keyed hash sees to
// unless few principals make most of the load; one principal never gets more than one owner. It plans for the load
// that is given: peaks, and the loss of a node, are the business of the headroom.
package capacity
