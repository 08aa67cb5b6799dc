// Package ceiling bounds, coarsely and in fixed memory, how many checks of one principal leave this gateway in a
// second, and how many are under way at once.
//
// Guarantees: a principal beyond the ceiling in a second of this process's clock is not let through. One at or below it
// is, but for a small chance, which does not depend on what others choose to be named: when N checks of others pass in
// that second, the k-th check of a principal is refused at a ceiling of c with a probability of at most
// (N / (65,536 · (c − k + 1)))⁴, since that many of theirs would have to share each of its four cells. So with 20,000
// checks of others in the second and a ceiling of 10, a first check is refused once in a million times at most; and
// that is the bound for any distribution, from which real ones stay far away. A check is
// counted only in those of its cells that count least, so that who hammers adds little to the others.
//
// The memory is 2 MiB, and does not grow with the principals. Nothing is allocated.
//
// Flight bounds how many of them are under way at once, exactly, and in memory that is bounded by the checks under way.
//
// It is no quota: at the turn of a second up to twice the ceiling may pass.
package ceiling
