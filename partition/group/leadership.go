package group

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/guard"
)

// leadership is what the loop below has established; readers see it whole.
type leadership struct {
	now     atomic.Pointer[Leadership]
	changed chan struct{}
	// transferSince is when proposals began to be refused because of a leadership transfer that does
	// not end, in nanoseconds since the epoch; 0 while they are not.
	transferSince atomic.Int64
	transferring  chan struct{} // tells the loop that transferSince was set
}

// stuckTransfers is how many election timeouts a transfer may take. Raft gives it one, but waits for a request to a
// target that has just stopped answering, and for a pause after it.
const stuckTransfers = 6

// Leadership is the present role. A leadership that Raft has lost is gone at once, before its signal
// has come through.
func (g *RaftGroup) Leadership() Leadership {
	l := *g.lead.now.Load()
	if l.Term != 0 && (g.raft.State() != raft.Leader || g.raft.CurrentTerm() != l.Term) {
		return Leadership{}
	}
	return l
}

// Changed delivers a signal after each change of Leadership.
func (g *RaftGroup) Changed() <-chan struct{} { return g.lead.changed }

func (g *RaftGroup) setLeadership(l Leadership) {
	if *g.lead.now.Load() == l {
		return
	}
	g.lead.now.Store(&l)
	select {
	case g.lead.changed <- struct{}{}:
	default: // one is waiting already
	}
}

// attempt is the wait for an entry of this node's term to be applied.
type attempt struct {
	term    uint64
	started time.Time
	result  chan error // nil: to be started
}

// watchLeadership follows Raft's signals. They coalesce, so each one is a question, not an answer: two
// that say "leader" in a row mean lost and regained.
func (g *RaftGroup) watchLeadership() {
	retry := time.NewTicker(g.config.Timing.Election / 2)
	defer retry.Stop()
	var a attempt
	for {
		var ticks <-chan time.Time
		if a.term != 0 || g.lead.transferSince.Load() != 0 {
			ticks = retry.C
		}
		select {
		case <-g.closing:
			g.setLeadership(Leadership{})
			return
		case leader := <-g.raft.LeaderCh():
			a = g.begin(a, leader)
		case err := <-a.result:
			a = g.settle(a, err)
		case <-g.lead.transferring:
		case <-ticks:
			g.checkTransfer()
			a = g.press(a)
		}
	}
}

// begin starts over, unless the signal is an old one for the leadership at hand: a node wins a term
// only once.
func (g *RaftGroup) begin(a attempt, leader bool) attempt {
	// The term is read before the state: a later term that is led fails the look at the end.
	term := g.raft.CurrentTerm()
	if leader && g.leads(term) && (a.term == term || g.lead.now.Load().Term == term) {
		return a
	}
	g.setLeadership(Leadership{})
	g.lead.transferSince.Store(0)
	if !leader || !g.leads(term) {
		return attempt{}
	}
	g.setLeadership(Leadership{Term: term, Ready: !guard.On(guard.OwnTermBarrier)})
	return g.prove(attempt{term: term, started: time.Now()})
}

func (g *RaftGroup) leads(term uint64) bool {
	return g.raft.State() == raft.Leader && g.raft.CurrentTerm() == term
}

// prove puts a barrier into the log. It comes back after everything before it, Raft's own first entry
// of the term included, has been applied.
func (g *RaftGroup) prove(a attempt) attempt {
	barrier := g.raft.Barrier(g.config.Timing.Enqueue)
	result := make(chan error, 1)
	go func() { result <- barrier.Error() }()
	a.result = result
	return a
}

// settle judges a barrier that came back.
func (g *RaftGroup) settle(a attempt, err error) attempt {
	g.observeTransfer(err)
	if !g.leads(a.term) {
		g.setLeadership(Leadership{}) // its signal is on the way
		return attempt{}
	}
	if err != nil {
		a.result = nil // press tries again
		return a
	}
	g.setLeadership(Leadership{Term: a.term, Ready: true})
	return attempt{}
}

// press retries a barrier that failed. A leader that cannot apply for long hands over: others may be
// able to, and a leader that only holds the place is worse than none.
func (g *RaftGroup) press(a attempt) attempt {
	if a.term == 0 {
		return a
	}
	if !g.leads(a.term) {
		g.setLeadership(Leadership{})
		return attempt{}
	}
	if time.Since(a.started) > g.config.Timing.Ready {
		g.config.Logger.Error("this leader cannot apply an entry of its term, it hands over",
			"term", a.term, "after", g.config.Timing.Ready.String())
		a.started = time.Now()
		g.handOver()
	}
	if a.result == nil {
		return g.prove(a)
	}
	return a
}

// handOver starts a transfer and does not wait for it; at most one runs.
func (g *RaftGroup) handOver() {
	if !g.admin.TryLock() {
		return
	}
	g.loops.Go(func() {
		defer g.admin.Unlock()
		to, err := g.heir("")
		if err == nil {
			err = g.await(g.raft.LeadershipTransferToServer(to.replicaID(), raft.ServerAddress(to.Addr)), g.transferLimit())
		}
		if err != nil {
			g.config.Logger.Warn("leadership was not handed over", "error", err)
		}
	})
}

// observeTransfer notes since when Raft refuses entries because of a transfer.
func (g *RaftGroup) observeTransfer(err error) {
	switch {
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		if g.lead.transferSince.CompareAndSwap(0, time.Now().UnixNano()) {
			select {
			case g.lead.transferring <- struct{}{}:
			default:
			}
		}
	case err == nil:
		g.lead.transferSince.Store(0)
	}
}

// checkTransfer finds a transfer that does not end: one that a step-down interrupted leaves its mark,
// and the node, when it leads again, refuses every entry for ever (hashicorp/raft#696). The mark is in
// Raft's memory only.
func (g *RaftGroup) checkTransfer() {
	since := g.lead.transferSince.Load()
	if since == 0 {
		return
	}
	if g.raft.State() != raft.Leader {
		g.lead.transferSince.Store(0)
		return
	}
	if time.Since(time.Unix(0, since)) > stuckTransfers*g.config.Timing.Election && guard.On(guard.StuckTransfer) {
		g.fatal(fmt.Errorf("group %s: a leadership transfer has not ended for %v and blocks every entry: "+
			"start the node again", g.config.Group, stuckTransfers*g.config.Timing.Election))
		return
	}
	// Nobody may be proposing any more, so ask.
	probe := g.raft.Barrier(g.config.Timing.Enqueue)
	go func() { g.observeTransfer(probe.Error()) }()
}

func (g *RaftGroup) transferLimit() time.Duration { return 2 * g.config.Timing.Election }
