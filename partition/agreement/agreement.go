package agreement

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/partition/group"
)

// Consult asks another replica for its opinion of a log index, and tells it the asker's digest there.
type Consult func(ctx context.Context, m group.Member, index uint64, own [16]byte) (Opinion, error)

// Opinion is what a replica knows of the state at a log index.
type Opinion struct {
	Digest [16]byte
	Known  bool   // else Digest means nothing: the index is to come, or too long ago
	Index  uint64 // up to which it has applied the log
}

// Config is what an Agreement needs. All fields but Asking are required.
type Config struct {
	Group  string // the group's id, for the log
	NodeID string // of this replica
	// Members are the replicas of the group, this one among them.
	Members func() []group.Member
	// DigestAt is the digest of this replica's state as of a log index; known is false when it is too long
	// ago, or to come.
	DigestAt func(index uint64) (digest [16]byte, known bool)
	// Applied is the log index up to which this replica has applied the log.
	Applied func() uint64
	// Consult asks another replica.
	Consult Consult
	// Condemn ends this replica for good.
	Condemn func(reason string) error
	// Asking hears of each inquiry that begins; it must not block.
	Asking func()
	Logger *slog.Logger
}

// Agreement follows the comparison of one replica with the others.
type Agreement struct {
	cfg     Config
	stopped atomic.Pointer[string] // why the replica has stopped for good
	wake    chan struct{}          // holds a signal while doubted may be set
	cancel  context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex // guards doubted
	doubted uint64     // the log index of the inquiry that is on or to come; 0 none
}

// New begins to follow the comparison, until Close.
func New(cfg Config) *Agreement {
	ctx, cancel := context.WithCancel(context.Background())
	a := &Agreement{cfg: cfg, wake: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{})}
	a.cfg.Logger = cfg.Logger.With("group", cfg.Group)
	go func() {
		defer close(a.done)
		a.run(ctx)
	}()
	return a
}

// Close ends an inquiry that is on, without a verdict.
func (a *Agreement) Close() {
	a.cancel()
	<-a.done
}

// Doubt stops the answers and has an inquiry begin, since another replica's digest at a log index is known to
// differ from this one's. It does not block.
func (a *Agreement) Doubt(index uint64) {
	if !guard.On(guard.Agreement) {
		return
	}
	a.mu.Lock()
	a.doubted = max(a.doubted, index)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default: // it is there
	}
}

// Suspect hears of another replica's digest at a log index, which is doubted when it is not this one's, and
// tells this one's.
func (a *Agreement) Suspect(index uint64, other [16]byte) Opinion {
	o := a.opinion(index)
	if o.Known && o.Digest != other {
		a.Doubt(index)
	}
	return o
}

// Halted is why this replica gives no answers; nil while it does.
func (a *Agreement) Halted() error {
	if why := a.Stopped(); why != "" {
		return errors.New(why)
	}
	if a.doubt() != 0 {
		return errors.New("replicas disagree about the state, and it is being found out which is wrong")
	}
	return nil
}

// Stopped is why this replica has stopped for good; empty while it has not.
func (a *Agreement) Stopped() string {
	if why := a.stopped.Load(); why != nil {
		return *why
	}
	return ""
}

func (a *Agreement) opinion(index uint64) (o Opinion) {
	o.Digest, o.Known = a.cfg.DigestAt(index)
	o.Index = a.cfg.Applied()
	return o
}

// doubt is the log index about which there is one; 0 without.
func (a *Agreement) doubt() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.doubted
}

// trust ends the doubt about an index, unless a later one has come up meanwhile.
func (a *Agreement) trust(index uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.doubted == index {
		a.doubted = 0
	}
}

// run has inquiries made until ctx ends or this replica has stopped.
func (a *Agreement) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		}
		for index := a.doubt(); index != 0; index = a.doubt() {
			if a.cfg.Asking != nil {
				a.cfg.Asking()
			}
			a.cfg.Logger.Error("replicas disagree about the state: asking all", "index", index)
			switch verdict := a.inquire(ctx, index); verdict {
			case undecided:
				return // ctx ended
			case confirmed:
				a.trust(index)
				a.cfg.Logger.Warn("a majority has this replica's state", "index", index)
			default:
				a.stop(fmt.Sprintf("the state at log index %d is not that of a majority of replicas (%s)", index, verdict))
				return
			}
		}
	}
}

// stop ends this replica for good: it is marked on the disk and takes no further part.
func (a *Agreement) stop(why string) {
	a.stopped.Store(&why)
	a.cfg.Logger.Error("this replica stops for good: replace it", "reason", why)
	if err := a.cfg.Condemn(why); err != nil {
		a.cfg.Logger.Error("stopping the replica", "error", err)
	}
}
