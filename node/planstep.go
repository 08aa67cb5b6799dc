package node

import (
	"context"
	"errors"
	"io"
	"iter"
	"sync"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/partition"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// findCarriedTimeout bounds how long a pull waits for the policies that the history carries which it has fetched.
const findCarriedTimeout = 10 * time.Second

// PlanStep makes a step of a plan at a partition, if this node leads it, and tells how the partition stands then. That
// the plan has ended there is no error: it is how it stands.
func (i *interior) PlanStep(
	ctx context.Context, q *quoratev1.PlanStepRequest,
) (*quoratev1.PlanStepResponse, error) {
	return (*Node)(i).planStepHere(ctx, q)
}

func (n *Node) planStepHere(ctx context.Context, q *quoratev1.PlanStepRequest) (*quoratev1.PlanStepResponse, error) {
	r, p, err := n.ledPartition(q.GetPartition())
	if err != nil {
		return nil, err
	}
	if q.GetPlan() == 0 {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "plan is missing")
	}
	out := &quoratev1.PlanStepResponse{}
	if err := n.makeStep(ctx, r, p, q, out); err != nil && !errors.Is(err, partition.ErrPlanEnded) {
		return nil, err
	}
	end, err := p.PlanEnd(fsm.PlanID(q.GetPlan()))
	if err != nil {
		return nil, err
	}
	out.End, out.Revision, out.Clearing = endsOnWire[end], uint64(p.Revision()), p.Clearing()
	return out, nil
}

// makeStep makes a step, and fills in what it came to.
func (n *Node) makeStep(
	ctx context.Context, r *replica, p *partition.Partition, q *quoratev1.PlanStepRequest,
	out *quoratev1.PlanStepResponse,
) error {
	plan := fsm.PlanID(q.GetPlan())
	ranges, err := slotRanges(q.GetRanges())
	if err != nil {
		return err
	}
	var proof fsm.Manifest
	switch q.GetStep() {
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_LOOK:
		return nil
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_PULL:
		return n.pull(ctx, r, p, q, out)
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_FREEZE:
		if proof, err = p.Freeze(ctx, plan, ranges, fsm.Revision(q.GetRevision())); err == nil {
			out.Manifest = manifestOnWire(proof)
		}
		return err
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_OPEN:
		frozen, err := manifestOf(q.GetManifest())
		if err != nil {
			return err
		}
		return p.OpenImport(ctx, plan, ranges, frozen)
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_SEAL:
		if err = n.holdCarried(ctx, p, plan); err != nil {
			return err
		}
		if proof, err = p.Seal(ctx, plan); err == nil {
			out.Manifest = manifestOnWire(proof)
		}
		return err
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_ACTIVATE:
		return p.Activate(ctx, plan, fsm.Epoch(q.GetEpoch()), q.GetLost())
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_RELEASE:
		return p.Release(ctx, plan)
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_ABORT:
		return p.AbortPlan(ctx, plan)
	case quoratev1.PlanStepKind_PLAN_STEP_KIND_UNSPECIFIED:
	}
	return quotaerr.New(quotaerr.InvalidArgument, "step %d is not known: check that the nodes' versions agree",
		q.GetStep())
}

// ledPartition is this node's replica of a partition that it leads.
func (n *Node) ledPartition(id string) (*replica, *partition.Partition, error) {
	r := n.hosted.of(id)
	var p *partition.Partition
	if r != nil {
		p = r.partition.Load()
	}
	if p == nil || !r.leads() {
		e := quotaerr.New(quotaerr.NotLeader, "this node does not lead partition %.63q", id)
		if r != nil && r.leader() != n.cfg.ID {
			e.Leader = r.leader()
		}
		return nil, nil, e
	}
	return r, p, nil
}

// turns lets one do something at a time: whoever comes ends who is at it.
type turns struct {
	mu   sync.Mutex // guards the fields below
	end  context.CancelFunc
	done chan struct{}
}

// take waits until who was at it has ended. done is to be called when this one has, which ctx may be told to.
func (t *turns) take(ctx context.Context) (_ context.Context, done func(), _ error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	t.mu.Lock()
	endLast, lastDone := t.end, t.done
	t.end, t.done = cancel, ended
	t.mu.Unlock()
	leave := func() {
		cancel()
		close(ended)
	}
	if endLast == nil {
		return ctx, leave, nil
	}
	endLast()
	select {
	case <-lastDone:
		return ctx, leave, nil
	case <-ctx.Done():
		go func() { // who comes next has to wait for that one all the same
			<-lastDone
			leave()
		}()
		return nil, nil, quotaerr.Wrap(quotaerr.Overloaded, ctx.Err(), "another pull has not ended yet: ask again")
	}
}

