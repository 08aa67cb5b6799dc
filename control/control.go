package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/partition/group"
)

// GroupID is the id of the control group.
const GroupID = "control"

const (
	auditFile    = "audit.db"
	bodiesFolder = "bodies"
)

// Config is what a Control needs. All fields are required but those that say otherwise.
type Config struct {
	// Dir is where the audit trail and the policy bodies are, in a data directory that storage.Claim has
	// claimed; the group's own files may lie beside them.
	Dir string
	// Open opens the Raft group that replicates the commands to applier.
	Open func(applier group.Applier) (group.Group, error)
	// Differs hears that another replica had another state after the entry at index; it must not block.
	Differs func(index uint64)
	// Fatal ends the process with a message.
	Fatal  func(error)
	Logger *slog.Logger
	// Level is the highest feature level that this program knows; 0 means state.MaxLevel.
	Level state.Level
	// AuditRecords are kept; 0 means state.MaxAuditRecords. All replicas keep the same number.
	AuditRecords int
	// Clock is what Active counts by.
	Clock clock.Source
	// MaxDriftPPM bounds its drift, in parts per million; 0 means clock.DefaultMaxDriftPPM.
	MaxDriftPPM int64
	// WallNanos is the wall clock, for the audit trail; nil means time.Now.
	WallNanos func() int64
}

func (c *Config) validate() error {
	var errs []error
	for _, f := range []struct {
		missing bool
		name    string
	}{
		{c.Dir == "", "Dir"},
		{c.Open == nil, "Open"},
		{c.Differs == nil, "Differs"},
		{c.Fatal == nil, "Fatal"},
		{c.Logger == nil, "Logger"},
		{c.Clock == nil, "Clock"},
	} {
		if f.missing {
			errs = append(errs, fmt.Errorf("%s must be set", f.name))
		}
	}
	if c.MaxDriftPPM < 0 || c.MaxDriftPPM > clock.MaxMaxDriftPPM {
		errs = append(errs, fmt.Errorf("MaxDriftPPM is %d: it must be from 1 to %d", c.MaxDriftPPM, clock.MaxMaxDriftPPM))
	}
	return errors.Join(errs...)
}

// Control is this node's replica of the control group.
type Control struct {
	cfg     Config
	replica *Replica
	group   group.Group
	trail   *audit.Trail
	bodies  *bodies.Store
	view    view
	confirm confirmer

	policies *policies
	arrivals *arrivals

	sweeps    chan *state.State // the newest state in which a body epoch began
	closing   chan struct{}
	loops     sync.WaitGroup
	closeOnce sync.Once
	closeErr  error
}

// Open opens the replica. It takes part at once.
func Open(cfg Config) (*Control, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	if cfg.Level == 0 {
		cfg.Level = state.MaxLevel
	}
	if cfg.WallNanos == nil {
		cfg.WallNanos = func() int64 { return time.Now().UnixNano() }
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("control group: make directory: %w", err)
	}
	if cfg.MaxDriftPPM == 0 {
		cfg.MaxDriftPPM = clock.DefaultMaxDriftPPM
	}
	c := &Control{cfg: cfg, sweeps: make(chan *state.State, 1), closing: make(chan struct{})}
	c.view.init(state.New().State())
	c.confirm.init(c)
	c.arrivals = newArrivals(cfg.Clock, cfg.MaxDriftPPM)
	var err error
	if c.bodies, err = bodies.Open(filepath.Join(cfg.Dir, bodiesFolder)); err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	c.policies = newPolicies(c.bodies, cfg.Logger)
	if c.trail, err = audit.Open(filepath.Join(cfg.Dir, auditFile), cfg.AuditRecords); err != nil {
		return nil, fmt.Errorf("control group: %w", err)
	}
	c.replica = &Replica{
		trail: c.trail, level: cfg.Level, machine: state.New(),
		changed: c.changed, swept: c.sweepLater, differs: cfg.Differs, fatal: cfg.Fatal,
	}
	if c.group, err = cfg.Open(c.replica); err != nil {
		return nil, errors.Join(fmt.Errorf("control group: %w", err), c.trail.Close())
	}
	c.loops.Go(c.runSweeps)
	return c, nil
}

// Close closes the group, then the files. It is to be called before the node's listener is closed.
func (c *Control) Close() error {
	c.closeOnce.Do(func() {
		close(c.closing)
		c.confirm.close()
		err := c.group.Close()
		c.loops.Wait()
		c.closeErr = errors.Join(err, c.trail.Close())
	})
	return c.closeErr
}

// Group is the Raft group, for membership, leadership and status.
func (c *Control) Group() group.Group { return c.group }

// Bodies are the policy bodies on this node.
func (c *Control) Bodies() *bodies.Store { return c.bodies }

// Audit finds records of the audit trail as this replica has it; read after Read for one that is up to date.
func (c *Control) Audit(q audit.Query) (found []*state.Record, next uint64, err error) {
	return c.trail.Search(q)
}

// DigestAt is the digest of the state, audit trail included, as of a recent log index.
func (c *Control) DigestAt(index uint64) (digest [16]byte, known bool) {
	return c.replica.DigestAt(index)
}

// AppliedIndex is the log index of the last entry that is in the state, beside DigestAt.
func (c *Control) AppliedIndex() uint64 { return c.replica.basis().Index }

// changed takes a state that has just been applied.
func (c *Control) changed(s *state.State) {
	c.arrivals.note(s)
	c.view.set(s)
}

// sweepLater has the bodies swept. It does not block: applying must not wait for that.
func (c *Control) sweepLater(s *state.State) {
	for {
		select {
		case c.sweeps <- s:
			return
		default:
		}
		select {
		case <-c.sweeps: // an older one
		default:
		}
	}
}

// runSweeps drops bodies that are not wanted any more.
func (c *Control) runSweeps() {
	for {
		select {
		case <-c.closing:
			return
		case s := <-c.sweeps:
			wants := s.Wants()
			n, err := c.bodies.Sweep(s.BodyEpoch, func(d state.Digest) bool {
				_, wanted := wants[d]
				return wanted
			})
			c.cfg.Logger.Info("policy bodies were swept", "dropped", n, "error", err)
		}
	}
}

// Sweep lets all replicas drop the policy bodies that nobody has asked for in the last body epoch and that
// the state does not want. To be called now and then by the leader, an hour or so apart: a publish must not
// take longer than one interval.
func (c *Control) Sweep(ctx context.Context) error {
	_, err := c.Propose(ctx, &state.Command{Kind: state.KindSweep, Epoch: c.State().BodyEpoch})
	return err
}
