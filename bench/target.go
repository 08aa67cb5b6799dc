package bench

import "context"

// Outcome is how a check ended.
type Outcome uint8

// The outcomes. The zero value is an error, so that a target that forgets to say so cannot pass for a decision.
const (
	// Failed: an error that is neither a decision nor the service's inability to make one.
	Failed Outcome = iota
	// Allowed and Denied: decided by the service.
	Allowed
	Denied
	// Hinted: denied by the client, from what the service said before.
	Hinted
	// Bypassed: let through by the class's failure mode; nobody decided.
	Bypassed
	// Unavailable: nobody could decide, and it was not let through.
	Unavailable
	// Overloaded: the service or the client has too much to do. Reports count it as unavailable too.
	Overloaded
	numOutcomes
)

// Target is what is put under load. It is for concurrent use.
type Target interface {
	// Do has one check decided. worker is a small number that tells the caller's loops apart, to spread them over
	// connections. The error says why, with any outcome that is no decision; it is shown once per run.
	Do(ctx context.Context, worker int, principal string) (Outcome, error)
}

// Exhauster is a Target that can use up a principal's allowance before the measurement.
type Exhauster interface {
	Target
	// Exhaust leaves principal without room.
	Exhaust(ctx context.Context, principal string) error
}

// Counters is what a Target's client counts by itself.
type Counters struct {
	Sends, Retries, RetriesWithheld, Frames uint64
}

// Counting is a Target whose client counts by itself. Counters only grow.
type Counting interface {
	Target
	Counters() Counters
}

func (c Counters) since(old Counters) Counters {
	return Counters{
		Sends: c.Sends - old.Sends, Retries: c.Retries - old.Retries,
		RetriesWithheld: c.RetriesWithheld - old.RetriesWithheld, Frames: c.Frames - old.Frames,
	}
}
