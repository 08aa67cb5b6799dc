// Package rolling keeps the limits of the failure mode local: for each principal and class an exact rolling log of what
// this gateway has admitted by itself.
//
// Guarantees: the costs that were admitted of a principal and class in any window (t−W, t] never sum to more than the
// limit that was given; several charges are admitted together or not at all; nothing that still counts is evicted, at
// the bound new admissions are refused. Memory is bounded by the admissions that are held. A class holds at most as
// many as it leaves free, so that a flood of invented principals in one class takes half of the room, and never that of
// all others.
//
// The caller gives the time, which must not go back; an earlier one counts as the latest seen. A window that is made
// longer does not bring back what has left the shorter one.
package rolling
