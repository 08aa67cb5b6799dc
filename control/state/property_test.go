package state_test

import (
	"bytes"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

func mustRestore(t testing.TB, s *state.State) *state.Machine {
	t.Helper()
	m, err := restored(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func restored(s *state.State) (*state.Machine, error) {
	var b bytes.Buffer
	n, err := s.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		return nil, fmt.Errorf("%d bytes of %d: %w", n, b.Len(), err)
	}
	b.WriteString("what follows")
	m, err := state.Restore(&b)
	if err == nil && b.String() != "what follows" {
		err = fmt.Errorf("%d bytes are left", b.Len())
	}
	return m, err
}

// mustRoundTrip decodes what it encodes, and wants nothing lost.
func mustRoundTrip(t testing.TB, c *state.Command) *state.Command {
	t.Helper()
	got, err := state.DecodeCommand(state.AppendCommand(nil, c))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(c, got); diff != "" {
		t.Fatal(diff)
	}
	return got
}

func drawRanges(t *rapid.T) (out []fsm.SlotRange) {
	first := rapid.IntRange(0, 15).Draw(t, "first") * 1000
	last := min(first+rapid.IntRange(1, 9).Draw(t, "thousands")*1000, fsm.NumSlots) - 1
	return []fsm.SlotRange{{First: fsm.Slot(first), Last: fsm.Slot(last)}}
}

// drawCommand is mostly what the state would accept.
func drawCommand(t *rapid.T, s *state.State) *state.Command {
	nodes := []string{"a", "b", "c", "d"}
	node := rapid.SampledFrom(nodes)
	partition := rapid.Custom(func(t *rapid.T) state.PartitionID {
		return state.PartitionID(rapid.Uint64Range(0, 4).Draw(t, "partition"))
	})
	revision := rapid.Custom(func(t *rapid.T) fsm.Revision {
		return fsm.Revision(max(0, len(s.Revisions)-rapid.SampledFrom([]int{0, 0, 0, 1, 5}).Draw(t, "back")))
	})
	plan := rapid.Custom(func(t *rapid.T) fsm.PlanID {
		return s.LastPlan - min(s.LastPlan, fsm.PlanID(rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "plan")))
	})
	c := &state.Command{
		Kind:      state.Kind(rapid.IntRange(1, 22).Draw(t, "kind")),
		Actor:     rapid.SampledFrom([]string{"", "kim", "x\xff"}).Draw(t, "actor"),
		WallNanos: rapid.Int64().Draw(t, "wall"), Comment: rapid.SampledFrom([]string{"", "why"}).Draw(t, "comment"),
	}
	if rapid.IntRange(0, 2).Draw(t, "a plan") == 0 {
		c.Kind = rapid.SampledFrom([]state.Kind{
			state.KindStartPlan, state.KindStartPlan, state.KindDecidePlan, state.KindAbortPlan, state.KindClosePlan,
		}).Draw(t, "step")
	}
	c.ID[0] = byte(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 3}).Draw(t, "id"))
	switch c.Kind {
	case state.KindInit:
		c.Init = &state.Init{Cluster: "c", Incarnation: 3, Seed: [16]byte{1}}
		if rapid.Bool().Draw(t, "of a backup") {
			c.Init = backupInit()
		}
	case state.KindPutNode:
		id := node.Draw(t, "node")
		c.Node = &state.PutNode{ID: id, Instance: id + rapid.SampledFrom([]string{"1", "1", "2"}).Draw(t, "instance"), GRPC: id + ":1", Raft: id + ":2"}
	case state.KindLoseNode:
		c.NodeID = node.Draw(t, "node")
		c.Instance = c.NodeID + "1"
	case state.KindNodeState:
		c.NodeID, c.State = node.Draw(t, "node"), state.NodeState(rapid.IntRange(0, 4).Draw(t, "state"))
	case state.KindCreate:
		c.Create = &state.Create{Map: s.MapVersion, Replicas: []string{node.Draw(t, "replica")}}
		if rapid.Bool().Draw(t, "owns") {
			c.Create.Ranges = drawRanges(t)
		}
	case state.KindRetire:
		c.Partition = partition.Draw(t, "p")
	case state.KindReplicas:
		c.Partition = partition.Draw(t, "p")
		c.Replicas = &state.Replicas{ConfVersion: 1, Nodes: []string{node.Draw(t, "x"), node.Draw(t, "y")}}
	case state.KindStartPlan:
		c.Start = drawPlan(t, partition)
	case state.KindDecidePlan:
		c.Plan, c.Decide = plan.Draw(t, "plan"), &state.Decide{Exported: [16]byte{1}, Imported: [16]byte{1}}
	case state.KindAbortPlan, state.KindClosePlan:
		c.Plan = plan.Draw(t, "plan")
	case state.KindPublish:
		c.Publish = &state.Publish{
			Base: revision.Draw(t, "base"), Label: fmt.Sprint("p", rapid.IntRange(0, 30).Draw(t, "label")),
			Body: state.Digest{byte(rapid.IntRange(1, 5).Draw(t, "body"))}, Bytes: 7, Held: true, BodyEpoch: s.BodyEpoch,
		}
	case state.KindSwitchClass:
		c.Switch = &state.SwitchClass{Base: revision.Draw(t, "base"), Class: node.Draw(t, "class"), Disabled: rapid.Bool().Draw(t, "off")}
	case state.KindRollback:
		c.Rollback = &state.Rollback{Base: revision.Draw(t, "base"), To: revision.Draw(t, "to"), Held: true, BodyEpoch: s.BodyEpoch}
	case state.KindInstalled:
		c.Installed = []state.Note{{Partition: partition.Draw(t, "p"), Revision: revision.Draw(t, "r")}}
	case state.KindSweep:
		c.Epoch = s.BodyEpoch
	case state.KindAttempt:
		c.Attempt = &state.Attempt{Action: "policy.publish", Object: "policy p1", Reason: "denied"}
	case state.KindRaise:
		c.Level = s.Level + 1
	case state.KindPutToken:
		c.Token = &state.Token{
			ID: node.Draw(t, "token"), Name: "kim", Role: rapid.SampledFrom([]string{"admin", "viewer", "node"}).Draw(t, "role"),
			Hash: [32]byte{1}, ExpiresNanos: rapid.Int64Range(0, 9).Draw(t, "until"),
		}
	case state.KindRevokeToken:
		c.TokenID = node.Draw(t, "token")
	case state.KindNote:
		c.Act = &state.Act{Action: "usage.forgive", Object: "principal acme", Message: "all classes"}
	case state.KindConfirm:
	}
	return c
}

