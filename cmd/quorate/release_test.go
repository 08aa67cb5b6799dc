package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/guard"
)

// hooks are the texts by which a program can be told that the chaos suite can reach into it: the variables that it
// reads, and the names of the guards that can be switched off. A name of one word says nothing, as it is a word of the
// messages too.
func hooks() []string {
	out := []string{
		"QUORATE_UNGUARDED", "QUORATE_HOLD", "QUORATE_TAP", "QUORATE_CLOCK", "QUORATE_SLOW_SYNC", "names no guard",
	}
	for _, g := range guard.All {
		if strings.Contains(string(g), "-") {
			out = append(out, string(g))
		}
	}
	return out
}

// hooksIn tells which hooks a program has. The settings of a configuration go on with two underscores.
func hooksIn(t *testing.T, program string) (found, missing []string) {
	t.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hooks() {
		if bytes.Count(b, []byte(h)) > bytes.Count(b, []byte(h+"__")) {
			found = append(found, h)
		} else {
			missing = append(missing, h)
		}
	}
	return found, missing
}

// The program that is released has nothing in it of what the chaos suite reaches into: no guard can be switched off, no
// clock replaced, no point held. The suite's own program has all of it, so this test would find it.
func TestReleaseHasNoHooks(t *testing.T) {
	if found, _ := hooksIn(t, mustBinary(t)); len(found) > 0 {
		t.Errorf("the program that is released has %q in it", found)
	}
	chaos := filepath.Join(t.TempDir(), "quorate-chaos")
	build := exec.Command("go", "build", "-tags=hashicorpmetrics,chaos", "-trimpath", "-o", chaos, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	if _, missing := hooksIn(t, chaos); len(missing) > 0 {
		t.Errorf("the program of the chaos suite has no %q in it: this test looks for the wrong texts", missing)
	}
}
