package partition

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/partition/group"
)

// Replicas prove that they agree. Each entry carries the index up to which its proposer had applied the
// log, and the digest of its state there; every replica compares that with its own digest at the same
// index, which needs no clock and no coordination. Where they differ one of the two is wrong, and only a
// majority can say which. So whoever sees it stops answering and asks all; the replica outside the
// majority stops for good, and when there is no majority, all do.

// Bounds of an inquiry.
const (
	consultTimeout = 2 * time.Second
	// askAgainAfter is the pause between two rounds, while replicas cannot be reached.
	askAgainAfter = 500 * time.Millisecond
)

// Consult asks another replica for the digest of its state at a log index, and tells it the asker's.
// known is false when it does not have it, or not any more.
type Consult func(ctx context.Context, m group.Member, index uint64, own [16]byte,
) (digest [16]byte, known bool, err error)

// agreement follows the comparison with the other replicas.
type agreement struct {
	suspects  chan uint64 // an index at which a digest differed; holds one
	suspended atomic.Bool // an inquiry is on
	diverged  atomic.Pointer[string]
}

// Suspect begins an inquiry when another replica's digest at a log index is known to differ from this
// one's, and tells this one's.
func (p *Partition) Suspect(index uint64, other [16]byte) (own [16]byte, known bool) {
	own, known = p.replica.DigestAt(index)
	if known && own != other {
		p.suspect(index)
	}
	return own, known
}

// suspect stops the answers and has the inquiry begin.
func (p *Partition) suspect(index uint64) {
	if !guard.On(guard.Agreement) {
		return
	}
	p.agreement.suspended.Store(true)
	select {
	case p.agreement.suspects <- index:
	default: // one is on
	}
}

// halted is why this replica gives no answers; nil while it does.
func (p *Partition) halted() error {
	if why := p.agreement.diverged.Load(); why != nil {
		return errors.New(*why)
	}
	if p.agreement.suspended.Load() {
		return errors.New("replicas disagree about the state, and it is being found out which is wrong")
	}
	return nil
}

// inquireWhenSuspected runs inquiries until ctx ends or this replica has stopped.
func (p *Partition) inquireWhenSuspected(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case index := <-p.agreement.suspects:
			p.metrics.disagreements.Inc()
			p.cfg.Logger.Error("replicas disagree about the state: asking all", "partition", p.cfg.ID, "index", index)
			verdict := p.inquire(ctx, index)
			switch verdict {
			case undecided:
				return // ctx ended
			case confirmed:
				p.agreement.suspended.Store(false)
				p.cfg.Logger.Warn("a majority has this replica's state", "partition", p.cfg.ID, "index", index)
			default:
				p.diverge(fmt.Sprintf("the state at log index %d is not that of a majority of replicas (%s)", index, verdict))
				return
			}
		}
	}
}

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
func (p *Partition) inquire(ctx context.Context, index uint64) verdict {
	for {
		own, known := p.replica.DigestAt(index)
		if known {
			v, forgotten := p.ask(ctx, index, own)
			if v != undecided || ctx.Err() != nil {
				return v
			}
			known = !forgotten
		}
		if !known {
			p.replica.view(func(_ *fsm.Machine, applied uint64) { index = applied })
		}
		select {
		case <-ctx.Done():
			return undecided
		case <-time.After(askAgainAfter):
		}
	}
}

// ask asks all other replicas once. forgotten says that one does not have the digest.
func (p *Partition) ask(ctx context.Context, index uint64, own [16]byte) (_ verdict, forgotten bool) {
	ctx, cancel := context.WithTimeout(ctx, consultTimeout)
	defer cancel()
	type answer struct {
		voter, known bool
		digest       [16]byte
		err          error
	}
	members := p.group.Members()
	answers := make(chan answer, len(members))
	for _, m := range members {
		go func() {
			a := answer{voter: !m.Learner}
			if m.ID == p.cfg.NodeID {
				a.digest, a.known = own, true
			} else {
				a.digest, a.known, a.err = p.cfg.Consult(ctx, m, index, own)
			}
			answers <- a
		}()
	}
	voters, silent := 0, 0
	votes := map[[16]byte]int{}
	for range members {
		switch a := <-answers; {
		case !a.voter:
			// It takes no part in majorities; a learner that differs asks for itself.
		case a.err != nil:
			voters, silent = voters+1, silent+1
		case !a.known:
			voters, silent, forgotten = voters+1, silent+1, true
		default:
			voters++
			votes[a.digest]++
		}
	}
	return judge(own, votes, voters, silent), forgotten
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

// diverge stops this replica for good: it is marked on the disk and takes no further part.
func (p *Partition) diverge(why string) {
	p.agreement.diverged.Store(&why)
	p.cfg.Logger.Error("this replica stops for good: replace it", "partition", p.cfg.ID, "reason", why)
	if err := p.group.Condemn(why); err != nil {
		p.cfg.Logger.Error("stopping the replica", "partition", p.cfg.ID, "error", err)
	}
}
