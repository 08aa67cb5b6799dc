package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mustAnswers reads JSON lines into generic objects, numbers kept as they are written.
func mustAnswers(t *testing.T, r io.Reader) []map[string]any {
	t.Helper()
	var answers []map[string]any
	d := json.NewDecoder(r)
	d.UseNumber()
	for d.More() {
		var a map[string]any
		if err := d.Decode(&a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	return answers
}

// Shows that each recorded trace gets exactly the answers that are written beside it, on standard
// output and in a file.
func TestSimulateCases(t *testing.T) {
	dirs, err := filepath.Glob("../../testdata/cases/*/trace.jsonl")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no cases found: %v", err)
	}
	for _, traceFile := range dirs {
		dir := filepath.Dir(traceFile)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			wantFile, err := os.ReadFile(filepath.Join(dir, "want.jsonl"))
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"simulate", "--policy", filepath.Join(dir, "policy.yaml"), "--trace", traceFile}
			got := mustRun(t, args...)
			want := mustAnswers(t, bytes.NewReader(wantFile))
			if diff := cmp.Diff(want, mustAnswers(t, strings.NewReader(got.stdout))); diff != "" {
				t.Error(diff)
			}
			out := filepath.Join(t.TempDir(), "answers.jsonl")
			if r := mustRun(t, append(args, "--out", out)...); r.stdout != "" {
				t.Errorf("with --out standard output has %q", r.stdout)
			}
			written, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(got.stdout, string(written)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

const simpleTrace = `{"at":"2026-09-22T12:00:00Z","principal":"u","api_class":"convert","decision_id":"a","cost":3}
{"at":"2026-09-22T12:00:01Z","principal":"u","api_class":"convert","decision_id":"b"}
{"at":"2026-09-22T12:00:02Z","principal":"u","api_class":"convert","decision_id":"b"}
{"at":"2026-09-22T12:00:03Z","principal":"u","api_class":"made-up","decision_id":"c"}
{"at":"2026-09-22T12:00:04Z","principal":"u","api_class":"convert","decision_id":"d","cost":0}
`

// Shows the summary: by the class that counted, the answer and the limit that denied, replays apart,
// on standard error and out of the answers' way.
func TestSimulateSummary(t *testing.T) {
	policyFile := mustWrite(t, "p.yaml", goodPolicy)
	r := runWith(t, simpleTrace, "simulate", "--policy", policyFile, "--trace", "-")
	const want = `CLASS    ANSWER                      LIMIT       CHECKS
-        invalid_argument            -                1
convert  allowed                     -                1
convert  quota_exhausted             per-minute       1
convert  quota_exhausted (replayed)  per-minute       1
default  allowed                     -                1
`
	if diff := cmp.Diff(want, r.stderr); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(r.stdout, "\n"); r.status != exitDone || n != 5 {
		t.Errorf("status %d, %d answers, want 5", r.status, n)
	}
}

// Shows that a trace that cannot be understood ends the run with the file, the line and status 1,
// after the answers to what came before.
func TestSimulateBadTrace(t *testing.T) {
	policyFile := mustWrite(t, "p.yaml", goodPolicy)
	firstLine, _, _ := strings.Cut(simpleTrace, "\n")
	tests := map[string]string{
		`{"at":"yesterday","principal":"u"}`:                        "stdin:2: ",
		`{"at":"2026-09-22T12:00:01Z","policy":{"version":"next"}}`: "stdin:2: policy:",
		`nonsense`: "stdin:2: ",
	}
	for line, where := range tests {
		r := runWith(t, firstLine+"\n"+line+"\n", "simulate", "--policy", policyFile, "--trace", "-")
		if r.status != exitError || !strings.HasPrefix(r.stderr, "quorate: "+where) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: status %d: %q", line, r.status, r.stderr)
		}
		if strings.Count(r.stdout, "\n") != 1 {
			t.Errorf("%s: the answer before it is lost: %q", line, r.stdout)
		}
	}
}

// Shows that a policy with problems, a missing trace and an answer file that cannot be made each end
// the run in one line.
func TestSimulateBadFiles(t *testing.T) {
	good, bad := mustWrite(t, "good.yaml", goodPolicy), mustWrite(t, "bad.yaml", badPolicy)
	none := filepath.Join(t.TempDir(), "none", "file")
	for want, args := range map[string][]string{
		"1 more problem":           {"--policy", bad, "--trace", "-"},
		"cannot read the trace":    {"--policy", good, "--trace", none},
		"cannot write the answers": {"--policy", good, "--trace", "-", "--out", none},
	} {
		r := runWith(t, simpleTrace, append([]string{"simulate"}, args...)...)
		if r.status != exitError || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%v: status %d: %q", args, r.status, r.stderr)
		}
	}
}

// Shows that the answers overwrite neither the trace nor the policy that they are made from, under
// whatever name.
func TestSimulateKeepsItsInput(t *testing.T) {
	policyFile, traceFile := mustWrite(t, "p.yaml", goodPolicy), mustWrite(t, "t.jsonl", simpleTrace)
	for file, text := range map[string]string{policyFile: goodPolicy, traceFile: simpleTrace} {
		other := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(file, other); err != nil {
			t.Fatal(err)
		}
		for _, out := range []string{file, other} {
			r := runWith(t, "", "simulate", "--policy", policyFile, "--trace", traceFile, "--out", out)
			if r.status != exitError || !strings.Contains(r.stderr, "name another file") {
				t.Errorf("%s: %+v", out, r)
			}
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != text {
			t.Errorf("%s was changed: %q %v", file, got, err)
		}
	}
}

// Shows that an interrupted run stops at the next line and says that it is incomplete.
func TestSimulateInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	args := []string{"simulate", "--policy", mustWrite(t, "p.yaml", goodPolicy), "--trace", "-"}
	status := run(ctx, args, strings.NewReader(simpleTrace), &stdout, &stderr)
	if status != exitError || !strings.Contains(stderr.String(), "incomplete") || stdout.Len() != 0 {
		t.Errorf("status %d, printed %q and %q", status, stdout.String(), stderr.String())
	}
}
