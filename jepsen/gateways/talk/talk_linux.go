package talk

import (
	"golang.org/x/sys/unix"
)

// Now is the present by CLOCK_MONOTONIC, in nanoseconds.
func Now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // this clock is always there
	}
	return t.Nano()
}

// Command is what a gateway is to do.
type Command struct {
	// Do is load, stop or stats. A load goes on until stop; each is acknowledged by an event of that name.
	Do string `json:"do"`
	// Load is what to ask for, with load.
	Load *Load `json:"load,omitempty"`
}

// Load is a stream of checks.
type Load struct {
	Seed uint64 `json:"seed"`
	// Workers ask one after another, each at its own times, so that together they ask PerSecond times a second as long
	// as none waits for longer than Workers / PerSecond.
	Workers   int     `json:"workers"`
	PerSecond float64 `json:"per_second"`
	// Principals are numbered from First; each is called Prefix and its number.
	Prefix     string `json:"prefix"`
	First      int    `json:"first"`
	Principals int    `json:"principals"`
	// Classes are asked for: principal k asks for the class k mod their number.
	Classes []string `json:"classes"`
	// Heavy has one check in so many cost 2; 0: none.
	Heavy int `json:"heavy"`
	// Obey has each worker ask for one principal of its own, as fast as it is answered, and come back exactly when it
	// is told.
	Obey bool `json:"obey"`
}

// The kinds of events.
const (
	KindReady    = "ready"    // the gateway runs; it has not reached anybody yet
	KindCheck    = "check"    // a check has ended
	KindRevision = "revision" // another policy revision has arrived
	KindStats    = "stats"
	KindLoaded   = "load" // a load has begun
	KindStopped  = "stop" // no check is under way any more
	KindFailed   = "failed"
)

// Event is what a gateway tells.
type Event struct {
	Kind string `json:"kind"`
	At   int64  `json:"at"` // when it was written
	// Check is with KindCheck.
	Check *Check `json:"check,omitempty"`
	// Revision is with KindRevision. It had arrived by At for sure.
	Revision uint64 `json:"revision,omitempty"`
	// Stats is with KindStats and KindStopped.
	Stats *Stats `json:"stats,omitempty"`
	// Text is with KindFailed.
	Text string `json:"text,omitempty"`
}

// Check is a check from its caller's side.
type Check struct {
	Principal string `json:"p"`
	Class     string `json:"c"`
	Cost      int64  `json:"n"`
	Sent      int64  `json:"s"` // before the client was called
	Received  int64  `json:"r"` // after it had returned

	Allowed   bool         `json:"ok,omitempty"`
	Source    string       `json:"src"`
	Reason    string       `json:"why"` // of the decision, or of the error
	Limit     string       `json:"lim,omitempty"`
	Remaining int64        `json:"rem,omitempty"`
	Revision  uint64       `json:"rev,omitempty"`
	Version   string       `json:"ver,omitempty"`
	ID        string       `json:"id,omitempty"`
	Replayed  bool         `json:"rep,omitempty"`
	Recorded  bool         `json:"rec,omitempty"`
	Limits    []LimitState `json:"ls,omitempty"`
	Attempts  int          `json:"a,omitempty"`
	// WaitNanos is RetryAfter.
	WaitNanos int64 `json:"w,omitempty"`
	// Failed: there was an error, of the kind Kind.
	Failed        bool   `json:"f,omitempty"`
	Kind          string `json:"k,omitempty"` // unavailable, overloaded, refused, closed or other
	MaybeConsumed bool   `json:"m,omitempty"`
	// Cause is the reason for which no owner decided, where the failure mode did.
	Cause string `json:"x,omitempty"`
	// Told is the wait, in nanoseconds, after which this check was made because an earlier one had told so; 0 for none.
	Told int64 `json:"t,omitempty"`
}

// LimitState is how a limit stands.
type LimitState struct {
	Name      string `json:"name"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
}

// ClassCounts are the client's counters of one class.
type ClassCounts struct {
	Allowed, Denied, Hinted, Disabled, Bypassed, Local, LocalDenied uint64
	Unavailable, Overloaded, Refused, Canceled                      uint64
}

// Stats are the client's counters, and what the process takes.
type Stats struct {
	Classes                         map[string]ClassCounts
	Sends, Retries, RetriesWithheld uint64
	Frames, NodesGivenUp            uint64
	InFlight, Hints, LocalHeld      int
	WatchLive                       bool
	MapVersion, PolicyRevision      uint64
	Goroutines                      int
	HeapBytes                       uint64 // that are in use after a collection
	Skipped                         uint64 // times at which a worker should have asked and was not free
	CPUNanos                        int64
}
