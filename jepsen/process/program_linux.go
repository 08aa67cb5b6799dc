package process

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
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

// builtIn is the directory of the program that Program has built; empty when it has built none.
var builtIn string

// Program is the program under test: what QUORATE_BINARY names, an absolute path; else it is built, once. Whoever
// calls it calls RemoveProgram in the end.
var Program = sync.OnceValues(func() (string, error) {
	if b := os.Getenv("QUORATE_BINARY"); b != "" {
		if !filepath.IsAbs(b) {
			return "", fmt.Errorf("QUORATE_BINARY is %q: give an absolute path", b)
		}
		return b, nil
	}
	dir, err := os.MkdirTemp("", "quorate-jepsen-")
	if err != nil {
		return "", err
	}
	builtIn = dir
	return Build(dir)
})

// RemoveProgram removes what Program has built, once nothing runs any more.
func RemoveProgram() {
	if builtIn == "" {
		return
	}
	if err := os.RemoveAll(builtIn); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// Run runs a command of the program to its end and returns what it printed. A failure tells what it said, and after
// how long.
func Run(ctx context.Context, binary string, args ...string) ([]byte, error) {
	begun := time.Now()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("quorate %s: after %v: %w: %s",
			strings.Join(args, " "), time.Since(begun).Round(time.Millisecond), err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}
