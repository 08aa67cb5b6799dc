//go:build chaos

package process

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/mutants"
	"github.com/quorate/quorate/jepsen/process"
)

const (
	// class is what is asked for: room in it does not come back while a scenario is played.
	class = "strict"
	// room is how much of it a principal has.
	room = 10
	// answerWithin bounds an attempt: above a node's own bound for it.
	answerWithin = 7 * time.Second
	// playWithin bounds a scenario, from the cluster on.
	playWithin = 90 * time.Second
	// retryPause is between two attempts.
	retryPause = 20 * time.Millisecond
)

// strictPolicy is in force all the time.
func strictPolicy() history.Policy {
	limits := []history.Limit{{Name: "hourly", Max: room, Window: history.Window(time.Hour)}}
	return history.Policy{
		Version: "mutants", Default: history.Class{Limits: limits},
		Classes: map[string]history.Class{class: {
			Limits: limits, ReplayHorizon: history.Window(15 * time.Minute), Timeout: history.Window(answerWithin),
		}},
	}
}

// stage is where a scenario is played: what is asked there, and the record of it that the judges get.
type stage struct {
	*testing.T
	ctx     context.Context // ends when the scenario takes too long
	off     guard.Guard
	dir     string // of the run
	binary  string
	begun   time.Time
	record  *history.Recorder
	cluster *cluster.Cluster // nil where a scenario has one of its own
	http    *http.Client
	scheme  string
	policy  history.Policy

	found []mutants.Finding // what no judge of the run's directory can know

	mu   sync.Mutex // guards last
	last int        // number of the last check
}

// newStage is one without a cluster.
func newStage(t *testing.T, off guard.Guard, name string, seed uint64) *stage {
	t.Helper()
	s := &stage{
		T: t, off: off, dir: filepath.Join(t.TempDir(), "run"),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, scheme: "http",
		policy: strictPolicy(),
	}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithTimeout(t.Context(), playWithin)
	t.Cleanup(cancel)
	t.Cleanup(s.http.CloseIdleConnections)
	var err error
	s.binary, err = process.ChaosProgram()
	s.must(err)
	var monotonicNanos int64
	s.begun, monotonicNanos = beginning(t)
	s.record, err = history.Record(s.dir, &history.Config{
		Name: name, Seed: seed, Mutant: string(off), Nodes: 3, Began: s.begun.UTC(), BeganMonotonic: monotonicNanos,
		Least: &history.Least{Allows: 1},
	})
	s.must(err)
	return s
}

// asOne is how long two clocks may take to be read as if at one instant: the judges allow for no difference.
const asOne = 20 * time.Microsecond

// beginning is the instant from which the history counts, and CLOCK_MONOTONIC then.
func beginning(t *testing.T) (begun time.Time, monotonicNanos int64) {
	t.Helper()
	for {
		var now unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			t.Fatal(err)
		}
		if time.Since(before) < asOne {
			return before, now.Nano()
		}
	}
}

// environment is what a node's processes get.
func (s *stage) environment(n *process.Node) []string {
	env := []string{"QUORATE_TAP=" + s.dir, "QUORATE_CLOCK=" + s.clockFile(n.ID)}
	if s.off != "" {
		env = append(env, "QUORATE_UNGUARDED="+string(s.off))
	}
	return env
}

func (s *stage) clockFile(node string) string { return filepath.Join(s.dir, "clock-"+node+".json") }

// disturb has a node's clocks be wrong.
func (s *stage) disturb(node, how string) {
	s.Helper()
	file := s.clockFile(node)
	s.must(os.WriteFile(file+".new", []byte(how), 0o600))
	s.must(os.Rename(file+".new", file))
}

// start makes a cluster of three nodes.
func (s *stage) start(partitions int) {
	s.Helper()
	dir := filepath.Join(s.dir, "cluster")
	s.must(os.MkdirAll(dir, 0o750))
	c, err := cluster.NewCluster(s.ctx, dir, cluster.Options{
		Binary: s.binary, Nodes: 3, First: 3, Partitions: partitions, Policy: s.policy, Cuts: true,
		Environment: s.environment,
	})
	s.must(err)
	s.cluster = c
	s.Cleanup(func() { s.must(c.Close()) })
	s.use(s.must1(c.GatewayTLS()))
	s.must(c.AwaitWhole(s.ctx, 3))
}

// use has checks be asked with TLS.
func (s *stage) use(config *tls.Config) {
	s.http = &http.Client{Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 64}}
	s.scheme = "https"
	s.Cleanup(s.http.CloseIdleConnections)
}

func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stage) must1(config *tls.Config, err error) *tls.Config {
	s.Helper()
	s.must(err)
	return config
}

func (s *stage) now() time.Duration { return time.Since(s.begun) }

// event records something.
func (s *stage) event(kind, what string, nodes ...string) {
	s.Helper()
	s.must(s.record.Event(&history.Event{At: s.now(), Kind: kind, What: what, Nodes: nodes, Injected: true}))
}

// leader waits for that of a partition, and the others.
func (s *stage) leader(group string) (leader *cluster.Node, others []*cluster.Node) {
	s.Helper()
	leader, err := s.cluster.Leader(s.ctx, group)
	s.must(err)
	for _, n := range s.cluster.Nodes {
		if n != leader {
			others = append(others, n)
		}
	}
	return leader, others
}

