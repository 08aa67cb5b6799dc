package node

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that a backup which is asked for while slots move is made after that, and has each of them once.
func TestSaveBesidePlan(t *testing.T) {
	nodes := mustCluster(t, 1, 1)
	n := nodes[0]
	for k := range 8 {
		mustAnswer(t, nodes, fmt.Sprint("u", k), "one")
	}
	done, err := n.control().Propose(t.Context(), &state.Command{Kind: state.KindStartPlan, Start: &state.StartPlan{
		Kind: state.PlanSplit, Source: 0, New: []string{"n0"}, Ranges: []fsm.SlotRange{{First: 0, Last: 9000}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	m, _, err := backup.Verify(bytes.NewReader(mustSave(t, n)))
	if err != nil {
		t.Fatal(err)
	}
	keys := int64(0)
	for _, p := range m.Partitions {
		keys += p.Keys
	}
	if p, ok := n.control().State().AnyPlan(done.Plan); !ok || !p.Closed || p.Phase != state.PlanDecided {
		t.Errorf("the plan: %+v", p)
	}
	if len(m.Partitions) != 2 || keys != 8 {
		t.Errorf("%d partitions with %d keys", len(m.Partitions), keys)
	}
	mustEnd(t, nodes...)
}

// Shows that a backup is not begun, or fails, with words on what to do: before there is a policy, and beside another one.
func TestSaveRefuses(t *testing.T) {
	nodes := mustBlank(t, 1)
	n := nodes[0]
	save := func() error {
		_, err := (*cluster)(n.Node).Save(t.Context(), io.Discard)
		return err
	}
	if err := save(); quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
		t.Errorf("before there is a cluster: %v", err)
	}
	if _, _, err := n.makeCluster(t.Context(), 1, "test"); err != nil {
		t.Fatal(err)
	}
	if err := save(); err == nil || !strings.Contains(err.Error(), "there is nothing to save") {
		t.Errorf("before there is a policy: %v", err)
	}
	mustPublish(t, n, 0, "v1", 3)
	untilReady(t, n)
	n.saving.Store(true)
	if err := save(); quotaerr.ReasonOf(err) != quotaerr.Overloaded {
		t.Errorf("beside another: %v", err)
	}
	n.saving.Store(false)
	if err := save(); err != nil {
		t.Error(err)
	}
	mustEnd(t, nodes...)
}

// Shows that a backup has all of the audit trail, oldest first, where that takes more than one search.
func TestSaveAudit(t *testing.T) {
	nodes := mustCluster(t, 1, 1)
	c := nodes[0].control()
	for i := range audit.MaxFound + 10 {
		_, err := c.Propose(t.Context(), &state.Command{Kind: state.KindNote, Actor: "test", Act: &state.Act{
			Action: "test.note", Object: fmt.Sprint("note ", i), Message: "two\nlines",
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	src := mustSave(t, nodes[0])
	b, err := backup.Open(bytes.NewReader(src), int64(len(src)))
	if err != nil {
		t.Fatal(err)
	}
	from, _, err := b.File(backup.AuditName)
	if err != nil {
		t.Fatal(err)
	}
	var lines []auditLine
	for d := json.NewDecoder(from); d.More(); {
		var line auditLine
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if got, want := uint64(len(lines)), c.State().AuditCount; got != want || lines[0].Action != "cluster.init" {
		t.Errorf("%d records of %d, the first is %+v", got, want, lines[0])
	}
	last := auditLine{}
	for _, line := range lines {
		if line.Index <= last.Index {
			t.Fatalf("%+v comes after %+v", line, last)
		}
		last = line
	}
	if last.Object != fmt.Sprint("note ", audit.MaxFound+9) || last.Message != "two\nlines" || last.Actor != "test" {
		t.Errorf("the last record is %+v", last)
	}
	mustEnd(t, nodes...)
}

// Shows that what is on its way in a backup leaves the room on the disk that the node itself needs, and nothing else
// when it is closed.
func TestSpool(t *testing.T) {
	n, dir := mustClaimed(t)
	mustWriteFile(t, filepath.Join(dir, "backup-1.tmp"), nil)
	s, err := n.newSpool()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write([]byte("some")); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "backup-*"))
	if b, _ := io.ReadAll(s.again()); string(b) != "some" || err != nil || len(left) > 0 {
		t.Errorf("it has %q, and there are %v: %v", b, left, err)
	}
	most := int64(1) << 43
	n.cfg.Storage.MinFreeMiB = &most
	s.unasked = roomInterval
	if _, err := s.Write([]byte("more")); quotaerr.ReasonOf(err) != quotaerr.Capacity || s.size != 4 {
		t.Errorf("without room: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
