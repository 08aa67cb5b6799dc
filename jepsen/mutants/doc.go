// Package mutants shows that the chaos suite can fail: it leaves out one rule of the product at a time and wants the
// invariant to break that is there for it.
//
// A mutant is a guard that is switched off (package internal/guard), so there is one mechanism for all, and none of it
// is in the program that is released. The catalogue says of each what rule that is, where it is played (in the model of
// the state machine, in the simulated cluster, or on real processes), in which scenario, and which checker has to find
// it. That another one finds something as well is no kill.
//
// The same seeds of the same scenarios, with all guards in place, must come out clean: a checker that always complains
// kills everything and shows nothing.
//
//	make chaos-mutants               # model and simulation: seconds
//	make chaos-mutants LAYER=process # real processes: minutes, as root
//	make chaos-mutants MUTANT=m05    # one
package mutants