// drawPlan is mostly well-formed.
func drawPlan(t *rapid.T, partition *rapid.Generator[state.PartitionID]) *state.StartPlan {
	p := &state.StartPlan{Kind: state.PlanKind(rapid.IntRange(1, 5).Draw(t, "plan kind")), Source: partition.Draw(t, "p")}
	if p.Kind == state.PlanMerge || p.Kind == state.PlanMove {
		p.Destination = partition.Draw(t, "p")
	} else {
		p.New = []string{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "new")}
	}
	if p.Kind != state.PlanMerge && p.Kind != state.PlanRecover {
		p.Ranges = drawRanges(t)
	}
	if p.Kind == state.PlanRecover || p.Kind == state.PlanRestore {
		p.From, p.AcceptLoss = "a", rapid.Bool().Draw(t, "loss")
	}
	return p
}

// backupInit makes a cluster of a backup.
func backupInit() *state.Init {
	return &state.Init{Cluster: "c", Incarnation: 3, Restored: &state.Restored{
		Cluster: "c", Incarnation: 2, Seed: [16]byte{1}, NextPartition: 3, LastPlan: 8, Backup: state.Digest{4},
		Revisions: someRevisions(1, 2), Tokens: []*state.Token{{
			ID: "t", Name: "kim", Role: state.RoleViewer, Hash: [32]byte{1}, ExpiresNanos: 9, Revoked: true,
		}},
	}}
}

// prefix makes a cluster, so that most of what is drawn is accepted.
func prefix(m *state.Machine) (index uint64) {
	return begin(m, &state.Init{Cluster: "c", Incarnation: 3, Seed: [16]byte{1}})
}

// begin makes a cluster of three nodes, with a partition that owns all slots, or none if it is made of a backup, and
// one that owns none.
func begin(m *state.Machine, init *state.Init) (index uint64) {
	commands := []*state.Command{{Kind: state.KindInit, Init: init}}
	for _, id := range []string{"a", "b", "c"} {
		commands = append(commands, &state.Command{Kind: state.KindPutNode, Node: &state.PutNode{ID: id, Instance: id + "1", GRPC: id + ":1", Raft: id + ":2"}})
	}
	if init.Restored == nil {
		commands = append(commands,
			&state.Command{Kind: state.KindCreate, Create: &state.Create{Map: 4, Replicas: []string{"a"}, Ranges: []fsm.SlotRange{{First: 0, Last: fsm.NumSlots - 1}}}},
			&state.Command{Kind: state.KindCreate, Create: &state.Create{Map: 5, Replicas: []string{"b"}}})
	}
	for _, c := range commands {
		index++
		if r, _ := m.Apply(index, c); r.Refused != nil {
			panic(r.Refused)
		}
	}
	return index
}

