package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// productDir is the product's module, as seen from the packages beside this one, where their tests run.
const productDir = "../.."

// Build builds the program into dir, with further build tags, and returns its path.
func Build(dir string, tags ...string) (string, error) {
	tags = append([]string{"hashicorpmetrics"}, tags...)
	binary := filepath.Join(dir, "quorate")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags="+strings.Join(tags, ","), "-o", binary, "./cmd/quorate")
	cmd.Dir = productDir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// builtIn are the directories of the programs that were built here.
var builtIn []string

// Program is the program under test: what QUORATE_BINARY names, an absolute path; else it is built, once. Whoever
// calls it calls RemoveProgram in the end. It is not to be called by several goroutines at once with ChaosProgram.
var Program = sync.OnceValues(func() (string, error) { return given("QUORATE_BINARY") })

// ChaosProgram is the same for the program with the build tag chaos, which a test can hold at given points:
// QUORATE_CHAOS_BINARY names it.
var ChaosProgram = sync.OnceValues(func() (string, error) { return given("QUORATE_CHAOS_BINARY", "chaos") })

// given is the program that a variable names; without one it is built.
func given(variable string, tags ...string) (string, error) {
	if b := os.Getenv(variable); b != "" {
		if !filepath.IsAbs(b) {
			return "", fmt.Errorf("%s is %q: give an absolute path", variable, b)
		}
		return b, nil
	}
	dir, err := os.MkdirTemp("", "quorate-jepsen-")
	if err != nil {
		return "", err
	}
	builtIn = append(builtIn, dir)
	return Build(dir, tags...)
}

// RemoveProgram removes what was built here, once nothing runs any more.
func RemoveProgram() {
	for _, dir := range builtIn {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

// Run runs a command of the program to its end and returns what it printed. A failure tells what it said, and after
// how long.
func Run(ctx context.Context, binary string, args ...string) ([]byte, error) {
	return Place(nil).Run(ctx, binary, args...)
}
