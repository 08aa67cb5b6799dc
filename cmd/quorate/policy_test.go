package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	goodPolicy = `version: p7
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes:
  convert: {limits: [{name: per-minute, limit: 3, window: 60s}]}
  export: {limits: [{name: per-minute, limit: 3, window: 60s}]}
tiers:
  pro: {convert: {limits: [{name: per-minute, limit: 30, window: 60s}]}}
`
	// badPolicy has an unknown key in line 3 and a window that is none in line 4.
	badPolicy = `version: p7
default: {limits: [{name: default, limit: 100, window: 60s}]}
colour: blue
classes: {convert: {limits: [{name: per-minute, limit: 3, window: soon}]}}
`
)

// mustWrite writes a file into a directory of the test's own and returns its name.
func mustWrite(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Shows that a valid policy is summed up in one line, from a file and from standard input.
func TestValidateGoodPolicy(t *testing.T) {
	const summary = ": ok: version p7, 2 classes, 1 tier, 0 principals, 0 groups\n"
	file := mustWrite(t, "p.yaml", goodPolicy)
	for arg, want := range map[string]string{file: file + summary, "-": "stdin" + summary} {
		got := runWith(t, goodPolicy, "policy", "validate", arg)
		if diff := cmp.Diff(result{exitDone, want, ""}, got, cmp.AllowUnexported(result{})); diff != "" {
			t.Error(diff)
		}
	}
}

// Shows that all problems of all files are told, one per line with their position, that the good
// file among them is still summed up, and that the status is 1.
func TestValidateBadPolicy(t *testing.T) {
	good, bad := mustWrite(t, "good.yaml", goodPolicy), mustWrite(t, "bad.yaml", badPolicy)
	r := runWith(t, "", "policy", "validate", bad, good)
	if r.status != exitError || !strings.HasPrefix(r.stdout, good+": ok: ") {
		t.Errorf("status %d, printed %q", r.status, r.stdout)
	}
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], bad+":3:1: ") || !strings.HasPrefix(lines[1], bad+":4:") {
		t.Errorf("problems are %q", lines)
	}
}

// Shows that scripts get the same problems as objects, on standard output, and an empty list rather
// than null where there is none.
func TestValidateForScripts(t *testing.T) {
	bad := mustWrite(t, "bad.yaml", badPolicy)
	r := runWith(t, "", "policy", "validate", "-o", "json", bad)
	var got policyValidation
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatal(err)
	}
	if r.status != exitError || r.stderr != "" || got.Valid || len(got.Problems) != 2 {
		t.Fatalf("status %d, printed %q and %q", r.status, r.stdout, r.stderr)
	}
	if p := got.Problems[0]; p.File != bad || p.Line != 3 || p.Column != 1 || p.Message == "" {
		t.Errorf("the first problem is %+v", p)
	}
	r = runWith(t, goodPolicy, "policy", "validate", "-o", "json", "-")
	if r.status != exitDone || !strings.HasPrefix(r.stdout, `{"valid":true,`) || !strings.Contains(r.stdout, `"problems":[]`) {
		t.Errorf("status %d, printed %q", r.status, r.stdout)
	}
}

// Shows that a missing file is an error in one line that names it.
func TestValidateMissingFile(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	r := runWith(t, "", "policy", "validate", missing)
	if r.status != exitError || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 ||
		!strings.HasPrefix(r.stderr, "quorate: ") || !strings.Contains(r.stderr, missing) {
		t.Errorf("status %d, printed %q and %q", r.status, r.stdout, r.stderr)
	}
}
