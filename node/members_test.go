package node

import (
	"fmt"
	"os"
	"path/filepath"
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

func mustMemory(t *testing.T, dir string) *memory {
	t.Helper()
	m, err := loadMemory(dir, "p0")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Shows that the furthest position of each replica is remembered through a restart, by term first, apart
// for each data directory; that removed replicas are forgotten; and that a damaged file, or one of another
// group, is refused.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	m := mustMemory(t, dir)
	old, young := group.Member{ID: "n1", Instance: "old"}, group.Member{ID: "n1", Instance: "young"}
	for _, p := range []group.Position{{Term: 2, Index: 9}, {Term: 3, Index: 5}, {Term: 2, Index: 99}} {
		m.note(old, p)
	}
	m.note(young, group.Position{Term: 1, Index: 1})
	if err := m.save(); err != nil {
		t.Fatal(err)
	}
	m = mustMemory(t, dir)
	if got, want := m.of(old), (group.Position{Term: 3, Index: 5}); got != want {
		t.Errorf("remembered %+v, want %+v", got, want)
	}
	m.keepOnly([]group.Member{young})
	if err := m.save(); err != nil {
		t.Fatal(err)
	}
	m = mustMemory(t, dir)
	if got := (m.of(old)); got != (group.Position{}) || m.of(young).Index != 1 {
		t.Errorf("a removed one: %+v; the present one: %+v", got, m.of(young))
	}
	path := filepath.Join(dir, memoryFolder, "p0.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mustWriteFile(t, filepath.Join(dir, memoryFolder, "p1.json"), whole)
	if _, err := loadMemory(dir, "p1"); err == nil {
		t.Error("another group's is taken")
	}
	for i := range whole {
		whole[i] ^= 1
		mustWriteFile(t, path, whole)
		if _, err := loadMemory(dir, "p0"); err == nil {
			t.Errorf("a flipped bit in byte %d is not seen", i)
		}
		whole[i] ^= 1
	}
	mustWriteFile(t, path, whole[:len(whole)/2])
	if _, err := loadMemory(dir, "p0"); err == nil {
		t.Error("a cut file is taken")
	}
}

// Shows which directories are refused before they take part: a log that ends before what another node saw
// it have, whatever its length; one that the leader no longer counts on; and that one which was cut back
// and went on in a later term is not, nor one of a partition that was moved away.
func TestOlderCopy(t *testing.T) {
	n, _ := mustClaimed(t)
	at := func(term, index uint64) group.Position { return group.Position{Term: term, Index: index} }
	leads := func(members ...group.Member) *groupAnswer {
		a := &groupAnswer{Leads: true}
		for _, m := range members {
			a.Members = append(a.Members, memberAnswer{Node: m.ID, Instance: m.Instance})
		}
		return a
	}
	self := "n2@" + n.claim.Instance()
	for name, tt := range map[string]struct {
		id          string
		last, acked group.Position
		group       *groupAnswer
		want        string
	}{
		"whole":                {"p0", at(2, 9), at(2, 9), nil, ""},
		"further":              {"p0", at(2, 9), at(2, 5), nil, ""},
		"replaced suffix":      {"p0", at(3, 8), at(2, 20), nil, ""},
		"short":                {"p0", at(2, 8), at(2, 9), nil, "quorate node replace n2"},
		"long but older":       {controlID, at(2, 80), at(3, 9), nil, "older copy"},
		"emptied":              {"p0", at(0, 0), at(1, 1), nil, "older copy"},
		"member":               {"p0", at(2, 9), at(0, 0), leads(membersNamed(self)...), ""},
		"another is counted":   {"p0", at(2, 9), at(0, 0), leads(membersNamed("n2@x")...), "counts on another"},
		"taken out":            {controlID, at(2, 9), at(0, 0), leads(membersNamed("n0")...), "taken out"},
		"moved away":           {"p0", at(2, 9), at(0, 0), leads(membersNamed("n0")...), ""},
		"hearsay of a removal": {controlID, at(2, 9), at(0, 0), &groupAnswer{}, ""},
		"waits to be added":    {controlID, at(0, 0), at(0, 0), leads(membersNamed("n0")...), ""},
	} {
		g := tt.group
		if g == nil {
			g = &groupAnswer{}
		}
		g.Acknowledged = positionAnswer(tt.acked)
		r := &replica{id: tt.id, node: n}
		err := r.compare(tt.last, &answer{Self: nodeAnswer{ID: "n0"}, Groups: map[string]*groupAnswer{tt.id: g}})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// Shows that a question of another version, in another's name, of another kind, or with something behind it, is
// answered with an error that says so, and a proper one by who the node is.
func TestQuestionsAreStrict(t *testing.T) {
	n, _ := mustClaimed(t)
	const self = `"self":{"id":"n0","instance":"x"}`
	for body, want := range map[string]string{
		`{"version":2,"kind":"who",` + self + `}`:                                                                   "",
		`{"version":1,"kind":"who",` + self + `}`:                                                                   "version 1",
		`{"version":2,"kind":"who",` + self + `,"more":1}`:                                                          "",
		`{"version":2,"kind":"who",` + self + `}{}`:                                                                 "after top-level value",
		`{"version":2,"kind":"why",` + self + `}`:                                                                   "not known",
		`{"version":2,"kind":"who","self":{"id":"n1","instance":"x"}}`:                                              "in the name of",
		`{"version":2,"kind":"digest",` + self + `,"to":"y","index":1,"digest":"zz"}`:                               "not a digest",
		`{"version":2,"kind":"digest",` + self + `,"to":"y","index":1,"digest":"` + strings.Repeat("ab", 16) + `"}`: "another data directory",
		``: "the question",
	} {
		var a answer
		if err := decodeVersion(n.answer("n0", []byte(body)), questionVersion, &a); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(a.Error, want) || want == "" && (a.Error != "" || a.Self.ID != "n2" || a.Has) {
			t.Errorf("%s: %+v, want %q", body, a, want)
		}
	}
}

// Shows that a disk that was low stays so until there is a quarter more room than the bound.
func TestDiskWatermark(t *testing.T) {
	for _, tt := range []struct {
		was  bool
		free uint64
		want bool
	}{{false, 100, false}, {false, 99, true}, {true, 100, true}, {true, 124, true}, {true, 125, false}} {
		if got := diskIsLow(tt.was, tt.free, 100); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}
