// Package chaos lets the chaos suite look into a node and disturb what it stands on: its clocks and its disk.
//
// The product has none of it: there each function does nothing or gives back what it was given, takes what
// its caller has at hand anyway, and is compiled away. Built with the tag "chaos", for Linux, and told by the
// environment, a process
//
//   - writes what each entry did on each of its replicas to a file of its own (QUORATE_TAP, a folder; see [Tap]);
//   - reads its clocks through disturbances that a file holds (QUORATE_CLOCK; see [Clock]);
//   - waits at each write that its stores sync for as long as a file says (QUORATE_SLOW_SYNC; see [SlowSync]).
//
// What a process writes here is evidence to be compared with what clients and other replicas saw. What a clock
// is made to do here may be beyond what the guarantees allow for: who disturbs it has to know which they are.
package chaos
