package workload

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// Node is where a node is asked.
type Node struct {
	ID   string
	GRPC string // as host:port
	HTTP string
}

// Recorder keeps attempts. It is called by many goroutines, and must not hold them up for longer than a write takes.
// Once it fails, the crowd's Stop does.
type Recorder interface{ Asked(a *history.Asked) error }

// Publisher puts policies in force.
type Publisher interface {
	Present() history.Policy
	Apply(ctx context.Context, next history.Policy) error
}

// Check is what an attempt asks for.
type Check struct {
	ID        string
	Principal string
	Class     string
	Cost      int64
	Attempt   uint32 // from 1, as far as its client knows
}

// Door is a way of asking a node. An error is no answer: nobody knows what came of the attempt.
type Door interface {
	Ask(ctx context.Context, node *Node, check *Check) (history.Answer, error)
}

// Peeker is a door at which one can ask how much is used.
type Peeker interface {
	Peek(ctx context.Context, node *Node, principal, class string) (history.Answer, error)
}

// Gateway is a way of asking a cluster, as a gateway does.
type Gateway interface {
	// Check has a check decided. Without an ID it makes one. known is false when nobody knows what came of it, asked
	// when no owner was asked.
	Check(ctx context.Context, check *Check) (answer history.Answer, known, asked bool)
}

// Options are what a crowd is given.
type Options struct {
	Seed     uint64
	Kinds    []Kind
	Nodes    []Node
	Doors    []Door  // clients take them in turn
	Gateway  Gateway // nil where no kind goes through one
	Identity string  // by which the doors and the gateway are known
	Recorder Recorder
	Now      func() time.Duration // the instant of the history
	// Publisher has policy-churn publish; nil where faults do.
	Publisher Publisher
	// Share is how much of the whole load is made: 0.5 has every client wait twice as long. 0 is the whole.
	Share float64
}

// Counts are what came of attempts so far.
type Counts struct{ Asked, Allowed, Denied, Replayed, Refused, Unanswered, Peeked int64 }

// Crowd is the clients of a run.
type Crowd struct {
	options Options
	end     context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	silent map[string]time.Duration
	counts map[string]Counts
	failed []error // of what is not asking
}

// Start begins to ask. The crowd ends when it is stopped, or ctx ends.
func Start(ctx context.Context, o Options) (*Crowd, error) {
	o.Share = cmp.Or(o.Share, 1)
	if len(o.Nodes) == 0 || len(o.Doors) == 0 {
		return nil, errors.New("a crowd needs nodes and doors")
	}
	w := &Crowd{options: o, silent: map[string]time.Duration{}, counts: map[string]Counts{}}
	for _, k := range o.Kinds {
		if k.gateway && o.Gateway == nil {
			return nil, errors.New("workload " + k.Name + " needs a gateway")
		}
	}
	ctx, w.end = context.WithCancel(ctx)
	number := 0
	for _, k := range o.Kinds {
		for i := range k.clients {
			c := newClient(w, k, i, number)
			w.running.Go(func() { k.ask(ctx, c) })
			number++
		}
		if k.publish && o.Publisher != nil {
			r := rand.New(rand.NewPCG(o.Seed, uint64(number)|1<<32))
			w.running.Go(func() { w.churn(ctx, r) })
		}
	}
	return w, nil
}

// Stop waits until no attempt is under way, and returns what failed beside them: of recording and of publishing.
func (w *Crowd) Stop() error {
	w.end()
	w.running.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return errors.Join(w.failed...)
}

// maxFailed bounds what is kept of failures.
const maxFailed = 8

func (w *Crowd) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failed) < maxFailed {
		w.failed = append(w.failed, err)
	}
}

// Counts are what came of the attempts so far, by kind.
func (w *Crowd) Counts() map[string]Counts {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string]Counts{}
	for name, c := range w.counts {
		out[name] = c
	}
	return out
}

// tell records an attempt.
func (w *Crowd) tell(a history.Asked) {
	a.Gateway = w.options.Identity
	w.mu.Lock()
	c := w.counts[a.Workload]
	c.Asked++
	switch {
	case a.Received == history.Never:
		c.Unanswered++
		if a.Node != "" {
			w.silent[a.Node] = w.options.Now()
		}
	case a.Peek && a.Answer.Reason == "":
		c.Peeked++
	case !a.Answer.Decided():
		c.Refused++
	case a.Answer.Replayed:
		c.Replayed++
	case a.Answer.Allowed:
		c.Allowed++
	default:
		c.Denied++
	}
	w.counts[a.Workload] = c
	w.mu.Unlock()
	if err := w.options.Recorder.Asked(&a); err != nil {
		w.fail(err)
	}
}

// avoidFor is how long a node that gave no answer is asked less by clients that may ask any.
const avoidFor = 2 * time.Second

// node draws a node, seldom one that was silent a moment ago.
func (w *Crowd) node(r *rand.Rand) *Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := &w.options.Nodes[r.IntN(len(w.options.Nodes))]
	for range 8 {
		at, silent := w.silent[n.ID]
		if !silent || w.options.Now()-at > avoidFor {
			break
		}
		n = &w.options.Nodes[r.IntN(len(w.options.Nodes))]
	}
	return n
}
