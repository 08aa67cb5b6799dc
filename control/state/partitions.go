package state

import (
	"slices"

	"github.com/quorate/quorate/fsm"
)

// create makes a partition, which may own slots that nobody owns.
func (ch *change) create(c *Create) *Refusal {
	if c.Map != ch.MapVersion {
		return ch.mapMoved()
	}
	var owned []Range
	if len(c.Ranges) > 0 {
		if r := checkRanges(c.Ranges); r != nil {
			return r
		}
		if owner, r, ok := ch.owner(c.Ranges); ok {
			return refuse(CodeConflict, "slots %d to %d are owned by %s: move them by a plan", r.First, r.Last, owner)
		}
		epoch, r := ch.nextEpoch()
		if r != nil {
			return r
		}
		owned = under(epoch, c.Ranges)
	}
	p, r := ch.found(c.Replicas, owned)
	if r != nil {
		return r
	}
	ch.result.Partition, ch.object = p.ID, "partition "+p.ID.String()
	return nil
}

// found makes a partition on nodes, of which the first founds it.
func (ch *change) found(nodes []string, owned []Range) (*Partition, *Refusal) {
	if len(ch.Partitions) >= MaxPartitions {
		return nil, refuse(CodeBound, "there are %d partitions already: merge some", MaxPartitions)
	}
	replicas, r := ch.checkReplicas(nodes)
	if r != nil {
		return nil, r
	}
	founder, _ := ch.Node(nodes[0])
	if founder.Instance == "" {
		return nil, refuse(CodeConflict, "node %s has no data directory at present: name another first", founder.ID)
	}
	p := &Partition{
		ID: ch.NextPartition, Ranges: owned, Replicas: replicas, ConfVersion: 1,
		Founder: founder.ID + "@" + founder.Instance,
	}
	ch.NextPartition++
	ch.setPartition(p)
	ch.remap()
	return p, nil
}

// owner is a partition that owns some of these slots, and a range of it in which they are; false when nobody does.
func (ch *change) owner(wanted []fsm.SlotRange) (PartitionID, Range, bool) {
	for _, p := range ch.Partitions {
		for _, o := range p.Ranges {
			if overlap(wanted, []fsm.SlotRange{o.SlotRange}) {
				return p.ID, o, true
			}
		}
	}
	return 0, Range{}, false
}

func (ch *change) mapMoved() *Refusal {
	r := refuse(CodeConflict, "the partition map is at version %d now: look again, then repeat", ch.MapVersion)
	r.Current = ch.MapVersion
	return r
}

// nextEpoch is a new ownership epoch, larger than any before it.
func (ch *change) nextEpoch() (fsm.Epoch, *Refusal) {
	if ch.Counter >= maxCounter {
		return 0, refuse(CodeBound, "this incarnation of the cluster has used up its ownership epochs")
	}
	ch.Counter++
	return fsm.NewEpoch(ch.Incarnation, ch.Counter), nil
}

// checkReplicas is the sorted replica set, of nodes that can have a replica.
func (ch *change) checkReplicas(nodes []string) ([]string, *Refusal) {
	if len(nodes) == 0 || len(nodes) > MaxReplicas {
		return nil, refuse(CodeInvalid, "%d replicas: a partition has 1 to %d", len(nodes), MaxReplicas)
	}
	sorted := slices.Clone(nodes)
	slices.Sort(sorted)
	for i, id := range sorted {
		n, ok := ch.Node(id)
		switch {
		case !ok || n.State == NodeRemoved:
			return nil, refuse(CodeNotFound, "node %q is not known or was removed: see node list", id)
		case i > 0 && id == sorted[i-1]:
			return nil, refuse(CodeInvalid, "node %q is named twice", id)
		}
	}
	return sorted, nil
}

// setReplicas changes the replica set, by compare-and-set.
func (ch *change) setReplicas(id PartitionID, c *Replicas) *Refusal {
	p, ok := ch.Partition(id)
	if !ok {
		return refuse(CodeNotFound, "partition %s is not there: see partition list", id)
	}
	if c.ConfVersion != p.ConfVersion {
		r := refuse(CodeConflict, "the replicas of %s are at version %d now: look again, then repeat", id, p.ConfVersion)
		r.Current = p.ConfVersion
		return r
	}
	replicas, r := ch.checkReplicas(c.Nodes)
	if r != nil {
		return r
	}
	next := *p
	next.Replicas = replicas
	next.ConfVersion++
	ch.setPartition(&next)
	ch.remap()
	return nil
}

// retire takes a partition that owns nothing out of the map. Its id is not used again.
func (ch *change) retire(id PartitionID) *Refusal {
	p, ok := ch.Partition(id)
	switch {
	case !ok:
		return refuse(CodeNotFound, "partition %s is not there: see partition list", id)
	case p.Plan != 0:
		return refuse(CodeBusy, "partition %s is in plan %d: close that first", id, p.Plan)
	case len(p.Ranges) > 0:
		return refuse(CodeBusy, "partition %s still owns slots: merge it into another first", id)
	}
	ch.remove(p)
	return nil
}

// remove takes a partition out of the map, for good.
func (ch *change) remove(p *Partition) {
	ch.elements.sub(hashOf(tagPartition, p, (*codec).partition))
	ch.Partitions = without(ch.Partitions, p.ID, partitionID)
	ch.remap()
}

// installed notes what partitions have installed. An older note, or one about a partition that has gone,
// is no error: it was late.
func (ch *change) installed(notes []Note) *Refusal {
	if len(notes) > MaxNotes {
		return refuse(CodeBound, "%d notes in one command: send at most %d", len(notes), MaxNotes)
	}
	for _, n := range notes {
		if n.Revision > ch.RevisionNumber() {
			return refuse(CodeInvalid, "partition %s cannot have installed revision %d: the newest is %d",
				n.Partition, n.Revision, ch.RevisionNumber())
		}
		p, ok := ch.Partition(n.Partition)
		if !ok || n.Revision <= p.Installed {
			continue
		}
		next := *p
		next.Installed = n.Revision
		ch.setPartition(&next)
	}
	return nil
}
