package node

import (
	"context"
	"errors"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/agreement"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/partition/storage"
)

// controlID is the control group's id among this node's replicas.
const controlID = control.GroupID

// groupsFolder is where the groups have their files, each in a folder of its own.
const groupsFolder = "groups"

// replica is this node's replica of one group: the control group or a partition. It is there as long as its
// files are, whether or not it is open: what is remembered of the others' replicas counts before.
type replica struct {
	id     string
	node   *Node
	memory *memory

	group atomic.Pointer[group.RaftGroup] // nil while it is not open
	// One of them is set once it is open, after group.
	partition atomic.Pointer[partition.Partition]
	control   atomic.Pointer[control.Control]
	inquiry   atomic.Pointer[agreement.Agreement] // the control group's; a partition has its own

	mayBeBlank bool           // an empty log is no reason not to open it; set before
	gate       *gate          // to be passed together with others; set before
	metrics    *registrations // of the open partition
	keeping    atomic.Bool    // a change of members is under way
	installing atomic.Bool    // a policy is being installed
	pulls      turns          // of those who fetch what a plan moves here
	rate       rate           // of its decisions
}

// newReplica is the replica of a group, not open yet.
func (n *Node) newReplica(id string) (*replica, error) {
	m, err := loadMemory(n.cfg.DataDir, id)
	if err != nil {
		return nil, err
	}
	return &replica{id: id, node: n, memory: m, mayBeBlank: id != controlID}, nil
}

// errBlank: the group's stores are there, but nothing was ever stored.
var errBlank = errors.New("the log is empty")

// dir is where the group has its files.
func (r *replica) dir() string { return filepath.Join(r.node.cfg.DataDir, groupsFolder, r.id) }

// openGroup opens the Raft group, once it is clear that it may. founders are the first members, on the one
// replica that makes the group.
func (r *replica) openGroup(
	ctx context.Context, a group.Applier, backend storage.Backend, founders []group.Member,
) (group.Group, error) {
	n := r.node
	logBytes := uint64(n.cfg.LogStore.SnapshotLogMiB) << 20
	g, err := group.Open(group.Config{
		Group: r.id, Disk: storage.NewFiles(r.dir(), backend, n.logger),
		Network: n.listener, Applier: a, Self: n.member(), First: !n.claim.Has(r.id), Bootstrap: founders,
		Admit: func(last group.Position, members []group.Member) error {
			return r.admit(ctx, last, members)
		},
		BeforeStart:   func() error { return n.claim.Record(r.id) },
		Compaction:    group.Compaction{LogBytes: logBytes, TrailingBytes: logBytes / 4},
		SnapshotSlots: n.snapshotSlots,
		Fatal:         n.fatal, Logger: n.logger,
	})
	if err != nil {
		return nil, err
	}
	r.group.Store(g)
	return g, nil
}

// admit judges stores that are whole, before anything in them is changed.
func (r *replica) admit(ctx context.Context, last group.Position, members []group.Member) error {
	if last.Index == 0 && !r.mayBeBlank {
		if r.gate != nil {
			r.gate.pass()
		}
		return errBlank
	}
	if err := r.mustBeNewest(ctx, last, members); err != nil {
		return err
	}
	if r.gate == nil {
		return nil
	}
	r.gate.pass()
	return r.gate.wait(ctx)
}

// member is this node as a member of a group.
func (n *Node) member() group.Member {
	return group.Member{ID: n.cfg.ID, Addr: n.cfg.Advertise.Raft, Instance: n.claim.Instance()}
}

// standing is how the replica stands, for the node that asks.
func (r *replica) standing(asker group.Member) *groupAnswer {
	acked := r.memory.of(asker)
	a := &groupAnswer{}
	if g := r.group.Load(); g != nil {
		if p := g.Acknowledged(asker); acked.Before(p) {
			acked = p
		}
		s, l := g.Status(), g.Leadership()
		a.Term, a.Last, a.Leads, a.Stopped = s.Term, s.LastIndex, l.Ready, r.stopped()
		if a.Leads {
			last := group.Position{Term: l.Term, Index: s.LastIndex}
			for _, m := range g.Members() {
				caughtUp := m.Learner && caughtUp(g.Acknowledged(m), last)
				a.Members = append(a.Members, memberAnswer{m.ID, m.Instance, m.Learner, caughtUp})
			}
			if p := r.partition.Load(); p != nil {
				load := p.Load()
				a.Keys, a.DecisionsPerSecond = load.Keys, r.rate.of(load.Decisions, time.Now())
			}
		}
	}
	a.Acknowledged = positionAnswer(acked)
	return a
}

// stopped is why the replica has stopped for good; empty while it has not.
func (r *replica) stopped() string {
	if p := r.partition.Load(); p != nil {
		return p.Status().Diverged
	}
	if a := r.inquiry.Load(); a != nil {
		return a.Stopped()
	}
	return ""
}

// leads reports whether this replica leads and may decide.
func (r *replica) leads() bool {
	g := r.group.Load()
	return g != nil && g.Leadership().Ready
}

// leader is who leads the group as this replica knows it; empty when it knows none.
func (r *replica) leader() string {
	if g := r.group.Load(); g != nil {
		if m, ok := g.Leader(); ok {
			return m.ID
		}
	}
	return ""
}

// suspect hears of another replica's digest and tells this one's.
func (r *replica) suspect(index uint64, other [16]byte) agreement.Opinion {
	if p := r.partition.Load(); p != nil {
		return p.Suspect(index, other)
	}
	if a := r.inquiry.Load(); a != nil {
		return a.Suspect(index, other)
	}
	return agreement.Opinion{}
}

// close closes the replica; its files stay.
func (r *replica) close() error {
	if p := r.partition.Swap(nil); p != nil {
		r.group.Store(nil)
		r.metrics.unregister()
		return p.Close()
	}
	if c := r.control.Swap(nil); c != nil {
		if a := r.inquiry.Load(); a != nil {
			a.Close()
		}
		r.group.Store(nil)
		return c.Close()
	}
	return nil
}
