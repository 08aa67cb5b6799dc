package admin

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// mayStart checks all of a plan that can be known before it is proposed, and says what is to be proposed.
func (a *Admin) mayStart(s *state.State, req *quoratev1.StartPlanRequest) (*state.StartPlan, error) {
	if err := checkWhy("comment", req.GetComment()); err != nil {
		return nil, err
	}
	kind, err := kindOf(req.GetKind())
	if err != nil {
		return nil, err
	}
	source, err := a.sourceOf(s, kind, req)
	if err != nil {
		return nil, err
	}
	out := &state.StartPlan{Kind: kind, Source: source.ID, AcceptLoss: req.GetAcceptLoss()}
	if out.Ranges, err = rangesOf(s, kind, source, req); err != nil {
		return nil, err
	}
	switch kind {
	case state.PlanMerge, state.PlanMove:
		to, err := a.destinationOf(s, source, req)
		if err != nil {
			return nil, err
		}
		out.Destination = to.ID
		return out, nil
	case state.PlanRecover:
		if err := a.mayRecover(s, source, req.GetNode()); err != nil {
			return nil, err
		}
		out.From = req.GetNode()
	case state.PlanSplit, state.PlanRestore:
	}
	if req.GetDestination() != "" {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"destination: a plan to %s makes its partition itself: leave it out, or use `quorate partition move`", kind)
	}
	out.New, err = a.places()
	return out, err
}

// places are the nodes that a new partition is made on, if all of them are there.
func (a *Admin) places() ([]string, error) {
	nodes := a.cluster.PlanReplicas()
	if len(nodes) == 0 {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"no node can take a replica of a new partition at present: see `quorate node list`")
	}
	for _, id := range nodes {
		if down := a.cluster.Down(id); down > 0 && id != a.cluster.Self() {
			return nil, quotaerr.New(quotaerr.InvalidArgument, "a new partition is to have a replica on node %s, which has not "+
				"answered for %s: start it, or have others take its place with `quorate node drain %s`", id,
				down.Round(time.Second), id)
		}
	}
	return nodes, nil
}

// kindOf is the kind of a plan that may be asked for.
func kindOf(kind quoratev1.PlanKind) (state.PlanKind, error) {
	for k, told := range planKinds {
		if told == kind && k != state.PlanRestore {
			return k, nil
		}
	}
	if kind == quoratev1.PlanKind_PLAN_KIND_RESTORE {
		return 0, quotaerr.New(quotaerr.InvalidArgument,
			"a backup is restored on blank nodes: use `quorate snapshot restore`")
	}
	return 0, quotaerr.New(quotaerr.InvalidArgument, "kind %d is unknown: say split, merge, move or recover", kind)
}

// sourceOf is the partition that is to give slots away, if it is free to and can.
func (a *Admin) sourceOf(
	s *state.State, kind state.PlanKind, req *quoratev1.StartPlanRequest,
) (*state.Partition, error) {
	if kind != state.PlanRecover && (req.GetNode() != "" || req.GetAcceptLoss()) {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"node and accept_loss belong to a recovery: a plan to %s moves what the leader has, and loses nothing", kind)
	}
	source, err := thePartition(s, req.GetSource())
	if err != nil {
		return nil, err
	}
	if p, in := s.Plan(source.Plan); in && (kind != state.PlanRecover || p.Phase == state.PlanOpen) {
		return nil, inPlan(source, p)
	}
	if p := s.Recovery(source.ID); p != nil {
		return nil, inPlan(source, p)
	}
	switch {
	case len(source.Ranges) == 0:
		return nil, quotaerr.New(quotaerr.InvalidArgument, "partition %s owns no slots: there is nothing to move", source.ID)
	case s.InForce() == nil:
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"no policy is in force, so nothing is counted yet: use `quorate policy apply` first")
	case kind == state.PlanRecover:
		return source, nil
	}
	return source, a.isLed(source)
}

// destinationOf is the partition that is to get slots, if it is free to and can.
func (a *Admin) destinationOf(
	s *state.State, source *state.Partition, req *quoratev1.StartPlanRequest,
) (*state.Partition, error) {
	to, err := thePartition(s, req.GetDestination())
	if err != nil {
		return nil, err
	}
	if to.ID == source.ID {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"source and destination are both %s: name two partitions, or use `quorate partition split %s`", to.ID, to.ID)
	}
	if p, in := s.Plan(to.Plan); in {
		return nil, inPlan(to, p)
	}
	return to, a.isLed(to)
}

// inPlan says that a partition is an end of another plan, and what can be done about that.
func inPlan(p *state.Partition, plan *state.Plan) error {
	if plan.Phase == state.PlanOpen && plan.Kind != state.PlanRestore {
		return quotaerr.New(quotaerr.InvalidArgument,
			"partition %s is in plan %d (%s, by %s): wait for it, see `quorate partition list`, or undo it with "+
				"`quorate partition abort %d`", p.ID, plan.ID, plan.Kind, plan.Author, plan.ID)
	}
	return quotaerr.New(quotaerr.InvalidArgument,
		"partition %s is in plan %d (%s), which is %s: wait until it has ended, see `quorate partition list`",
		p.ID, plan.ID, plan.Kind, plan.Phase)
}

// isLed refuses a partition that cannot make a step at present.
func (a *Admin) isLed(p *state.Partition) error {
	if _, ok := a.cluster.Leader(p.ID.String()); ok {
		return nil
	}
	return quotaerr.New(quotaerr.NoQuorum,
		"no leader of partition %s is known: see `quorate partition list`; if its majority is lost for good, use "+
			"`quorate partition recover %s --from NODE`", p.ID, p.ID)
}

