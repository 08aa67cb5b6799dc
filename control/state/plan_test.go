package state_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

func ranges(words ...int) (out []fsm.SlotRange) {
	for i := 0; i < len(words); i += 2 {
		out = append(out, fsm.SlotRange{First: fsm.Slot(words[i]), Last: fsm.Slot(words[i+1])})
	}
	return out
}

// Shows which slots a split takes: the upper half by their number, whatever ranges they are in and under whatever
// epochs.
func TestSlotsOfASplit(t *testing.T) {
	owned := func(r ...fsm.SlotRange) *state.Partition {
		p := &state.Partition{}
		for i, s := range r {
			p.Ranges = append(p.Ranges, state.Range{SlotRange: s, Epoch: fsm.Epoch(i + 1)})
		}
		return p
	}
	for _, c := range []struct {
		owned, all, half []fsm.SlotRange
	}{
		{ranges(0, 16383), ranges(0, 16383), ranges(8192, 16383)},
		{ranges(0, 8, 9, 9), ranges(0, 9), ranges(5, 9)},
		{ranges(0, 0, 10, 13, 20, 21), ranges(0, 0, 10, 13, 20, 21), ranges(13, 13, 20, 21)},
		{ranges(0, 3, 10, 10), ranges(0, 3, 10, 10), ranges(3, 3, 10, 10)},
		{ranges(7, 7), ranges(7, 7), nil},
		{nil, nil, nil},
	} {
		p := owned(c.owned...)
		if diff := cmp.Diff(c.all, p.Slots(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%v joined: %s", c.owned, diff)
		}
		if diff := cmp.Diff(c.half, p.UpperHalf(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("upper half of %v: %s", c.owned, diff)
		}
	}
}

// Shows what a plan tells of itself: where its state is fetched, whether history is lost, its ends while it has them,
// and that it is found after it was closed.
func TestPlanTells(t *testing.T) {
	m := state.New()
	index := prefix(m)
	apply := func(c *state.Command) state.Result {
		t.Helper()
		index++
		r, _ := m.Apply(index, c)
		if r.Refused != nil {
			t.Fatal(r.Refused)
		}
		return r
	}
	id := apply(&state.Command{Kind: state.KindStartPlan, Actor: "kim", Comment: "hot", WallNanos: 5, Start: &state.StartPlan{
		Kind: state.PlanRecover, New: []string{"c"}, From: "a",
	}}).Plan
	p, ok := m.State().AnyPlan(id)
	if !ok || p.Author != "kim" || p.Comment != "hot" || p.StartedWallNanos != 5 || !p.Made || !p.Copies() || !p.Lost() {
		t.Errorf("%+v", p)
	}
	source, destination := m.State().Ends(p)
	if source == nil || source.ID != 0 || destination == nil || destination.ID != 2 || p.SourceName() != "p0" {
		t.Errorf("%+v, %+v, %s", source, destination, p.SourceName())
	}
	if diff := cmp.Diff(ranges(0, 16383), p.Slots()); diff != "" {
		t.Error(diff)
	}
	apply(&state.Command{Kind: state.KindAbortPlan, Plan: id, Comment: "wrong node"})
	if p, _ = m.State().AnyPlan(id); p.Standing() != "aborted" {
		t.Error(p.Standing())
	}
	apply(&state.Command{Kind: state.KindClosePlan, Plan: id, WallNanos: 9})
	p, ok = m.State().AnyPlan(id)
	if !ok || !p.Closed || p.Standing() != "undone" || p.Message != "wrong node" || p.EndedWallNanos != 9 {
		t.Errorf("%+v", p)
	}
	if source, destination = m.State().Ends(p); source != nil || destination != nil {
		t.Error("a closed plan has ends")
	}
	restore := &state.Plan{Kind: state.PlanRestore, Source: 3, AcceptLoss: true}
	if restore.SourceName() != "backup/p3" || restore.Lost() || !restore.Copies() {
		t.Errorf("%+v", restore)
	}
	if _, ok := m.State().AnyPlan(id + 1); ok {
		t.Error("a plan that was never begun")
	}
}

// Shows that plans which were closed are remembered up to the bound, the newest ones, and that no more than the bound
// are open, with the digest still that of the contents.
func TestBoundsOfPlans(t *testing.T) {
	m := state.New()
	index := prefix(m)
	apply := func(c *state.Command) state.Result {
		index++
		r, _ := m.Apply(index, c)
		return r
	}
	split := func(source state.PartitionID, first, last int) state.Result {
		return apply(&state.Command{Kind: state.KindStartPlan, Start: &state.StartPlan{
			Kind: state.PlanSplit, Source: source, New: []string{"c"}, Ranges: ranges(first, last),
		}})
	}
	var parts []state.PartitionID
	for i := range state.MaxEndedPlans + 3 { // partitions of two slots each
		r := split(0, 2*i, 2*i+1)
		if r.Refused != nil {
			t.Fatal(r.Refused)
		}
		parts = append(parts, r.Partition)
		apply(&state.Command{Kind: state.KindDecidePlan, Plan: r.Plan, Decide: &state.Decide{Exported: [16]byte{1}, Imported: [16]byte{1}}})
		apply(&state.Command{Kind: state.KindClosePlan, Plan: r.Plan})
	}
	for i, p := range parts {
		r := split(p, 2*i, 2*i)
		if bound := r.Refused != nil && r.Refused.Code == state.CodeBound; bound != (i >= state.MaxOpenPlans) {
			t.Fatalf("plan %d: %+v", i, r)
		}
	}
	s := m.State()
	if len(s.Ended) != state.MaxEndedPlans || len(s.Plans) != state.MaxOpenPlans {
		t.Fatalf("%d ended, %d open", len(s.Ended), len(s.Plans))
	}
	if _, ok := s.AnyPlan(s.Ended[0].ID - 1); ok {
		t.Error("a forgotten plan is there")
	}
	if got := mustRestore(t, s).State().Digest(); got != s.Digest() {
		t.Error("the digest is not that of the contents")
	}
}

// Shows that a backup keeps of a history of any size the newest revisions within its bound, and that what it keeps
// makes a cluster by a command within its own bound; a cluster of a small history is taken over whole.
func TestRestoredIsBounded(t *testing.T) {
	s := &state.State{Born: true, Cluster: "c", Incarnation: 2, Seed: [16]byte{1}, NextPartition: 5, LastPlan: 7}
	for i := range state.MaxTokens {
		id := fmt.Sprintf("%0*d", state.MaxIDBytes, i)
		s.Tokens = append(s.Tokens, &state.Token{ID: id, Name: id, Role: state.RoleViewer, Hash: [32]byte{1}, ExpiresNanos: 1 << 54})
	}
	s.Revisions = someRevisions(1, 3)
	for _, r := range s.Revisions {
		r.Comment = strings.Repeat("x", state.MaxCommentBytes)
	}
	small := s.Restored()
	if len(small.Revisions) != 3 || len(small.Tokens) != state.MaxTokens {
		t.Errorf("%d revisions and %d tokens", len(small.Revisions), len(small.Tokens))
	}
	s.Revisions = someRevisions(4, 9000)
	for _, r := range s.Revisions {
		r.Comment = strings.Repeat("x", state.MaxCommentBytes)
	}
	newest := s.Revisions[len(s.Revisions)-1]
	for i := range policy.MaxClasses + 1 {
		newest.Switches = append(newest.Switches, state.Switch{Class: fmt.Sprintf("%0*d", policy.MaxClassBytes, i)})
	}
	large := s.Restored()
	b := state.AppendRestored(nil, large)
	if len(b) > state.MaxRestoredBytes || len(b) < state.MaxRestoredBytes*9/10 {
		t.Errorf("%d bytes, of at most %d", len(b), state.MaxRestoredBytes)
	}
	if n := len(large.Revisions); n < 1000 || large.Revisions[n-1] != newest {
		t.Errorf("%d revisions up to %d", n, large.Revisions[n-1].Number)
	}
	got, err := state.DecodeRestored(b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(large, got); diff != "" {
		t.Error(diff)
	}
	got.Backup = state.Digest{1}
	c := &state.Command{Kind: state.KindInit, Init: &state.Init{Cluster: "c", Incarnation: 3, Restored: got}}
	if n := len(state.AppendCommand(nil, c)); n > c.Kind.MaxBytes() {
		t.Errorf("a command of %d bytes, of at most %d", n, c.Kind.MaxBytes())
	}
	m := state.New()
	if r, _ := m.Apply(1, mustRoundTrip(t, c)); r.Refused != nil {
		t.Fatal(r.Refused)
	}
	now := mustRestore(t, m.State()).State()
	if now.Digest() != m.State().Digest() || now.RestoredFrom != got.Backup || now.NextPartition != 5 || now.LastPlan != 7 {
		t.Errorf("%+v", now)
	}
}

// Shows that what no cluster can have kept is refused in words, and that each flipped bit, each cut and another
// version are noticed.
func TestDamagedRestored(t *testing.T) {
	good := func() *state.Restored { r := *backupInit().Restored; return &r }
	for _, c := range []struct {
		name   string
		change func(*state.Restored)
		want   string
	}{
		{"nothing", func(*state.Restored) {}, ""},
		{"no cluster", func(r *state.Restored) { r.Cluster = "" }, "cluster id is empty"},
		{"no incarnation", func(r *state.Restored) { r.Incarnation = 0 }, "the incarnation is 0"},
		{"no seed", func(r *state.Restored) { r.Seed = [16]byte{} }, "seed"},
		{"a gap", func(r *state.Restored) { r.Revisions[1].Number++ }, "revision 3"},
		{"a label twice", func(r *state.Restored) { r.Revisions[1].Label = "v1" }, "there twice"},
		{"no body", func(r *state.Restored) { r.Revisions[0].Body = state.Digest{} }, "cannot be"},
		{"a kind that is none", func(r *state.Restored) { r.Revisions[0].Kind = 9 }, "cannot be"},
		{"a role that is none", func(r *state.Restored) { r.Tokens[0].Role = "root" }, "role"},
		{"a token twice", func(r *state.Restored) { r.Tokens = append(r.Tokens, r.Tokens[0]) }, "out of order"},
	} {
		r := good()
		c.change(r)
		_, err := state.DecodeRestored(state.AppendRestored(nil, r))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	b := state.AppendRestored(nil, good())
	for bit := range len(b) * 8 {
		bad := bytes.Clone(b)
		bad[bit/8] ^= 1 << (bit % 8)
		if _, err := state.DecodeRestored(bad); err == nil {
			t.Fatalf("bit %d went unnoticed", bit)
		}
	}
	for n := range b {
		if _, err := state.DecodeRestored(b[:n]); err == nil {
			t.Fatalf("cut to %d bytes it was taken", n)
		}
	}
	newer := sealed(append([]byte{2}, b[1:]...))
	if _, err := state.DecodeRestored(newer); err == nil || !strings.Contains(err.Error(), "use the one that wrote it") {
		t.Errorf("of a newer version: %v", err)
	}
}

// Shows that the decoder of what a backup keeps takes nothing but what the encoder writes, whatever the bytes.
func FuzzDecodeRestored(f *testing.F) {
	f.Add(state.AppendRestored(nil, backupInit().Restored))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = sealed(b)
		if r, err := state.DecodeRestored(b); err == nil && !bytes.Equal(state.AppendRestored(nil, r), b) {
			t.Fatalf("%x is another encoding of %+v", b, r)
		}
	})
}
