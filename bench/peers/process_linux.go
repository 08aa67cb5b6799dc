package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// process is one that was started here.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
	err  error         // set before
}

// start starts a program whose output goes to a file. It ends with this one.
func start(log, program string, env []string, args ...string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close() //nolint:errcheck // the process has its own
	p := &process{cmd: exec.Command(program, args...), log: log, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// stop asks it to end, and ends it after a while.
func (p *process) stop() error {
	const patience = 15 * time.Second
	if p.ended() {
		return fmt.Errorf("%s ended by itself: %s: %w", p.cmd.Path, p.lastLine(), p.failure())
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
	select {
	case <-p.done:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	return nil
}

// failure is how it ended.
func (p *process) failure() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

func (p *process) lastLine() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