// Shows, for any commands: the same ones give the same results, records and digest on another machine; a
// snapshot at any point has the same future; a state that was given out does not change; what must only grow
// only grows; no slot has two owners; the records' running hash is the state's.
func TestAnyCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := state.New(), state.New()
		index := uint64(0)
		switch rapid.IntRange(0, 3).Draw(t, "born") {
		case 1:
			index = begin(a, backupInit())
			begin(b, backupInit())
		case 2, 3:
			index = prefix(a)
			prefix(b)
		}
		hash := a.State().AuditHash
		for range rapid.IntRange(1, 60).Draw(t, "commands") {
			if rapid.IntRange(0, 9).Draw(t, "restore") == 0 {
				m, err := restored(b.State())
				if err != nil {
					t.Fatal(err)
				}
				b = m
			}
			before := a.State()
			digest := before.Digest()
			c := drawCommand(t, before)
			decoded, err := state.DecodeCommand(state.AppendCommand(nil, c))
			if err != nil {
				t.Fatal(err)
			}
			index++
			r1, rec1 := a.Apply(index, c)
			r2, rec2 := b.Apply(index, decoded)
			if !reflect.DeepEqual(r1, r2) || !reflect.DeepEqual(rec1, rec2) {
				t.Fatalf("%+v and %+v", r1, r2)
			}
			now := a.State()
			if now.Digest() != b.State().Digest() {
				t.Fatal("the digests differ")
			}
			if before.Digest() != digest {
				t.Fatal("a state that was given out has changed")
			}
			if _, err := restored(before); err != nil {
				t.Fatalf("a state that was given out: %v", err)
			}
			if rec1 != nil {
				hash = state.NextHash(hash, rec1)
			}
			if hash != now.AuditHash {
				t.Fatal("the running hash is not that of the records")
			}
			if err := onlyGrows(before, now, r1); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func onlyGrows(before, now *state.State, r state.Result) error {
	if now.MapVersion < before.MapVersion || now.Counter < before.Counter || now.NextPartition < before.NextPartition ||
		now.LastPlan < before.LastPlan || now.BodyEpoch < before.BodyEpoch || now.Version < before.Version ||
		now.AuditCount < before.AuditCount {
		return fmt.Errorf("something went back: %+v, %+v", before, now)
	}
	if now != before && now.Version != before.Version+1 && !r.Repeated {
		return fmt.Errorf("version %d after %d", now.Version, before.Version)
	}
	if r.Refused != nil && (now.MapVersion != before.MapVersion || len(now.Revisions) != len(before.Revisions)) {
		return fmt.Errorf("refused, and yet changed: %w", r.Refused)
	}
	for _, p := range now.Partitions { // an owner of a slot changes under a larger epoch only
		for _, rng := range p.Ranges {
			for _, old := range before.Partitions {
				for _, was := range old.Ranges {
					if old.ID != p.ID && was.First <= rng.Last && rng.First <= was.Last && was.Epoch >= rng.Epoch {
						return fmt.Errorf("%s took slots of %s under epoch %d, not above %d", p.ID, old.ID, rng.Epoch, was.Epoch)
					}
				}
			}
		}
	}
	return plansHold(before, now)
}

// plansHold: a partition in a plan is an end of one that is not closed, and leaves it only when that is closed or a
// recovery of the partition is decided; at most one recovers a partition, which is in a plan then; and a slot that had an
// owner has one.
func plansHold(before, now *state.State) error {
	for _, p := range now.Partitions {
		plan, open := now.Plan(p.Plan)
		if p.Plan != 0 && (!open || plan.Destination != p.ID && plan.Source != p.ID) {
			return fmt.Errorf("%s is in plan %d, which is %+v", p.ID, p.Plan, plan)
		}
		was, _ := before.Partition(p.ID)
		if was == nil || was.Plan == 0 || was.Plan == p.Plan {
			continue
		}
		if _, goesOn := now.Plan(was.Plan); goesOn && (plan == nil || plan.Kind != state.PlanRecover || plan.Phase != state.PlanDecided) {
			return fmt.Errorf("plan %d, which goes on, has lost %s to %+v", was.Plan, p.ID, plan)
		}
	}
	recovered := map[state.PartitionID]bool{}
	for _, plan := range now.Plans {
		if plan.Kind != state.PlanRecover || plan.Phase != state.PlanOpen {
			continue
		}
		source, _ := now.Ends(plan)
		if source == nil || source.ID != plan.Source || source.Plan == 0 || recovered[plan.Source] {
			return fmt.Errorf("plan %d recovers %+v; others are recovered too: %v", plan.ID, source, recovered)
		}
		recovered[plan.Source] = true
	}
	if now.MapVersion == before.MapVersion {
		return nil
	}
	var had, has [fsm.NumSlots]bool
	for s, owned := range map[*state.State]*[fsm.NumSlots]bool{before: &had, now: &has} {
		for _, p := range s.Partitions {
			for _, r := range p.Ranges {
				for slot := int(r.First); slot <= int(r.Last); slot++ {
					owned[slot] = true
				}
			}
		}
	}
	for slot := range had {
		if had[slot] && !has[slot] {
			return fmt.Errorf("slot %d has lost its owner", slot)
		}
	}
	return nil
}

// Shows that at the bounds the oldest of what may be forgotten is, with the digest still that of the rest.
func TestBounds(t *testing.T) {
	m := state.New()
	index := prefix(m)
	for i := range state.MaxRevisions + 10 {
		index++
		c := &state.Command{Kind: state.KindPublish, Publish: &state.Publish{
			Base: fsm.Revision(i), Label: fmt.Sprint("p", i), Body: state.Digest{0xff, byte(i), byte(i >> 8)}, Bytes: 1, Held: true,
		}}
		c.ID[0], c.ID[1], c.ID[2] = 1, byte(i), byte(i>>8)
		if r, _ := m.Apply(index, c); r.Refused != nil {
			t.Fatalf("%d: %v", i, r.Refused)
		}
	}
	s := m.State()
	if n := len(s.Revisions); n != state.MaxRevisions || s.Revisions[0].Number != 11 {
		t.Fatalf("%d revisions from %d", n, s.Revisions[0].Number)
	}
	if got := mustRestore(t, s).State().Digest(); got != s.Digest() {
		t.Fatal("the digest is not that of the contents")
	}
	if r, _ := m.Apply(index+1, &state.Command{Kind: state.KindRollback, Rollback: &state.Rollback{Base: s.InForce().Number, To: 5, Held: true}}); r.Refused == nil {
		t.Fatal("a forgotten revision came back")
	}
}

// Shows that at the bound a token that is valid no longer makes room for a new one, the one that ended first
// before others, and that valid ones do not; and that the digest is then still that of the rest.
func TestTokensMakeRoom(t *testing.T) {
	m := state.New()
	index := prefix(m)
	apply := func(c *state.Command) *state.Refusal {
		index++
		r, _ := m.Apply(index, c)
		return r.Refused
	}
	put := func(id string, now, until int64) *state.Refusal {
		return apply(&state.Command{Kind: state.KindPutToken, WallNanos: now, Token: &state.Token{
			ID: id, Name: "kim", Role: state.RoleViewer, Hash: [32]byte{1}, CreatedNanos: now, ExpiresNanos: until,
		}})
	}
	for i := range int64(state.MaxTokens) {
		if r := put(fmt.Sprint("t", i), 0, 1000+i); r != nil {
			t.Fatal(r)
		}
	}
	if r := put("late", 999, 5000); r == nil || r.Code != state.CodeBound {
		t.Fatalf("beside %d valid ones: %v", state.MaxTokens, r)
	}
	if r := put("late", 1001, 5000); r != nil {
		t.Fatal(r)
	}
	if r := apply(&state.Command{Kind: state.KindRevokeToken, TokenID: "t9"}); r != nil {
		t.Fatal(r)
	}
	for _, id := range []string{"later", "latest"} { // t1 has ended, t9 was revoked
		if r := put(id, 1001, 5000); r != nil {
			t.Fatal(r)
		}
	}
	for id, there := range map[string]bool{"t0": false, "t1": false, "t9": false, "t2": true, "latest": true} {
		if _, ok := m.State().Token(id); ok != there {
			t.Errorf("token %s is there: %t", id, ok)
		}
	}
	if got := mustRestore(t, m.State()).State().Digest(); got != m.State().Digest() {
		t.Error("the digest is not that of the contents")
	}
}

// Shows that bodies are wanted for the newest revisions within the bounds, and for the newest two always.
func TestWants(t *testing.T) {
	m := state.New()
	index := prefix(m)
	publish := func(n int, bytes int64) {
		index++
		c := &state.Command{Kind: state.KindPublish, Publish: &state.Publish{
			Base: fsm.Revision(n - 1), Label: fmt.Sprint("p", n), Body: state.Digest{byte(n), byte(n >> 8)}, Bytes: bytes, Held: true,
		}}
		if r, _ := m.Apply(index, c); r.Refused != nil {
			t.Fatal(r.Refused)
		}
	}
	for n := 1; n <= state.MaxKeptBodies+5; n++ {
		publish(n, 1)
	}
	wants := m.State().Wants()
	if len(wants) != state.MaxKeptBodies || wants[state.Digest{6}] != 6 || wants[state.Digest{5}] != 0 {
		t.Fatalf("%d wanted", len(wants))
	}
	for n := state.MaxKeptBodies + 6; n <= state.MaxKeptBodies+16; n++ {
		publish(n, state.MaxBodyBytes)
	}
	if wants = m.State().Wants(); int64(len(wants)) != state.MaxKeptBodyBytes/state.MaxBodyBytes {
		t.Fatalf("%d large ones wanted", len(wants))
	}
}

func sampleCommands() [][]byte {
	var out [][]byte
	m := state.New()
	prefix(m)
	for kind := range 22 {
		c := rapid.Custom(func(t *rapid.T) *state.Command { return drawCommand(t, m.State()) }).
			Filter(func(c *state.Command) bool { return c.Kind == state.Kind(kind+1) })
		out = append(out, state.AppendCommand(nil, c.Example(1)))
	}
	return out
}

// Shows that a flipped bit, a cut and an unknown version are noticed in every kind of command.
func TestDamageIsNoticed(t *testing.T) {
	for _, b := range sampleCommands() {
		for bit := range len(b) * 8 {
			bad := bytes.Clone(b)
			bad[bit/8] ^= 1 << (bit % 8)
			if c, err := state.DecodeCommand(bad); err == nil {
				t.Fatalf("bit %d of %x went unnoticed: %+v", bit, b, c)
			}
		}
		for n := range b {
			if _, err := state.DecodeCommand(b[:n]); err == nil {
				t.Fatalf("%x cut to %d bytes was taken", b, n)
			}
		}
	}
}

// Shows that the decoder takes nothing but what the encoder writes, whatever the bytes.
func FuzzDecodeCommand(f *testing.F) {
	for _, b := range sampleCommands() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		b = sealed(b)
		if c, err := state.DecodeCommand(b); err == nil && !bytes.Equal(state.AppendCommand(nil, c), b) {
			t.Fatalf("%x is another encoding of %+v", b, c)
		}
	})
}

