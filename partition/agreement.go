package partition

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// Consult asks another replica for its opinion of a log index, and tells it the asker's digest there.
type Consult func(ctx context.Context, m group.Member, index uint64, own [16]byte) (Opinion, error)

// Opinion is what a replica knows of the state at a log index.
type Opinion struct {
	Digest [16]byte
	Known  bool   // else Digest means nothing: the index is to come, or too long ago
	Index  uint64 // up to which it has applied the log
}

// agreement follows the comparison with the other replicas.
type agreement struct {
	diverged atomic.Pointer[string]
	wake     chan struct{} // holds a signal while suspected may be set

	mu        sync.Mutex // guards suspected
	suspected uint64     // the log index of the inquiry that is on or to come; 0 none
}

// Suspect begins an inquiry when another replica's digest at a log index is known to differ from this
// one's, and tells this one's.
func (p *Partition) Suspect(index uint64, other [16]byte) Opinion {
	o := p.opinion(index)
	if o.Known && o.Digest != other {
		p.suspect(index)
	}
	return o
}

func (p *Partition) opinion(index uint64) (o Opinion) {
	o.Digest, o.Known = p.replica.DigestAt(index)
	p.replica.view(func(_ *fsm.Machine, applied uint64) { o.Index = applied })
	return o
}

// suspect stops the answers and has the inquiry begin.
func (p *Partition) suspect(index uint64) {
	if !guard.On(guard.Agreement) {
		return
	}
	p.agreement.mu.Lock()
	p.agreement.suspected = max(p.agreement.suspected, index)
	p.agreement.mu.Unlock()
	select {
	case p.agreement.wake <- struct{}{}:
	default: // it is there
	}
}

// suspected is the log index about which there is a doubt; 0 without one.
func (p *Partition) suspected() uint64 {
	p.agreement.mu.Lock()
	defer p.agreement.mu.Unlock()
	return p.agreement.suspected
}

// trusted ends the doubt about an index, unless a later one has come up meanwhile.
func (p *Partition) trusted(index uint64) {
	p.agreement.mu.Lock()
	defer p.agreement.mu.Unlock()
	if p.agreement.suspected == index {
		p.agreement.suspected = 0
	}
}

// halted is why this replica gives no answers; nil while it does.
func (p *Partition) halted() error {
	if why := p.agreement.diverged.Load(); why != nil {
		return errors.New(*why)
	}
	if p.suspected() != 0 {
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
		case <-p.agreement.wake:
		}
		for index := p.suspected(); index != 0; index = p.suspected() {
			p.metrics.disagreements.Inc()
			p.cfg.Logger.Error("replicas disagree about the state: asking all", "partition", p.cfg.ID, "index", index)
			verdict := p.inquire(ctx, index)
			switch verdict {
			case undecided:
				return // ctx ended
			case confirmed:
				p.trusted(index)
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
		own := p.opinion(index)
		forgotten := !own.Known
		if own.Known {
			var v verdict
			if v, forgotten = p.ask(ctx, index, own); v != undecided || ctx.Err() != nil {
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
func (p *Partition) ask(ctx context.Context, index uint64, own Opinion) (_ verdict, forgotten bool) {
	ctx, cancel := context.WithTimeout(ctx, consultTimeout)
	defer cancel()
	type answer struct {
		Opinion
		voter bool
		err   error
	}
	members := p.group.Members()
	answers := make(chan answer, len(members))
	for _, m := range members {
		go func() {
			a := answer{voter: !m.Learner}
			if m.ID == p.cfg.NodeID {
				a.Opinion = own
			} else {
				a.Opinion, a.err = p.cfg.Consult(ctx, m, index, own.Digest)
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
		case !a.Known:
			voters, silent, forgotten = voters+1, silent+1, forgotten || a.Index >= index
		default:
			voters++
			votes[a.Digest]++
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

// diverge stops this replica for good: it is marked on the disk and takes no further part.
func (p *Partition) diverge(why string) {
	p.agreement.diverged.Store(&why)
	p.cfg.Logger.Error("this replica stops for good: replace it", "partition", p.cfg.ID, "reason", why)
	if err := p.group.Condemn(why); err != nil {
		p.cfg.Logger.Error("stopping the replica", "partition", p.cfg.ID, "error", err)
	}
}
