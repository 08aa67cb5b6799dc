package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// mustRun runs the command, and returns its exit status and what it printed.
func mustRun(t *testing.T, args ...string) (status int, out, problems string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = command(t.Context(), args, &stdout, &stderr)
	return status, stdout.String(), stderr.String()
}

// mustRecord leaves a run in which one principal was admitted n times within a second where ten seconds admit three.
func mustRecord(t *testing.T, n int) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "run")
	r, err := history.Record(dir, &history.Config{Name: "by hand", Least: &history.Least{}})
	if err != nil {
		t.Fatal(err)
	}
	policy := history.Policy{Version: "p", Default: history.Class{Limits: []history.Limit{
		{Name: "three", Max: 3, Window: history.Window(10 * time.Second)},
	}}}
	if err := r.Revision(&history.Revision{Number: 1, Policy: policy, Began: -time.Hour}); err != nil {
		t.Fatal(err)
	}
	for k := range n {
		at := time.Duration(k) * 100 * time.Millisecond
		err := r.Asked(&history.Asked{
			ID: string(rune('a' + k)), Principal: "p", Class: "c", Cost: 1, Workload: "w", Client: "c", Node: "n0",
			Sent: at, Received: at + time.Millisecond,
			Answer: history.Answer{Allowed: true, Reason: "allowed", Revision: 1, Version: "p", Recorded: true},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Shows that a saved run is judged by its directory alone: one that broke a cap ends with status 1 and names what is
// broken, and the verdict is left beside it.
func TestCheck(t *testing.T) {
	status, out, _ := mustRun(t, "check", mustRecord(t, 4))
	if status != exitBroken || !strings.Contains(out, "FAIL  cap-blackbox") {
		t.Errorf("four where three are admitted: status %d\n%s", status, out)
	}
	dir := mustRecord(t, 3)
	_, out, _ = mustRun(t, "check", dir)
	if !strings.Contains(out, "pass  cap-blackbox") {
		t.Errorf("three where three are admitted:\n%s", out)
	}
	if _, err := os.Stat(filepath.Join(dir, history.ResultFile)); err != nil {
		t.Error(err)
	}
}

// Shows that wrong usage ends with status 2, and what cannot be done with status 1, each with one line that says why.
func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"chekc"}, exitUsage, `unknown command "chekc"`},
		{[]string{"check"}, exitUsage, "the directory of a run"},
		{[]string{"check", "nowhere"}, exitBroken, "nowhere"},
		{[]string{"run", "--sedd", "1"}, exitUsage, "--sedd"},
		{[]string{"run", "more"}, exitUsage, "no arguments"},
		{[]string{"run", "--program", "nowhere/quorate"}, exitBroken, "nowhere/quorate"},
		{[]string{"run", "--mix", "mixt", "--program", "main_linux_test.go"}, exitBroken, `no mix "mixt"`},
		{[]string{"run", "--workloads", "nothing", "--program", "main_linux_test.go"}, exitBroken, `no workload "nothing"`},
		{[]string{"run", "--nodes", "2", "--program", "main_linux_test.go"}, exitBroken, "2 nodes"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			status, _, problems := mustRun(t, tt.args...)
			if status != tt.status || !strings.Contains(problems, tt.says) || strings.Count(problems, "\n") != 1 {
				t.Errorf("status %d, want %d with %q: %s", status, tt.status, tt.says, problems)
			}
		})
	}
}

// Shows that the list has every workload.
func TestList(t *testing.T) {
	status, out, problems := mustRun(t, "list")
	if status != 0 {
		t.Fatalf("status %d: %s", status, problems)
	}
	for _, name := range append(workload.Names(workload.Kinds()), "mixed", "smoke") {
		if !strings.Contains(out, "  "+name+" ") {
			t.Errorf("the list lacks %s", name)
		}
	}
}
