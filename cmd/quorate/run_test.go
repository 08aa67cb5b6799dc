package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// result is what one run of the program did.
type result struct {
	status         int
	stdout, stderr string
}

// runWith runs the program in this process.
func runWith(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := run(t.Context(), args, strings.NewReader(stdin), &stdout, &stderr)
	return result{status, stdout.String(), stderr.String()}
}

// mustRun runs the program and fails the test unless it succeeds.
func mustRun(t *testing.T, args ...string) result {
	t.Helper()
	r := runWith(t, "", args...)
	if r.status != exitDone {
		t.Fatalf("quorate %s: status %d: %s", strings.Join(args, " "), r.status, r.stderr)
	}
	return r
}

// Shows that wrong usage ends with status 2, nothing on standard output, and one line on standard
// error that names the mistake and the help to read.
func TestUsageErrors(t *testing.T) {
	tests := []struct {
		args []string
		want string
	}{
		{[]string{"nonsense"}, `quorate: unknown command "nonsense"; see quorate --help`},
		{[]string{"versio"}, `quorate: unknown command "versio", did you mean version?; see quorate --help`},
		{[]string{"policy", "nonsense"}, `quorate: unknown command "nonsense"; see quorate policy --help`},
		{[]string{"--nonsense"}, `quorate: unknown flag: --nonsense; see quorate --help`},
		{[]string{"version", "-x"}, `quorate: unknown shorthand flag: 'x' in -x; see quorate version --help`},
		{[]string{"version", "extra"}, `quorate: unknown command "extra" for "quorate version"; see quorate version --help`},
		{
			[]string{"version", "-o", "xml"},
			`quorate: invalid argument "xml" for "-o, --output" flag: "xml" is none of table, json, yaml; ` +
				`see quorate version --help`,
		},
		{[]string{"completion"}, `quorate: accepts 1 arg(s), received 0; see quorate completion --help`},
		{[]string{"completion", "tcsh"}, `quorate: invalid argument "tcsh" for "quorate completion"; see quorate completion --help`},
		{
			[]string{"policy", "validate"},
			`quorate: validate: name the file; see quorate policy validate --help`,
		},
		{[]string{"partition", "split"}, `quorate: split: name the partition; see quorate partition split --help`},
		{[]string{"partition", "split", ""}, `quorate: split: name the partition; see quorate partition split --help`},
		{[]string{"snapshot", "save", ""}, `quorate: save: name the file; see quorate snapshot save --help`},
		{
			[]string{"partition", "move", "p0"},
			`quorate: move: name the slots, FIRST-LAST and the partition that gets them; see quorate partition move --help`,
		},
		{[]string{"partition", "merge", "p0", ""}, `quorate: merge: name the partition that gets its slots; see quorate partition merge --help`},
		{[]string{"usage", "forgive"}, `quorate: forgive: name the principal; see quorate usage forgive --help`},
		{[]string{"check", "u1"}, `quorate: check: name the class; see quorate check --help`},
		{[]string{"simulate"}, `quorate: --policy and --trace are required; see quorate simulate --help`},
	}
	for _, tt := range tests {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			want := result{exitUsage, "", tt.want + "\n"}
			if diff := cmp.Diff(want, runWith(t, "", tt.args...), cmp.AllowUnexported(result{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Shows that a group of commands alone prints its help and succeeds.
func TestGroupsPrintHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"policy"}} {
		r := mustRun(t, args...)
		if !strings.Contains(r.stdout, "Available Commands:") || r.stderr != "" {
			t.Errorf("quorate %v printed %q and %q", args, r.stdout, r.stderr)
		}
	}
}

// Shows the status and the line of each kind of error, and that a cause of several lines is still
// reported in one.
func TestReport(t *testing.T) {
	cause := errors.New("no owner answers: start the cluster")
	tests := []struct {
		err    error
		status int
		want   string
	}{
		{nil, 0, ""},
		{cause, 1, "quorate: no owner answers: start the cluster\n"},
		{errReported, 1, ""},
		{usagef(&cobra.Command{Use: "check"}, "no class."), 2, "quorate: no class; see check --help\n"},
		{errDenied, 3, ""},
		{unavailable(cause), 4, "quorate: no owner answers: start the cluster\n"},
		{fmt.Errorf("check: %w", unavailable(cause)), 4, "quorate: check: no owner answers: start the cluster\n"},
		{errors.Join(cause, fmt.Errorf("second\r\n%w", io.EOF)), 1, "quorate: no owner answers: start the cluster; second; EOF\n"},
	}
	for _, tt := range tests {
		var stderr bytes.Buffer
		if got := report(&stderr, tt.err); got != tt.status || stderr.String() != tt.want {
			t.Errorf("%v: status %d, printed %q; want %d, %q", tt.err, got, stderr.String(), tt.status, tt.want)
		}
	}
}

// Shows that the flag goes before the environment, that before the default, and that an address
// without a port is wrong usage.
func TestAddresses(t *testing.T) {
	cmd := &cobra.Command{Use: "check"}
	mustBe := func(flag, env string, want ...string) {
		t.Helper()
		t.Setenv(addrEnv, env)
		got, err := (&options{addr: flag}).addrs(cmd)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	mustBe("a:1, [::1]:2", "b:3", "a:1", "[::1]:2")
	mustBe("", "b:3", "b:3")
	mustBe("", "", "127.0.0.1:7070", "127.0.0.1:7080", "127.0.0.1:7090")

	_, err := (&options{addr: "a:1,b"}).addrs(cmd)
	var stderr bytes.Buffer
	if got := report(&stderr, err); got != exitUsage || !strings.Contains(stderr.String(), `--addr: "b" is not host:port`) {
		t.Errorf("status %d: %s", got, stderr.String())
	}
}

// Shows that there is a completion script for every shell, and that they differ.
func TestCompletion(t *testing.T) {
	seen := map[string]string{}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		script := mustRun(t, "completion", shell).stdout
		if !strings.Contains(script, "quorate") {
			t.Errorf("%s: the script does not name the program: %.80q", shell, script)
		}
		if other, ok := seen[script]; ok {
			t.Errorf("%s and %s have the same script", shell, other)
		}
		seen[script] = shell
	}
}
