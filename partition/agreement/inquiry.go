package agreement

import (
	"context"
	"time"
)

// Bounds of an inquiry.
const (
	consultTimeout = 2 * time.Second
	// askAgainAfter is the pause between two rounds, while replicas cannot be reached.
	askAgainAfter = 500 * time.Millisecond
)

// verdict is what an inquiry came to.
type verdict string

const (
	undecided verdict = "" // not all that matter have answered
	confirmed verdict = "a majority has this replica's"
	outvoted  verdict = "a majority has another"
	scattered verdict = "no majority agrees at all"
)

// inquire asks until there is a verdict or ctx ends. A replica may no longer know its digest at the index;
// then all are asked for a later one, since a state that differs goes on differing for as long as the
// difference lives.
func (a *Agreement) inquire(ctx context.Context, index uint64) verdict {
	for {
		own := a.opinion(index)
		forgotten := !own.Known
		if own.Known {
			var v verdict
			if v, forgotten = a.ask(ctx, index, own); v != undecided || ctx.Err() != nil {
				return v
			}
		}
		if forgotten {
			index = own.Index
		}
		select {
		case <-ctx.Done():
			return undecided
		case <-time.After(askAgainAfter):
		}
	}
}

// ask asks all other replicas once. forgotten says that one does not have the digest any more.
func (a *Agreement) ask(ctx context.Context, index uint64, own Opinion) (_ verdict, forgotten bool) {
	ctx, cancel := context.WithTimeout(ctx, consultTimeout)
	defer cancel()
	type answer struct {
		Opinion
		voter bool
		err   error
	}
	members := a.cfg.Members()
	answers := make(chan answer, len(members))
	for _, m := range members {
		go func() {
			r := answer{voter: !m.Learner}
			if m.ID == a.cfg.NodeID {
				r.Opinion = own
			} else {
				r.Opinion, r.err = a.cfg.Consult(ctx, m, index, own.Digest)
			}
			answers <- r
		}()
	}
	voters, silent := 0, 0
	votes := map[[16]byte]int{}
	for range members {
		switch r := <-answers; {
		case !r.voter:
			// It takes no part in majorities; a learner that differs asks for itself.
		case r.err != nil:
			voters, silent = voters+1, silent+1
		case !r.Known:
			voters, silent, forgotten = voters+1, silent+1, forgotten || r.Index >= index
		default:
			voters++
			votes[r.Digest]++
		}
	}
	return judge(own.Digest, votes, voters, silent), forgotten
}

// judge counts votes: how many voters have which digest, and how many are silent.
func judge(own [16]byte, votes map[[16]byte]int, voters, silent int) verdict {
	most := 0
	for digest, n := range votes {
		most = max(most, n)
		if 2*n > voters {
			if digest == own {
				return confirmed
			}
			return outvoted
		}
	}
	if voters > 0 && 2*(most+silent) <= voters {
		return scattered
	}
	return undecided
}
