package process

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Place is where processes are started: it calls start on a thread that is there, and returns its error. The thread
// lives as long as processes may that were started on it, which end with it. nil is where this process is.
type Place func(start func() error) error

// forks starts processes from one thread that never ends: a child that is to end with its parent ends with the
// thread that made it.
var forks = sync.OnceValue(func() chan func() {
	ch := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range ch {
			f()
		}
	}()
	return ch
})

// start starts a process that ends with this one.
func (p Place) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	if p != nil {
		return p(cmd.Start)
	}
	started := make(chan error)
	forks() <- func() { started <- cmd.Start() }
	return <-started
}

// Run runs a command of the program there, to its end, and returns what it printed. A failure tells what it said, and
// after how long.
func (p Place) Run(ctx context.Context, binary string, args ...string) ([]byte, error) {
	begun := time.Now()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := p.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		err = fmt.Errorf("quorate %s: after %v: %w: %s",
			strings.Join(args, " "), time.Since(begun).Round(time.Millisecond), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), err
}
