package guard

// The rules of what stands around the log, each as a guard: what callers are told, what clients do, and what a node
// takes from its files.
const (
	// UnknownIsTold: a check whose fate is unknown is answered as such. Else a caller takes for denied what was
	// admitted.
	UnknownIsTold Guard = "unknown-is-told"
	// OneID: a client retries a check with the id that it was sent with first. Else it is admitted twice.
	OneID Guard = "one-id"
	// LoggedPeek: a peek is answered by an entry of the log. Else a replica that is cut off tells what used to be.
	LoggedPeek Guard = "logged-peek"
	// OwnReadings: a reading of a monotonic clock means something in its own process only. Else a start on a machine
	// that has been up for longer finds that much time has passed.
	OwnReadings Guard = "own-readings"
	// EndedByLog: a partition has ended when the cluster's log has made it and taken it out again. Else a start
	// whose state does not list it yet deletes what it holds.
	EndedByLog Guard = "ended-by-log"
)