// kill kills nodes.
func (s *stage) kill(nodes ...*cluster.Node) {
	s.Helper()
	for _, n := range nodes {
		s.must(n.SignalKill())
	}
	for _, n := range nodes {
		s.must(n.Kill())
		s.event("end", "killed", n.ID)
	}
}

func (s *stage) await(what string, condition func() bool) {
	s.Helper()
	s.must(process.Await(s.ctx, what, condition))
}

// said reports whether a node's log has a text.
func (s *stage) said(n *process.Node, text string) bool {
	log, err := os.ReadFile(n.Log)
	return err == nil && bytes.Contains(log, []byte(text))
}

// applied reports whether a node has told that something was decided for each principal.
func (s *stage) applied(node string, principals []string) bool {
	files, err := filepath.Glob(filepath.Join(s.dir, "applied-"+node+"-*.jsonl"))
	s.must(err)
	var told []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		s.must(err)
		told = append(told, text...)
	}
	return !slices.ContainsFunc(principals, func(p string) bool {
		return !bytes.Contains(told, []byte(`"principal":"`+p+`"`))
	})
}

// next is a new check of one.
func (s *stage) next(principal string) history.Asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return history.Asked{
		ID: fmt.Sprint("d", s.last), Principal: principal, Class: class, Cost: 1, Workload: "scenario",
		Client: fmt.Sprint("of d", s.last),
	}
}

// ask sends a check to a node once, and records what came of it.
func (s *stage) ask(a history.Asked, at *process.Node) history.Asked {
	a.Node, a.Sent, a.Received = at.ID, s.now(), history.Never
	ctx, cancel := context.WithTimeout(s.ctx, answerWithin)
	defer cancel()
	if answer, err := s.send(ctx, &a, at); err == nil {
		a.Received, a.Answer = s.now(), answer
	}
	s.tell(&a)
	return a
}

// tell records an attempt. It may be called from any goroutine.
func (s *stage) tell(a *history.Asked) {
	if err := s.record.Asked(a); err != nil {
		s.Errorf("an attempt cannot be recorded: %v", err)
	}
}

func (s *stage) send(ctx context.Context, a *history.Asked, at *process.Node) (answer history.Answer, err error) {
	body, err := json.Marshal(map[string]any{
		"principal": a.Principal, "api_class": a.Class, "decision_id": a.ID, "cost": a.Cost,
	})
	if err != nil {
		return answer, err
	}
	url := s.scheme + "://" + at.HTTP + "/v1/check"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.http.Do(req)
	if err != nil {
		return answer, err
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return answer, err
	}
	return answer, json.Unmarshal(text, &answer)
}

// decide has a check decided by one of the nodes, as often as it takes.
func (s *stage) decide(a history.Asked, nodes ...*process.Node) (decided history.Asked) {
	for k := 0; s.ctx.Err() == nil; k++ {
		if decided = s.ask(a, nodes[k%len(nodes)]); decided.Answer.Decided() {
			return decided
		}
		<-time.After(retryPause)
	}
	s.Errorf("%s of %s is not decided within the time of the scenario: %+v", a.ID, a.Principal, decided.Answer)
	return decided
}

// decideAll has so many checks of each of some principals decided, and returns how many were allowed.
func (s *stage) decideAll(each int, principals []string, nodes ...*process.Node) (allowed int) {
	var mu sync.Mutex // guards allowed
	var asking sync.WaitGroup
	for k, p := range principals {
		asking.Go(func() {
			of := slices.Concat(nodes[k%len(nodes):], nodes[:k%len(nodes)])
			for range each {
				if s.decide(s.next(p), of...).Answer.Allowed {
					mu.Lock()
					allowed++
					mu.Unlock()
				}
			}
		})
	}
	asking.Wait()
	return allowed
}

// principals are n of a name.
func principals(name string, n int) (out []string) {
	for k := range n {
		out = append(out, fmt.Sprint(name, k))
	}
	return out
}

// all are the nodes of the cluster, of processes.
func (s *stage) all() (nodes []*process.Node) {
	for _, n := range s.cluster.Nodes {
		nodes = append(nodes, &n.Node)
	}
	return nodes
}

// judge ends the cluster, and tells what the judges find.
func (s *stage) judge() (out []mutants.Finding) {
	s.Helper()
	if s.cluster != nil {
		for _, n := range s.cluster.Nodes {
			if n.Ended() {
				status, lines, err := n.AwaitEnd(s.ctx)
				s.must(err)
				s.must(s.record.Event(&history.Event{
					At: s.now(), Kind: "end", What: fmt.Sprint(lines), Nodes: []string{n.ID}, Value: uint64(status),
				}))
			}
		}
		s.must(s.cluster.Close())
	}
	if s.Failed() {
		s.FailNow()
	}
	s.must(s.record.Revision(&history.Revision{Number: 1, Policy: s.policy, Began: -time.Hour, Active: 0}))
	s.must(s.record.Close())
	v, err := check.Run(s.dir)
	s.must(err)
	for _, o := range v.Checkers {
		for _, found := range o.Violations {
			out = append(out, mutants.Finding{Checker: o.Name, Text: found.Text})
		}
	}
	if os.Getenv("QUORATE_MUTANT_VERDICTS") != "" {
		s.Logf("%s without %q:\n%v%v", s.Name(), s.off, v, v.Counts)
	}
	return out
}
