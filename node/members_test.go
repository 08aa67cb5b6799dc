package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/control/placement"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/group"
)

// mustState is a cluster's state with nodes n0, n1, …, each with the data directory i-ID, and one partition on the
// first of them, made by commands.
func mustState(t *testing.T, nodes int) *state.Machine {
	t.Helper()
	m := state.New()
	mustApply(t, m, &state.Command{Kind: state.KindInit, Init: &state.Init{
		Cluster: testCluster, Incarnation: 1, Seed: [16]byte{1},
	}})
	var ids []string
	for k := range nodes {
		id := fmt.Sprint("n", k)
		ids = append(ids, id)
		mustApply(t, m, &state.Command{Kind: state.KindPutNode, Node: &state.PutNode{
			ID: id, Instance: "i-" + id, GRPC: id + ":1", Raft: id + ":2",
		}})
	}
	mustApply(t, m, &state.Command{Kind: state.KindCreate, Create: &state.Create{
		Map: m.State().MapVersion, Replicas: ids[:min(3, nodes)], Ranges: []fsm.SlotRange{{First: 0, Last: fsm.NumSlots - 1}},
	}})
	return m
}

var applied uint64

func mustApply(t *testing.T, m *state.Machine, c *state.Command) {
	t.Helper()
	applied++
	c.Actor, c.ID = "test", state.CommandID{byte(applied), byte(applied >> 8)}
	if r, _ := m.Apply(applied, c); r.Refused != nil {
		t.Fatal(r.Refused)
	}
}

// membersNamed makes members of words: node, node+ for a learner, with @instance where it is not i-node.
func membersNamed(words ...string) (out []group.Member) {
	for _, w := range words {
		id, instance, other := strings.Cut(w, "@")
		id, learner := strings.CutSuffix(id, "+")
		if !other {
			instance = "i-" + id
		}
		out = append(out, group.Member{ID: id, Instance: instance, Addr: id + ":2", Learner: learner})
	}
	return out
}