// pull fetches what a destination does not have of a plan's slots. It ends a pull that is under way. Whatever has come
// whole stays when it is cut short.
func (n *Node) pull(
	ctx context.Context, r *replica, p *partition.Partition, q *quoratev1.PlanStepRequest,
	out *quoratev1.PlanStepResponse,
) error {
	ctx, done, err := r.pulls.take(ctx)
	if err != nil {
		return err
	}
	defer done()
	plan := fsm.PlanID(q.GetPlan())
	have := p.Staged(plan)
	export := &quoratev1.ExportSlotsRequest{
		ClusterId: n.cfg.ClusterID, FromNode: n.cfg.ID, Source: q.GetSource(), Ranges: q.GetRanges(),
		AnyReplica: q.GetAnyReplica(), Have: make([]*quoratev1.SlotDigest, len(have)),
	}
	for i, h := range have {
		export.Have[i] = &quoratev1.SlotDigest{Slot: uint32(h.Slot), Digest: h.Digest[:]}
	}
	end, err := p.PlanEnd(plan)
	switch {
	case err != nil:
		return err
	case end == fsm.PlanEnded:
		return nil
	case end == fsm.PlanSealed: // it takes nothing more
		for m, err := range n.exportedBy(ctx, q.GetSourceNode(), export) {
			if err != nil {
				return err
			}
			out.Manifest = m.GetManifest()
		}
		return nil
	}
	if end < fsm.PlanOpen && n.diskLow.Load() {
		return quotaerr.New(quotaerr.Overloaded, "the disk of node %s has too little room left to move anything there",
			n.cfg.ID)
	}
	// What is copied before the freeze is not to keep anybody waiting; what comes after is what everybody waits for.
	gently := end < fsm.PlanOpen && !q.GetAnyReplica()
	err = n.stage(ctx, p, plan, gently, q.GetSourceNode(), export, out)
	var e *quotaerr.Error
	if errors.As(err, &e) && e.Reason == quotaerr.NotLeader && e.Leader != "" && e.Leader != q.GetSourceNode() &&
		out.GetSlots() == 0 {
		err = n.stage(ctx, p, plan, gently, e.Leader, export, out)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, findCarriedTimeout)
	defer cancel()
	return n.holdCarried(ctx, p, plan) // so that the seal need not wait for them
}

// holdCarried makes sure that a majority of the partition's replicas holds the policies which the history carries that
// was staged for a plan, before the entry that seals it names them: no replica applies that without them.
func (n *Node) holdCarried(ctx context.Context, p *partition.Partition, plan fsm.PlanID) error {
	refs, err := p.FindCarried(ctx, plan)
	if err != nil || len(refs) == 0 {
		return err
	}
	var voters []string
	for _, m := range p.Status().Members {
		if !m.Learner {
			voters = append(voters, m.ID)
		}
	}
	return n.holdBodies(ctx, voters, refs)
}

// holdBodies makes sure that a majority of some nodes holds the bodies of policies, and will for at least one body
// epoch more.
func (n *Node) holdBodies(ctx context.Context, nodes []string, refs []fsm.PolicyRef) error {
	c := n.control()
	for _, ref := range refs {
		d, epoch := state.Digest(ref.Body), c.State().BodyEpoch
		has, err := c.Bodies().Has(d, epoch)
		if err == nil && !has {
			err = n.fetchBody(ctx, d)
		}
		held, of := 0, len(nodes)
		if err == nil {
			held, of, err = n.spreadBodyTo(ctx, nodes, d, epoch)
		}
		if 2*held <= of {
			return quotaerr.Wrap(quotaerr.NoQuorum, err, "only %d of the partition's %d replicas hold policy revision %d, "+
				"which is carried: make their nodes reachable", held, of, ref.Revision)
		}
	}
	return nil
}

