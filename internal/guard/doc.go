// Package guard names the safety measures of the replication, so that each can be shown to be needed.
//
// In the product On is constantly true, and the compiler leaves no trace of it. Built with the tag
// "chaos", which only the chaos suite's own test of itself uses, one guard can be switched off with
// Switch, and the simulation has to notice.
//
// Some are measures against what libraries, disks and machines do wrong; the others, in rules.go and services.go, are
// the rules of the state machine, of its time, and of what stands around the log. It is no place for options.
//
// Hold marks points at which a test can hold a process, in the same way: in the product it is nothing; built
// with the tag, and told by the environment, the process stops there exactly.
package guard
