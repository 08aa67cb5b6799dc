// Package process plays mutants that only real processes show: what disks, machines and networks do to the program
// itself. A program of a chaos build is started without a guard (QUORATE_UNGUARDED), a scenario is played on the
// cluster, and the judges look at the run.
//
// Scenarios are the entry points, by the names in the catalogue of package mutants.
package process