// stage puts into the log what a node exports.
func (n *Node) stage(
	ctx context.Context, p *partition.Partition, plan fsm.PlanID, gently bool, from string,
	q *quoratev1.ExportSlotsRequest, out *quoratev1.PlanStepResponse,
) error {
	return p.Stage(ctx, plan, gently, func(yield func([]fsm.Piece, error) bool) {
		for m, err := range n.exportedBy(ctx, from, q) {
			var pieces []fsm.Piece
			if err == nil {
				pieces, err = piecesOf(m)
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, piece := range pieces {
				if piece.Offset == 0 {
					out.Slots++
				}
				out.Size += uint64(len(piece.Data))
			}
			if m.GetManifest() != nil {
				out.Manifest = m.GetManifest()
			}
			if len(pieces) > 0 && !yield(pieces, nil) {
				return
			}
		}
	})
}

// exportedBy is what a node exports, which may be this one. Its errors are as the other node has them.
func (n *Node) exportedBy(
	ctx context.Context, node string, q *quoratev1.ExportSlotsRequest,
) iter.Seq2[*quoratev1.ExportSlotsResponse, error] {
	return func(yield func(*quoratev1.ExportSlotsResponse, error) bool) {
		if node == n.cfg.ID {
			messages, err := n.exportSlotsHere(ctx, q)
			if err != nil {
				yield(nil, err)
				return
			}
			messages(yield)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		peer, err := n.server.Peer(node)
		if err != nil {
			yield(nil, err)
			return
		}
		silent := time.AfterFunc(pieceTimeout, cancel)
		defer silent.Stop()
		stream, err := peer.ExportSlots(ctx, q)
		for err == nil {
			var m *quoratev1.ExportSlotsResponse
			silent.Reset(pieceTimeout)
			m, err = stream.Recv()
			silent.Stop() // what is done with it takes its own time
			if errors.Is(err, io.EOF) || err == nil && !yield(m, nil) {
				return
			}
		}
		yield(nil, errtable.FromStatus(err))
	}
}

// ends are the standings of a plan's end, as they are sent.
var endsOnWire = map[fsm.PlanEnd]quoratev1.PlanEnd{
	fsm.PlanNone: quoratev1.PlanEnd_PLAN_END_NONE, fsm.PlanFrozen: quoratev1.PlanEnd_PLAN_END_FROZEN,
	fsm.PlanStaging: quoratev1.PlanEnd_PLAN_END_STAGING, fsm.PlanOpen: quoratev1.PlanEnd_PLAN_END_OPEN,
	fsm.PlanSealed: quoratev1.PlanEnd_PLAN_END_SEALED, fsm.PlanEnded: quoratev1.PlanEnd_PLAN_END_ENDED,
}

// endOf is a standing that was sent; known is false where this program does not know it.
func endOf(wire quoratev1.PlanEnd) (end fsm.PlanEnd, known bool) {
	for end, w := range endsOnWire {
		if w == wire {
			return end, true
		}
	}
	return fsm.PlanNone, false
}

func manifestOnWire(m fsm.Manifest) *quoratev1.PlanManifest {
	return &quoratev1.PlanManifest{FrozenAt: int64(m.FrozenAt), Revision: uint64(m.Revision), Digest: m.Digest[:]}
}

// manifestOf reads a manifest.
func manifestOf(m *quoratev1.PlanManifest) (out fsm.Manifest, err error) {
	if m == nil || len(m.GetDigest()) != len(out.Digest) {
		return out, quotaerr.New(quotaerr.InvalidArgument, "a manifest with a digest of 16 bytes is missing")
	}
	if at := fsm.Time(m.GetFrozenAt()); at < -fsm.MaxTime || at > fsm.MaxTime {
		return out, quotaerr.New(quotaerr.InvalidArgument, "frozen_at is no partition time")
	}
	return fsm.Manifest{
		FrozenAt: fsm.Time(m.GetFrozenAt()), Revision: fsm.Revision(m.GetRevision()), Digest: [16]byte(m.GetDigest()),
	}, nil
}

// slotRanges reads ranges of slots, which are sorted and disjoint.
func slotRanges(in []*quoratev1.SlotRange) ([]fsm.SlotRange, error) {
	out := make([]fsm.SlotRange, len(in))
	next := uint32(0)
	for i, r := range in {
		if r.GetFirstSlot() < next || r.GetLastSlot() < r.GetFirstSlot() || r.GetLastSlot() >= fsm.NumSlots {
			return nil, quotaerr.New(quotaerr.InvalidArgument, "ranges: slots %d to %d are no range, or out of order",
				r.GetFirstSlot(), r.GetLastSlot())
		}
		next = r.GetLastSlot() + 1
		out[i] = fsm.SlotRange{First: fsm.Slot(r.GetFirstSlot()), Last: fsm.Slot(r.GetLastSlot())}
	}
	return out, nil
}

// ownedOnWire are ranges as they are sent with the epochs under which they have to be owned.
func ownedOnWire(in []state.Range) []*quoratev1.SlotRange {
	out := make([]*quoratev1.SlotRange, len(in))
	for i, r := range in {
		out[i] = &quoratev1.SlotRange{FirstSlot: uint32(r.First), LastSlot: uint32(r.Last), Epoch: uint64(r.Epoch)}
	}
	return out
}

// rangesOnWire are ranges as they are sent.
func rangesOnWire(in []fsm.SlotRange) []*quoratev1.SlotRange {
	out := make([]*quoratev1.SlotRange, len(in))
	for i, r := range in {
		out[i] = &quoratev1.SlotRange{FirstSlot: uint32(r.First), LastSlot: uint32(r.Last)}
	}
	return out
}

// piecesOf reads pieces.
func piecesOf(m *quoratev1.ExportSlotsResponse) ([]fsm.Piece, error) {
	out, size := make([]fsm.Piece, len(m.GetPieces())), 0
	for i, p := range m.GetPieces() {
		size += len(p.GetData())
		if p.GetSlot() > uint32(fsm.HistorySlot) || len(p.GetDigest()) != len(out[i].Digest) || size > fsm.MaxStageBytes {
			return nil, quotaerr.New(quotaerr.Internal,
				"pieces of slots came that cannot be read: check that the nodes' versions agree")
		}
		out[i] = fsm.Piece{
			Slot: fsm.Slot(p.GetSlot()), Digest: [16]byte(p.GetDigest()), Size: p.GetSize(), Offset: p.GetOffset(),
			Data: p.GetData(),
		}
	}
	return out, nil
}
