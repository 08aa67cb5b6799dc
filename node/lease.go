package node

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// leaseInterval is between two renewals of the policy lease, and leaseRetry after one that failed.
	leaseInterval = 2 * time.Second
	leaseRetry    = 200 * time.Millisecond
	// confirmTimeout bounds one renewal.
	confirmTimeout = 2 * time.Second
	// installInterval is between two looks whether a partition that this node leads lacks a policy.
	installInterval = 100 * time.Millisecond
	// installTimeout bounds one attempt to install a policy.
	installTimeout = 30 * time.Second
)

// lease is this node's policy lease: which revision was in force at the reading that it runs from. All partitions
// of the node decide under it.
type lease struct {
	mu      sync.Mutex // guards the fields below
	now     partition.PolicyLease
	version uint64 // of the cluster's state that was confirmed
	// grace is the same for the node's answers by a policy's envoy section, and its classes' settings: as a gateway's last
	// configuration, it holds for longer.
	grace clock.Lease
	// covered is the newest lease that this node's copy of the state was not older than.
	covered partition.PolicyLease
}

// get is the newest lease whose confirmed state this node's copy of the state, of a version, is not older than: only
// of that can it tell what is in the state. Whether it runs is for the caller's reading to tell.
func (l *lease) get(version uint64) partition.PolicyLease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version >= l.version {
		l.covered = l.now
	}
	return l.covered
}

// leaseOf is the lease under which a partition decides. A partition that owns nothing, or is not in the state any
// more, decides nothing: others may have been made owners of its slots without asking it. Since no partition comes
// back, one that the present state has was in each older one too.
func (n *Node) leaseOf(id string) partition.PolicyLease {
	c := n.control()
	if c == nil {
		return partition.PolicyLease{}
	}
	s := c.State()
	out := n.lease.get(s.Version)
	out.Disowned = !ownsSlots(s, id)
	return out
}

// ownsSlots reports that a partition is in the state and owns slots.
func ownsSlots(s *state.State, id string) bool {
	p := partitionNamed(s, id)
	return p != nil && len(p.Ranges) > 0
}

// partitionNamed is the partition of an id as people know it; nil when the state has none.
func partitionNamed(s *state.State, id string) *state.Partition {
	if number, ok := partitionNumber(id); ok {
		if p, there := s.Partition(number); there {
			return p
		}
	}
	return nil
}

// partitionNumber is the number in a partition's id.
func partitionNumber(id string) (state.PartitionID, bool) {
	digits, ok := strings.CutPrefix(id, "p")
	n, err := strconv.ParseUint(digits, 10, 64)
	number := state.PartitionID(n)
	return number, ok && err == nil && number.String() == id
}

// covers reports that the lease runs at a reading, and that a state of this version is not older than the one that
// it confirmed.
func (l *lease) covers(at clock.Reading, version uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now.Lease.Valid(at) && version >= l.version
}

// renew takes a confirmation. One that comes late, with an older state, takes nothing back.
func (l *lease) renew(granted clock.Lease, revision fsm.Revision, version uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if version < l.version {
		return
	}
	l.now, l.version = partition.PolicyLease{Revision: revision, Lease: granted}, version
}

// extend takes a grace that a confirmation has granted.
func (l *lease) extend(grace clock.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grace = grace
}

// graced is the newest revision that was confirmed to be in force, and whether the grace since then runs at a reading.
func (l *lease) graced(at clock.Reading) (fsm.Revision, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now.Revision, l.grace.Valid(at)
}

