package disk

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

const (
	// actPause is between two acts of an operator: each is a command, hence a process.
	actPause = 50 * time.Millisecond
	// maxTokens bounds the tokens that are made: the control group forgets none below its own bound.
	maxTokens = 900
)

// Acts are an operator's changes of the cluster, policies and tokens in turn, made until they are stopped. They go
// through the control group as decisions go through a partition. All its methods may be called at any time, by
// several goroutines.
type Acts struct {
	cluster *Cluster

	stop    chan struct{}
	stopped sync.Once
	done    sync.WaitGroup
	busy    sync.Mutex // held while an act is under way, and in a pause

	mu           sync.Mutex // guards the fields below
	list         []act
	acknowledged int
	tokens       int
}

// act is one change. Its name, the policy's version or the token's, is used once.
type act struct {
	name         string
	token        string // its id; empty for a policy
	revision     uint64 // the number that a policy was given
	acknowledged bool
}

// StartActs begins to change the cluster.
func (c *Cluster) StartActs() *Acts {
	a := &Acts{cluster: c, stop: make(chan struct{})}
	a.done.Go(a.work)
	return a
}

func (a *Acts) work() {
	next := time.NewTicker(actPause)
	defer next.Stop()
	for turn := 0; ; turn++ {
		select {
		case <-a.stop:
			return
		case <-next.C:
		}
		a.busy.Lock()
		a.one(turn)
		a.busy.Unlock()
	}
}

// one makes one change and records it. What is not acknowledged may have been done all the same.
func (a *Acts) one(turn int) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	made := act{name: fmt.Sprint("act", turn)}
	a.mu.Lock()
	policy := turn%2 == 0 || a.tokens >= maxTokens
	if !policy {
		a.tokens++
	}
	a.mu.Unlock()
	var err error
	if policy {
		made.revision, err = a.publish(ctx, made.name)
	} else {
		made.token, err = a.cluster.createToken(ctx, made.name)
	}
	made.acknowledged = err == nil
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = append(a.list, made)
	if made.acknowledged {
		a.acknowledged++
	}
}

// publish puts a policy in force that differs from the others by its version only.
func (a *Acts) publish(ctx context.Context, version string) (uint64, error) {
	file := filepath.Join(a.cluster.dir, "act.yaml")
	text := strings.Replace(policyText, "version: "+firstVersion, "version: "+version, 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return 0, err
	}
	var v struct {
		Revision Revision `json:"revision"`
	}
	err := a.cluster.ask(ctx, &v, "policy", "apply", file, "--timeout", "5s")
	if err == nil && v.Revision.Version != version {
		err = fmt.Errorf("policy %s was put in force as %+v", version, v.Revision)
	}
	return v.Revision.Number, err
}

func (c *Cluster) createToken(ctx context.Context, name string) (id string, err error) {
	var v struct {
		Token Token `json:"token"`
	}
	err = c.ask(ctx, &v, "token", "create", name, "--role", "viewer", "--timeout", "5s")
	return v.Token.ID, err
}

// Acknowledged is how many acts have been acknowledged so far.
func (a *Acts) Acknowledged() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acknowledged
}

// AwaitMore waits until n more acts have been acknowledged than there are now.
func (a *Acts) AwaitMore(ctx context.Context, n int) error {
	from := a.Acknowledged()
	return process.Await(ctx, fmt.Sprintf("%d more acts of an operator", n), func() bool {
		return a.Acknowledged() >= from+n
	})
}

// Pause returns when no act is under way any more; none is, until the function that it returns is called, once.
func (a *Acts) Pause() (resume func()) {
	a.busy.Lock()
	return a.busy.Unlock
}

// Stop ends the acts. It may be called again.
func (a *Acts) Stop() {
	a.stopped.Do(func() { close(a.stop) })
	a.done.Wait()
}

// Revision is a policy revision, as commands print it.
type Revision struct {
	Number  uint64 `json:"number"`
	Version string `json:"version"`
}

// Token is a token, as commands print it.
type Token struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// AuditRecord is a record of the audit trail, as commands print it.
type AuditRecord struct {
	Index  uint64 `json:"index"`
	Action string `json:"action"`
	Object string `json:"object"`
	Result string `json:"result"`
}

// ask runs a command that prints JSON, whichever nodes are up.
func (c *Cluster) ask(ctx context.Context, answer any, args ...string) error {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.GRPC)
	}
	return c.askAt(ctx, addrs, answer, args...)
}

func (c *Cluster) askAt(ctx context.Context, addrs []string, answer any, args ...string) error {
	out, err := c.commandAt(ctx, addrs, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, answer); err != nil {
		return fmt.Errorf("quorate %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}
