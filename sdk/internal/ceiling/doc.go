// Package ceiling bounds, coarsely and in fixed memory, how many checks of one principal leave this gateway in a
// second.
//
// Guarantees: a principal with at most the ceiling's number of checks in any second of this process's clock is let
// through, but for the chance, below one in a million per pair, that it shares both of its cells with another one that
// hammers; a principal beyond it is not. The memory does not grow with the principals. Letting through allocates
// nothing.
//
// It is no quota: at the turn of a second up to twice the ceiling may pass.
package ceiling
