package fsm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/trace"
)

const casesDir = "../testdata/cases"

// Shows that the machine answers every recorded trace as recorded, line for line, also when each entry
// goes through its encoding and the machine is replaced by its restored snapshot every few entries.
func TestRecordedCases(t *testing.T) {
	dirs, err := os.ReadDir(casesDir)
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) < 33 {
		t.Fatalf("%d cases in %s, want at least 33", len(dirs), casesDir)
	}
	for _, d := range dirs {
		t.Run(d.Name(), func(t *testing.T) {
			dir := filepath.Join(casesDir, d.Name())
			got := replay(t, dir)
			want := bytes.Split(bytes.TrimSpace(mustRead(t, filepath.Join(dir, "want.jsonl"))), []byte("\n"))
			if len(got) != len(want) {
				t.Fatalf("%d answers, want %d", len(got), len(want))
			}
			for i := range want {
				if diff := cmp.Diff(mustFields(t, want[i]), mustFields(t, got[i])); diff != "" {
					t.Errorf("answer %d (-want +got):\n%s", i+1, diff)
				}
			}
		})
	}
}

// replay runs the trace of a case and returns its answers as JSON.
func replay(t *testing.T, dir string) (answers [][]byte) {
	t.Helper()
	p, err := policy.Parse("policy.yaml", mustRead(t, filepath.Join(dir, "policy.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	m, revision := fsm.New(), fsm.Revision(1)
	lines := trace.NewReader("trace.jsonl", bytes.NewReader(mustRead(t, filepath.Join(dir, "trace.jsonl"))))
	step := func(e *fsm.Entry, at int64) *fsm.Answers {
		e.Term, e.Stamp = 1, fsm.Time(at)
		return m.Step(1, mustRecode(t, e))
	}
	for n := 1; ; n++ {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			return answers
		}
		if err != nil {
			t.Fatal(err)
		}
		if line.Malformed != nil {
			answers = append(answers, mustJSON(t, trace.MalformedAnswer(line.Check.DecisionID)))
			continue
		}
		if !m.Born() {
			step(&fsm.Entry{Kind: fsm.KindBirth, Birth: &fsm.Birth{
				Owned:  []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: 1}},
				Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(revision, p),
			}}, int64(line.At))
		}
		if n%50 == 0 {
			m = mustRestore(t, m)
		}
		if line.Policy != nil {
			next, err := policy.Parse("trace.jsonl", line.Policy)
			if err != nil {
				t.Fatal(err)
			}
			revision++
			install := fsm.NewInstall(revision, next)
			step(&fsm.Entry{Kind: fsm.KindInstall, Install: &install}, int64(line.At))
			continue
		}
		line.Check.RouteEpoch = 1
		a := step(&fsm.Entry{Kind: fsm.KindBatch, Checks: []fsm.Check{*line.Check}}, int64(line.At))
		answers = append(answers, mustJSON(t, trace.NewAnswer(line.Check.DecisionID, &a.Decisions[0])))
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustFields(t *testing.T, line []byte) map[string]any {
	t.Helper()
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return fields
}