// Shows the steps of a partition's leader n0 that is to have replicas on n0, n1 and n2: who is missing is added with the
// directory that the state has; a learner gets its vote when it has caught up in the leader's term and is up; a lost
// directory and a stale address are mended first; who is not wanted goes last, and only while a majority of the rest is
// up; a leader that is not wanted hands over.
func TestPartitionSteps(t *testing.T) {
	all := group.Position{Term: 5, Index: 100}
	for name, tt := range map[string]struct {
		members []group.Member
		acked   group.Position
		down    string
		wanted  []string
		want    string
	}{
		"one is missing":         {membersNamed("n0", "n1"), all, "", nil, "add learner n2@i-n2"},
		"nothing":                {membersNamed("n0", "n1", "n2"), all, "", nil, ""},
		"caught up":              {membersNamed("n0", "n1", "n2+"), group.Position{Term: 5, Index: 98}, "", nil, "promote n2@i-n2"},
		"behind":                 {membersNamed("n0", "n1", "n2+"), group.Position{Term: 5, Index: 97}, "", nil, ""},
		"of another term":        {membersNamed("n0", "n1", "n2+"), group.Position{Term: 4, Index: 100}, "", nil, ""},
		"a learner that is down": {membersNamed("n0", "n1", "n2+"), all, "n2", nil, ""},
		"not wanted":             {membersNamed("n0", "n1", "n2", "n3"), all, "", nil, "remove n3@i-n3"},
		"not wanted, not yet":    {membersNamed("n0", "n1", "n2+", "n3"), group.Position{}, "", nil, ""},
		"not wanted, no majority of the rest": {
			membersNamed("n0", "n1", "n3"), all, "n1", []string{"n0", "n1"}, ""},
		"a learner not wanted":    {membersNamed("n0", "n1", "n2", "n3+"), all, "", nil, "remove n3@i-n3"},
		"lost directory":          {membersNamed("n0", "n1@lost", "n2"), all, "", nil, "remove n1@lost"},
		"lost, but no majority":   {membersNamed("n0", "n1@lost", "n2"), all, "n2", nil, ""},
		"the leader not wanted":   {membersNamed("n0", "n1", "n2", "n3"), all, "", []string{"n1", "n2", "n3"}, "transfer leadership n1@i-n1"},
		"no successor that is up": {membersNamed("n0", "n1", "n2+"), all, "n1", []string{"n1"}, "remove n2@i-n2"},
	} {
		t.Run(name, func(t *testing.T) {
			m := mustState(t, 4)
			mustApply(t, m, &state.Command{Kind: state.KindLoseNode, NodeID: "n1", Instance: "i-n1"})
			mustApply(t, m, &state.Command{Kind: state.KindPutNode, Node: &state.PutNode{
				ID: "n1", Instance: "lost", GRPC: "n1:1", Raft: "n1:2",
			}})
			mustApply(t, m, &state.Command{Kind: state.KindLoseNode, NodeID: "n1", Instance: "lost"})
			mustApply(t, m, &state.Command{Kind: state.KindPutNode, Node: &state.PutNode{
				ID: "n1", Instance: "new", GRPC: "n1:1", Raft: "n1:2",
			}})
			for i := range tt.members { // n1 has its third directory
				if tt.members[i].Instance == "i-n1" {
					tt.members[i].Instance = "new"
				}
			}
			if tt.wanted != nil {
				p := m.State().Partitions[0]
				mustApply(t, m, &state.Command{Kind: state.KindReplicas, Partition: p.ID, Replicas: &state.Replicas{
					ConfVersion: p.ConfVersion, Nodes: tt.wanted,
				}})
			}
			ms := &membership{
				self: "n0", members: tt.members, last: all,
				acked: func(group.Member) group.Position { return tt.acked },
				up:    func(m group.Member) bool { return m.ID != tt.down },
			}
			got := ""
			if s := ms.step(m.State(), "p0", nil, time.Minute); s.kind != 0 {
				got = fmt.Sprintf("%s %s@%s", s.kind, s.member.ID, s.member.Instance)
			}
			if want := strings.ReplaceAll(tt.want, "i-n1", "new"); got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// Shows that a member whose node has moved gets its new address before anything else, and that a partition which the
// state does not have is left alone.
func TestStepsOfAMovedNode(t *testing.T) {
	m := mustState(t, 3)
	mustApply(t, m, &state.Command{Kind: state.KindPutNode, Node: &state.PutNode{
		ID: "n2", Instance: "i-n2", GRPC: "n2:1", Raft: "elsewhere:2",
	}})
	ms := &membership{self: "n0", members: membersNamed("n0", "n1", "n2"), up: func(group.Member) bool { return true }}
	for _, id := range []string{"p0", controlID} {
		if s := ms.step(m.State(), id, nil, time.Minute); s.kind != stepReaddress || s.member.Addr != "elsewhere:2" {
			t.Errorf("%s: %+v", id, s)
		}
	}
	ms.members = membersNamed("n0", "n1")
	if s := ms.step(m.State(), "p9", nil, time.Minute); s.kind != 0 {
		t.Errorf("a partition that is not there: %+v", s)
	}
}

// Shows that the control group of three nodes that n0 alone makes up at first gets the other two, one after another.
func TestControlSteps(t *testing.T) {
	m := mustState(t, 3)
	nodes := []placement.Node{
		{ID: "n0", State: state.NodeActive}, {ID: "n1", State: state.NodeActive}, {ID: "n2", State: state.NodeActive},
	}
	all := group.Position{Term: 5, Index: 100}
	ms := &membership{
		self: "n0", members: membersNamed("n0"), last: all,
		acked: func(group.Member) group.Position { return all }, up: func(group.Member) bool { return true },
	}
	var got []string
	for range 10 {
		s := ms.step(m.State(), controlID, nodes, time.Minute)
		if s.kind == 0 {
			break
		}
		got = append(got, fmt.Sprintf("%s %s@%s %s", s.kind, s.member.ID, s.member.Instance, s.member.Addr))
		switch s.kind {
		case stepAdd:
			s.member.Learner = true
			ms.members = append(ms.members, s.member)
		case stepPromote:
			for i := range ms.members {
				ms.members[i].Learner = ms.members[i].Learner && ms.members[i].ID != s.member.ID
			}
		}
	}
	want := []string{
		"add learner n1@i-n1 n1:2", "promote n1@i-n1 n1:2", "add learner n2@i-n2 n2:2", "promote n2@i-n2 n2:2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