// mayRecover refuses to make a partition anew that is not lost, or of a replica that is not there.
func (a *Admin) mayRecover(s *state.State, p *state.Partition, node string) error {
	if node == "" {
		return quotaerr.New(quotaerr.InvalidArgument, "node: name the one whose replica of %s is taken, one of %s", p.ID,
			strings.Join(p.Replicas, ", "))
	}
	n, ok := s.Node(node)
	switch leader, led := a.cluster.Leader(p.ID.String()); {
	case !ok || n.State == state.NodeRemoved:
		return unknownNode(node)
	case !slices.Contains(p.Replicas, node):
		return quotaerr.New(quotaerr.InvalidArgument, "node %s has no replica of %s: name one of %s", node, p.ID,
			strings.Join(p.Replicas, ", "))
	case led:
		return quotaerr.New(quotaerr.InvalidArgument,
			"partition %s is led by %s, so it has its majority, and nothing is lost: replace a lost node with "+
				"`quorate node replace`; if %s has just gone, ask again in ten seconds", p.ID, leader, leader)
	case node != a.cluster.Self() && a.cluster.Down(node) > 0:
		return quotaerr.New(quotaerr.InvalidArgument,
			"node %s does not answer, so its replica of %s cannot be read: start it, or name another one of %s", node, p.ID,
			strings.Join(p.Replicas, ", "))
	}
	return nil
}

// rangesOf are the slots that move; none where all do.
func rangesOf(
	s *state.State, kind state.PlanKind, source *state.Partition, req *quoratev1.StartPlanRequest,
) ([]fsm.SlotRange, error) {
	if kind == state.PlanMerge || kind == state.PlanRecover {
		if len(req.GetRanges()) > 0 {
			return nil, quotaerr.New(quotaerr.InvalidArgument,
				"ranges: a plan to %s moves all slots of %s: leave them out, or use `quorate partition move`", kind, source.ID)
		}
		return nil, nil
	}
	wanted, err := joined(req.GetRanges())
	if err != nil {
		return nil, err
	}
	if len(wanted) == 0 && kind == state.PlanSplit {
		if wanted = source.UpperHalf(); len(wanted) == 0 {
			return nil, quotaerr.New(quotaerr.InvalidArgument,
				"partition %s owns a single slot, the least that can move: it cannot be split", source.ID)
		}
		return wanted, nil
	}
	if len(wanted) == 0 {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "ranges: name the slots that are to move from %s, which owns %s",
			source.ID, state.InWords(source.Slots()))
	}
	if err := owns(s, source, wanted); err != nil {
		return nil, err
	}
	if size(wanted) < size(source.Slots()) {
		return wanted, nil
	}
	if kind == state.PlanSplit {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"slots %s are all that %s owns: a split must leave it some", state.InWords(wanted), source.ID)
	}
	return nil, quotaerr.New(quotaerr.InvalidArgument,
		"slots %s are all that %s owns, and it would end: say so with `quorate partition merge %s %s`", state.InWords(wanted),
		source.ID, source.ID, req.GetDestination())
}

// joined are ranges as they are asked for, sorted, without gaps between neighbours.
func joined(asked []*quoratev1.SlotRange) (out []fsm.SlotRange, err error) {
	if len(asked) > fsm.NumSlots {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "ranges: there are %d, at most %d are possible", len(asked),
			fsm.NumSlots)
	}
	sorted := slices.SortedFunc(slices.Values(asked), func(a, b *quoratev1.SlotRange) int {
		return cmp.Compare(a.GetFirstSlot(), b.GetFirstSlot())
	})
	for _, r := range sorted {
		first, last := r.GetFirstSlot(), r.GetLastSlot()
		n := len(out)
		switch {
		case first > last || last >= fsm.NumSlots:
			return nil, quotaerr.New(quotaerr.InvalidArgument,
				"slots %d-%d are no range: slots are from 0 to %d, the lower first", first, last, fsm.NumSlots-1)
		case n > 0 && first <= uint32(out[n-1].Last):
			return nil, quotaerr.New(quotaerr.InvalidArgument, "slots %d-%d and %d-%d have some in common: name each once",
				out[n-1].First, out[n-1].Last, first, last)
		}
		out = append(out, fsm.SlotRange{First: fsm.Slot(first), Last: fsm.Slot(last)})
	}
	return state.Join(out), nil
}

// owns refuses slots that the source does not own, and says whose the first one is.
func owns(s *state.State, source *state.Partition, wanted []fsm.SlotRange) error {
	for _, w := range wanted {
		for slot := int(w.First); slot <= int(w.Last); {
			owner, r := ownerOf(s, fsm.Slot(slot))
			switch {
			case owner == nil:
				return quotaerr.New(quotaerr.InvalidArgument, "slot %d is owned by nobody: see `quorate partition list`", slot)
			case owner.ID != source.ID:
				return quotaerr.New(quotaerr.InvalidArgument, "slots %d-%d are %s's, not %s's, which owns %s", slot,
					min(r.Last, w.Last), owner.ID, source.ID, state.InWords(source.Slots()))
			}
			slot = int(r.Last) + 1
		}
	}
	return nil
}

// ownerOf is the partition that owns a slot, and the range in which it is.
func ownerOf(s *state.State, slot fsm.Slot) (*state.Partition, state.Range) {
	for _, p := range s.Partitions {
		for _, r := range p.Ranges {
			if r.First <= slot && slot <= r.Last {
				return p, r
			}
		}
	}
	return nil, state.Range{}
}

func size(ranges []fsm.SlotRange) (slots int) {
	for _, r := range ranges {
		slots += int(r.Last) - int(r.First) + 1
	}
	return slots
}
