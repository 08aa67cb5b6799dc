package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// childGrace is how long a child may take to end after SIGTERM before it is killed: longer than a node gives
// itself to let requests end and to close its group.
const childGrace = 20 * time.Second

// child is a node that runs as a process of its own.
type child struct {
	id    string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	err   error         // set before ended is closed
}

// children starts the nodes of `dev --processes` and ends them. The goroutine that starts them keeps
// its thread for as long as they live, since the kernel ends a child when the thread that made it does.
type children struct {
	list  []*child
	start chan func()
}

func newChildren() *children {
	c := &children{start: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range c.start {
			f()
		}
	}()
	return c
}

// add starts `quorate server --config file` with its output in logFile.
func (c *children) add(id, configFile, logFile string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the child has its own descriptor
	cmd := exec.Command(exe, "server", "--config", configFile)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttr()
	started := make(chan error)
	c.start <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return fmt.Errorf("node %s: %w", id, err)
	}
	ch := &child{id: id, cmd: cmd, ended: make(chan struct{})}
	c.list = append(c.list, ch)
	go func() {
		ch.err = cmd.Wait()
		close(ch.ended)
	}()
	return nil
}

// report writes a line when a child ends. A child that ended stays down.
func (c *children) report(w io.Writer, stopping <-chan struct{}) {
	for _, ch := range c.list {
		go func() {
			<-ch.ended
			select {
			case <-stopping:
			default:
				fmt.Fprintf(w, "node %s (pid %d) ended: %s; it stays down\n", ch.id, ch.cmd.Process.Pid, ch.how())
			}
		}()
	}
}

func (ch *child) how() string {
	if ch.err == nil {
		return "exit status 0"
	}
	return ch.err.Error()
}

// stop ends the children, and kills those that do not go.
func (c *children) stop() error {
	for _, ch := range c.list {
		if err := ch.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return err
		}
	}
	grace := time.NewTimer(childGrace)
	defer grace.Stop()
	for _, ch := range c.list {
		select {
		case <-ch.ended:
		case <-grace.C:
			_ = ch.cmd.Process.Kill() // it may have ended at this moment
			<-ch.ended
			grace.Reset(0)
		}
	}
	close(c.start)
	return nil
}

// firstEnded waits for the first child to end; nil when stopping came before.
func (c *children) firstEnded(stopping <-chan struct{}) *child {
	first := make(chan *child, len(c.list))
	for _, ch := range c.list {
		go func() {
			<-ch.ended
			first <- ch
		}()
	}
	select {
	case ch := <-first:
		return ch
	case <-stopping:
		return nil
	}
}
