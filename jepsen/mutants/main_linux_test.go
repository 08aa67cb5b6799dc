//go:build chaos

package mutants_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/quorate/quorate/jepsen/process"
)

// inside is set in the environment of the tests' own namespace.
const inside = "QUORATE_MUTANTS_INSIDE"

// TestMain runs the tests again in a namespace of mounts of their own: when that run ends, however it does, its mounts
// end with it.
func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" || os.Geteuid() != 0 {
		m.Run()
		process.RemoveProgram()
		return
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the child is to end with this process, not with one of its threads
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(1, exit.ExitCode())) //nolint:forbidigo // the only way to pass the inner run's status on
	case err != nil: // no namespaces for this root: the tests say what they cannot do
		m.Run()
		process.RemoveProgram()
	}
}
