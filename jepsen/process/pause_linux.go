package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Pause stops the process with SIGSTOP, and returns when all of it stands still.
func (n *Node) Pause(ctx context.Context) error {
	if !n.Up() {
		return fmt.Errorf("node %s does not run, and cannot be paused", n.ID)
	}
	r := n.run.Load()
	if err := r.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	r.paused.Store(true)
	return Await(ctx, n.ID+" stands still", func() bool { return still(r.cmd.Process.Pid) })
}

// Stands reports whether all of the process stands still, be it that it has stopped itself. It then counts as paused.
func (n *Node) Stands() bool {
	r := n.run.Load()
	if !n.Up() || !still(r.cmd.Process.Pid) {
		return false
	}
	r.paused.Store(true)
	return true
}

// still reports whether every thread of a process is stopped.
func still(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, file := range stats {
		text, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		// The state is the word after the name, which is in brackets and may hold anything.
		after := text[bytes.LastIndexByte(text, ')')+1:]
		if !strings.HasPrefix(string(after), " T") {
			return false
		}
	}
	return true
}

// Paused reports whether the process is paused.
func (n *Node) Paused() bool {
	r := n.run.Load()
	return r != nil && r.paused.Load()
}

// Resume lets a paused process go on.
func (n *Node) Resume() error {
	if !n.Paused() {
		return nil
	}
	r := n.run.Load()
	r.paused.Store(false)
	if err := r.cmd.Process.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("node %s: %w", n.ID, err)
	}
	return nil
}