// Shows that no bytes make Restore panic, and that what it takes is written the same way again.
func FuzzRestore(f *testing.F) {
	m := state.New()
	prefix(m)
	for _, s := range []*state.State{state.New().State(), m.State()} {
		var b bytes.Buffer
		if _, err := s.WriteTo(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := state.Restore(bytes.NewReader(b))
		if err != nil {
			return
		}
		if _, err := restored(m.State()); err != nil {
			t.Fatal(err)
		}
	})
}

// Shows that the decoder of audit records takes nothing but what the encoder writes.
func FuzzDecodeRecord(f *testing.F) {
	f.Add(state.AppendRecord(nil, &state.Record{Index: 4, WallNanos: -3, Actor: "kim", Action: "node.put", Result: "done"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := state.DecodeRecord(b); err == nil && !bytes.Equal(state.AppendRecord(nil, r), b) {
			t.Fatalf("%x is another encoding of %+v", b, r)
		}
	})
}

// Shows, under the race detector, that a state can be encoded and read by many at once while commands go on.
func TestStatesAreForReaders(t *testing.T) {
	m := state.New()
	index := prefix(m)
	var readers sync.WaitGroup
	for n := range fsm.Revision(50) {
		s := m.State()
		for range 2 {
			readers.Go(func() {
				if _, err := restored(s); err != nil {
					t.Error(err)
				}
				if len(s.Wants()) != min(int(n), 1) {
					t.Errorf("revision %d wants %d bodies", n, len(s.Wants()))
				}
			})
		}
		index++
		r, _ := m.Apply(index, &state.Command{Kind: state.KindPublish, ID: state.CommandID{byte(n) + 1}, Publish: &state.Publish{
			Base: n, Label: fmt.Sprint("p", n), Body: state.Digest{1}, Bytes: 1, Held: true,
		}})
		if r.Refused != nil {
			t.Fatal(r.Refused)
		}
	}
	readers.Wait()
}
