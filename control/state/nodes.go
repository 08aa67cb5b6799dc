package state

import "slices"

// putNode makes a node known, or takes its new addresses.
func (ch *change) putNode(p *PutNode) *Refusal {
	for _, f := range []struct {
		name, text string
		id, empty  bool
		maxBytes   int
	}{
		{name: "node id", text: p.ID, id: true},
		{name: "instance", text: p.Instance, id: true},
		{name: "grpc address", text: p.GRPC, maxBytes: MaxAddressBytes},
		{name: "http address", text: p.HTTP, maxBytes: MaxAddressBytes, empty: true},
		{name: "raft address", text: p.Raft, maxBytes: MaxAddressBytes},
		{name: "zone", text: p.Zone, maxBytes: MaxZoneBytes, empty: true},
	} {
		r := checkID(f.name, f.text, f.empty)
		if !f.id {
			r = checkName(f.name, f.text, f.maxBytes, f.empty)
		}
		if r != nil {
			return r
		}
	}
	for _, other := range ch.Nodes {
		if other.ID != p.ID && other.State != NodeRemoved && (other.Raft == p.Raft || other.GRPC == p.GRPC) {
			return refuse(CodeConflict, "node %s has the address %s or %s: give each node its own", other.ID, p.Raft, p.GRPC)
		}
	}
	n := Node{ID: p.ID, Instance: p.Instance, GRPC: p.GRPC, HTTP: p.HTTP, Raft: p.Raft, Zone: p.Zone, State: NodeActive}
	known, ok := ch.Node(p.ID)
	if !ok {
		if len(ch.Nodes) >= MaxNodes {
			return refuse(CodeBound, "%d nodes are known already, more are not possible", MaxNodes)
		}
	} else {
		if r := admits(known, p.Instance); r != nil {
			return r
		}
		n.Former = known.Former
		if known.State != NodeRemoved {
			n.State = known.State
		}
	}
	ch.setNode(&n)
	ch.remap()
	return nil
}

// admits refuses a data directory that cannot stand for the node.
func admits(known *Node, instance string) *Refusal {
	switch {
	case slices.Contains(known.Former, instance):
		return refuse(CodeConflict, "node %s was given another data directory, this one must not come back: "+
			"start it on an empty directory", known.ID)
	case known.Instance == "" || known.Instance == instance:
		return nil
	default:
		return refuse(CodeConflict, "node %s has another data directory; if that is lost, run node replace %s first",
			known.ID, known.ID)
	}
}

// loseNode gives up the data directory of a node, so that another can take its place.
func (ch *change) loseNode(id, instance string) *Refusal {
	known, ok := ch.Node(id)
	switch {
	case !ok:
		return refuse(CodeNotFound, "node %q is not known: see node list", id)
	case known.Instance == "" || known.Instance != instance:
		return refuse(CodeConflict, "node %s has the data directory %q now: look again, then repeat", id, known.Instance)
	}
	n := *known
	n.Instance, n.Former = "", former(known)
	ch.setNode(&n)
	return nil
}

// former are the instances of n that must not come back once its present one is given up.
func former(n *Node) []string {
	all := append(slices.Clone(n.Former), n.Instance)
	return all[max(0, len(all)-MaxFormerInstances):]
}

// nodeState drains a node, takes that back, or removes a node that has no replica left.
func (ch *change) nodeState(id string, to NodeState) *Refusal {
	known, ok := ch.Node(id)
	switch {
	case !ok:
		return refuse(CodeNotFound, "node %q is not known: see node list", id)
	case to < NodeActive || to > NodeRemoved:
		return refuse(CodeInvalid, "node state %d is unknown", to)
	case known.State == to:
		return nil
	case known.State == NodeRemoved:
		return refuse(CodeConflict, "node %s was removed: start it on an empty directory to add it again", id)
	}
	n := *known
	n.State = to
	if to == NodeRemoved {
		for _, p := range ch.Partitions {
			if slices.Contains(p.Replicas, id) {
				return refuse(CodeBusy, "node %s still holds a replica of %s: run node drain %s, and wait", id, p.ID, id)
			}
		}
		if n.Instance != "" {
			n.Instance, n.Former = "", former(known)
		}
		ch.remap()
	}
	ch.setNode(&n)
	return nil
}
