//go:build chaos && linux

package chaos

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// replica is a machine that is told of by a tap.
type replica struct {
	tap     Tap
	machine *fsm.Machine
	index   uint64
}

func (r *replica) apply(t *testing.T, e *fsm.Entry) {
	t.Helper()
	data := fsm.AppendEntry(nil, e)
	decoded, err := fsm.DecodeEntry(data)
	if err != nil {
		t.Fatal(err)
	}
	if e.Birth != nil {
		decoded.Birth.Policy = e.Birth.Policy
	}
	r.index++
	r.tap.Applied(r.index, e.Term, data, decoded, r.machine.Step(e.Term, decoded), r.machine)
	for i := range data {
		data[i] = 0xff // as one who uses them again would
	}
}

// applySome has a birth, decisions of several kinds and a refused entry applied.
func (r *replica) applySome(t *testing.T) {
	t.Helper()
	p, err := policy.Parse("p", []byte("{version: v1, default: {limits: [{name: all, limit: 1, window: 1s}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	r.apply(t, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Birth: &fsm.Birth{
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, p),
		Owned: []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 9}},
	}})
	check := func(id string, epoch fsm.Epoch) fsm.Check {
		return fsm.Check{
			Principal: "acme", Gateway: "g", DecisionID: id, Charge: fsm.Charge{Class: "a", Cost: 1}, RouteEpoch: epoch,
		}
	}
	several := check("d3", 9)
	several.Also = []fsm.Charge{{Class: "b", Cost: 2}}
	r.apply(t, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: 5, Checks: []fsm.Check{
		check("d1", 9), check("d1", 9), check("d2", 9), check("d2", 8), several,
	}})
	r.apply(t, &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: 6})
	stale := &fsm.Entry{Kind: fsm.KindBatch, Term: 1, Stamp: 7, Checks: []fsm.Check{check("d4", 9)}}
	r.index++
	r.tap.Applied(r.index, 2, []byte("x"), stale, r.machine.Step(2, stale), r.machine)
}

func linesOf(t *testing.T, file string) (lines []Line) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for text := range bytes.Lines(text) {
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	return lines
}

// Shows that a replica's file tells of each entry, decision and snapshot, and that two replicas which apply the same
// have the same hashes and states in it.
func TestTap(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(tapEnvironment, dir)
	if err := os.WriteFile(filepath.Join(dir, "applied-n1-1.jsonl"), nil, 0o600); err != nil {
		t.Fatal(err) // of a process before
	}
	var files [2][]Line
	for i, node := range []string{"n0", "n1"} {
		r := &replica{tap: NewTap(node, "p0"), machine: fsm.New()}
		r.applySome(t)
		r.tap.Restored(r.index, r.machine)
		r.tap.Flush()
		files[i] = linesOf(t, filepath.Join(dir, []string{"applied-n0-1.jsonl", "applied-n1-2.jsonl"}[i]))
		digest := r.machine.Digest()
		if last := files[i][len(files[i])-1]; last.State != hex.EncodeToString(digest[:]) {
			t.Errorf("the last state is told as %s, it is %x", last.State, digest)
		}
	}
	slot := files[0][1].Decisions[0].Slot
	of := func(id, reason string, epoch uint64) Outcome {
		return Outcome{
			ID: id, Gateway: "g", Principal: "acme", Class: "a", Cost: 1, Reason: reason, Revision: 1, Slot: slot, Epoch: epoch,
		}
	}
	want := []Line{
		{Index: 1, Term: 1, Kind: "birth", Revision: 1},
		{Index: 2, Term: 1, Kind: "batch", Stamp: 5, Time: 5, Revision: 1, Decisions: []Outcome{
			of("d1", "allowed", 9), of("d1", "allowed", 9), of("d2", "quota_exhausted", 9), of("d2", "wrong_epoch", 9),
			of("d3", "quota_exhausted", 9),
		}},
		{Index: 3, Term: 1, Kind: "batch", Stamp: 6, Time: 6, Revision: 1},
		{Index: 4, Term: 2, Kind: "batch", Stamp: 7, Time: 6, Revision: 1, Refused: "stale_term"},
		{Index: 4, Kind: "restore", Time: 6, Revision: 1, Restored: true},
	}
	decisions := want[1].Decisions
	decisions[0].Recorded, decisions[1].Recorded, decisions[1].Replayed, decisions[2].Recorded = true, true, true, true
	decisions[4].Recorded, decisions[4].Also = true, []Charge{{"b", 2}}
	ignored := cmpopts.IgnoreFields(Line{}, "Monotonic", "Node", "Group", "Entry", "Answers", "State")
	if diff := cmp.Diff(want, files[0], ignored); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(files[0], files[1], cmpopts.IgnoreFields(Line{}, "Monotonic", "Node")); diff != "" {
		t.Errorf("two replicas: (-n0 +n1)\n%s", diff)
	}
	hashes := map[string]int{}
	for _, l := range files[0][:4] {
		hashes[l.Entry]++
		hashes[l.Answers]++
	}
	if len(hashes) != 8 {
		t.Errorf("eight things have the hashes %v", hashes)
	}
}
