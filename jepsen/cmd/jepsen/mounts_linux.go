package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
)

// insideEnvironment is set where the mounts are the run's own.
const insideEnvironment = "QUORATE_JEPSEN_INSIDE"

// inOwnMounts makes a run in a namespace of its own, of mounts. Disks that the run mounts end with it, however it ends;
// and whoever makes such a namespace meanwhile takes no copy of them: a copy would keep a disk whose power was cut from
// coming back. It reports false where there is nothing to do, or it cannot be done.
func inOwnMounts(ctx context.Context, args []string) (status int, done bool) {
	if os.Geteuid() != 0 || os.Getenv(insideEnvironment) != "" || !slices.Contains(args, "run") {
		return 0, false
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnvironment+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the child is to end with this process, not with one of its threads
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, false // this root makes no namespaces: the run says what it has to do without
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode(), true
	case err != nil && cmd.ProcessState.Success(): // it was interrupted, and ended in order
		return 0, true
	case err != nil:
		return exitBroken, true
	}
	return 0, true
}
