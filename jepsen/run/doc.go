// Package run makes one run of the chaos suite: a cluster of real processes, the workloads of a mix that ask it all the
// time, and the mix's faults, drawn by a seed. Then everything is healed, and the cluster must decide again; then all
// nodes but a core die for good, and it must decide still. What happened is written to the run's directory as it
// happens, and judged in the end from that directory alone, so that package check can judge it again without this one.
//
// What the machine does not have is left out, and said so in the configuration that the run leaves: namespaces and
// disks need root. A run that must not do without names it in Options.Require.
//
// A run that is interrupted goes through its end all the same, and is judged by what there was. The data directories of
// a run that failed stay in it.
//
// It needs Linux.
package run
