// Package report shows a run to people: Write makes one page of a run's directory and of the verdict that is there.
//
// The page is one file that needs no other and no network: what was asked and answered per second, which faults were
// on, who led, which policies and plans there were, what each checker says, and of each violation the steps of its
// proof and a picture of them beside the faults. Its size is bounded, whatever the length of the run: what happens
// within one of a few hundred parts of the run is drawn together.
//
// It judges nothing: without a verdict in the directory there is no page.
package report
