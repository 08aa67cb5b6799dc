// Package class holds what a policy says to a gateway of each class: its timeout, its replay horizon, what to do when
// the owner is away, and whether it is switched off. It takes that from the watched configuration or a policy file.
//
// Guarantees: a Set does not change. A name that is not listed has the settings of default. What a set leaves out or
// says in a way that is not known is read as the strictest: deny.
//
// The caller merges sets, so that counters live on, and says which set holds.
package class
