package reference

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

// The number of recorded traces; a case that goes missing is noticed.
const numCases = 33

// The model gives the recorded answers to every recorded trace, field by field and with no more
// fields than recorded.
func TestCases(t *testing.T) {
	dirs, err := filepath.Glob("../../testdata/cases/*/want.jsonl")
	if err != nil || len(dirs) != numCases {
		t.Fatalf("found %d cases (%v), want %d", len(dirs), err, numCases)
	}
	for _, want := range dirs {
		dir := filepath.Dir(want)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			got, want := mustReplay(t, dir), mustLines(t, want)
			if len(got) != len(want) {
				t.Fatalf("%d answers, want %d", len(got), len(want))
			}
			for i := range want {
				if diff := cmp.Diff(want[i], got[i]); diff != "" {
					t.Fatalf("answer %d (-want +got):\n%s", i+1, diff)
				}
			}
		})
	}
}

// mustReplay runs a case through the model and returns the answer lines as decoded JSON.
func mustReplay(t *testing.T, dir string) []map[string]any {
	t.Helper()
	src := mustRead(t, filepath.Join(dir, "policy.yaml"))
	first := mustParse(t, "policy.yaml", src)
	name := filepath.Join(dir, "trace.jsonl")
	lines := trace.NewReader(name, bytes.NewReader(mustRead(t, name)))
	var out bytes.Buffer
	answers := trace.NewWriter(&out)
	var m *Model
	revision := fsm.Revision(1)
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var answer trace.Answer
		if line.Malformed != nil {
			answer = trace.MalformedAnswer(line.Check.DecisionID)
		} else {
			if m == nil {
				m = New(fsm.Birth{Install: fsm.NewInstall(revision, first)}, line.At)
			}
			if line.Check == nil {
				revision++
				m.Install(line.At, revision, mustParse(t, name, line.Policy))
				continue
			}
			d := m.Check(line.At, *line.Check)
			answer = trace.NewAnswer(line.Check.DecisionID, &d)
		}
		if err := answers.Write(answer); err != nil {
			t.Fatal(err)
		}
	}
	return mustDecode(t, out.Bytes())
}

func mustRead(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustParse(t *testing.T, name string, src []byte) *policy.Policy {
	t.Helper()
	p, err := policy.Parse(name, src)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustLines(t *testing.T, name string) []map[string]any {
	t.Helper()
	return mustDecode(t, mustRead(t, name))
}

func mustDecode(t *testing.T, b []byte) (lines []map[string]any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	for d.More() {
		var line map[string]any
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}