// keepLease renews the policy lease until ctx ends: again and again, and at once when a policy was installed here,
// so that the cluster knows.
func (n *Node) keepLease(ctx context.Context) {
	for {
		pause := leaseInterval
		if err := n.renewLease(ctx); err != nil {
			pause = leaseRetry
			n.logger.Debug("the policy lease was not renewed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.installed:
		case <-time.After(pause):
		}
	}
}

// renewLease asks the node that leads the control group which policy is in force. The lease runs from the reading
// before the question.
func (n *Node) renewLease(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	q := &quoratev1.ConfirmPolicyRequest{ClusterId: n.cfg.ClusterID, FromNode: n.cfg.ID}
	for id, p := range n.ledHere() {
		if rev := p.Revision(); rev != 0 {
			q.Installed = append(q.Installed, &quoratev1.InstalledPolicy{Partition: id, Revision: uint64(rev)})
		}
	}
	from := n.source.Read()
	answer, err := n.confirmAt(ctx, q)
	if err != nil {
		return err
	}
	granted, err := clock.GrantLease(from, int64(control.PolicyLease), n.cfg.Clock.MaxDriftPPM)
	if err != nil {
		return err
	}
	grace, err := clock.GrantLease(from, int64(configGrace), n.cfg.Clock.MaxDriftPPM)
	if err != nil {
		return err
	}
	n.lease.renew(granted, fsm.Revision(answer.GetRevision()), answer.GetStateVersion())
	n.lease.extend(grace)
	return nil
}

// confirmAt asks the node that leads the control group: this one, or the one that this one takes for it.
func (n *Node) confirmAt(
	ctx context.Context, q *quoratev1.ConfirmPolicyRequest,
) (*quoratev1.ConfirmPolicyResponse, error) {
	r := n.hosted.of(controlID)
	if r.leads() {
		return n.confirm(ctx, q)
	}
	leader := r.leader()
	if leader == "" || leader == n.cfg.ID {
		return nil, quotaerr.New(quotaerr.NoQuorum, "no leader of the control group is known")
	}
	peer, err := n.server.Peer(leader)
	if err != nil {
		return nil, err
	}
	return peer.ConfirmPolicy(ctx, q)
}

// confirm tells which policy is in force as of an entry that is committed after the question came. What the
// asker's partitions have installed is noted first, so that an answer means that the cluster knows.
func (n *Node) confirm(
	ctx context.Context, q *quoratev1.ConfirmPolicyRequest,
) (*quoratev1.ConfirmPolicyResponse, error) {
	c := n.control()
	if c == nil {
		return nil, n.errNotMade()
	}
	if notes := newer(c.State(), q.GetInstalled()); len(notes) > 0 {
		if _, err := c.Propose(ctx, &state.Command{Kind: state.KindInstalled, Installed: notes}); err != nil {
			return nil, err
		}
	}
	now, err := c.Confirm(ctx)
	if err != nil {
		return nil, err
	}
	out := &quoratev1.ConfirmPolicyResponse{StateVersion: now.Version, MapVersion: now.Map}
	if now.Revision != nil {
		out.Revision = uint64(now.Revision.Number)
	}
	return out, nil
}

// newer are the installed revisions that the state does not know yet.
func newer(s *state.State, installed []*quoratev1.InstalledPolicy) (notes []state.Note) {
	for _, i := range installed {
		for _, p := range s.Partitions {
			if p.ID.String() == i.GetPartition() && fsm.Revision(i.GetRevision()) > p.Installed &&
				len(notes) < state.MaxNotes {
				notes = append(notes, state.Note{Partition: p.ID, Revision: fsm.Revision(i.GetRevision())})
			}
		}
	}
	return notes
}

// install puts the policy in force into each partition that this node leads, until ctx ends.
func (n *Node) install(ctx context.Context) {
	var under sync.WaitGroup
	defer under.Wait()
	tick := time.NewTicker(installInterval)
	defer tick.Stop()
	for {
		s, changed := n.control().Changed()
		if rev := s.InForce(); rev != nil {
			for id, p := range n.ledHere() {
				if now := p.Revision(); now == 0 || now >= rev.Number {
					continue
				}
				r := n.hosted.of(id)
				if r.installing.CompareAndSwap(false, true) {
					under.Go(func() {
						defer r.installing.Store(false)
						n.installAt(ctx, id, p, rev)
					})
				}
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
	}
}

func (n *Node) installAt(ctx context.Context, id string, p *partition.Partition, rev *state.Revision) {
	ctx, cancel := context.WithTimeout(ctx, installTimeout) // by then another one may be in force
	defer cancel()
	// Before the entry, so that this replica does not wait for the body while it leads.
	if _, err := n.findPolicy(ctx, rev.Ref()); err != nil {
		n.logger.Warn("the policy in force is not here yet", "revision", rev.Number, "error", err)
		return
	}
	err := p.Install(ctx, rev.Ref())
	switch {
	case quotaerr.ReasonOf(err) == quotaerr.Frozen:
		n.logger.Debug("a plan holds the policy", "partition", id, "revision", rev.Number)
		return
	case err != nil:
		n.logger.Warn("the policy was not installed yet", "partition", id, "revision", rev.Number, "error", err)
		return
	}
	n.logger.Info("a policy was installed", "partition", id, "revision", rev.Number, "version", rev.Label)
	select {
	case n.installed <- struct{}{}:
	default: // it is to be told already
	}
}

// findPolicy is the policy that a revision or a log entry names. It waits until its body is here.
func (n *Node) findPolicy(ctx context.Context, ref fsm.PolicyRef) (*policy.Policy, error) {
	select {
	case <-n.joined:
		return n.control().Find(ctx, ref, n.fetchBody)
	case <-ctx.Done():
		return nil, fmt.Errorf("policy revision %d: the control group is not open: %w", ref.Revision, ctx.Err())
	}
}
