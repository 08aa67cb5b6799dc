package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/quorate/quorate/bench"
)

// peer is one product in one configuration.
type peer struct {
	Name string
	// Durable says what is on which disks when it says yes.
	Durable string
	// Not is what it does not promise.
	Not string
	// Programs are what has to be found on this machine.
	Programs []string
	// Advice says how to get them.
	Advice string
	start  func(ctx context.Context, at place) (*server, error)
}

// place is where a peer may put its files and listen.
type place struct {
	dir  string
	port int // the first of 100
}

func (p place) addr(offset int) string { return fmt.Sprintf("127.0.0.1:%d", p.port+offset) }

// server is a peer that runs.
type server struct {
	bench.Target
	processes []*process
	pids      []int
	closing   []func()
}

// close ends the client, then the processes, the last first.
func (s *server) close() error {
	for _, f := range s.closing {
		f()
	}
	var errs []error
	for i := len(s.processes) - 1; i >= 0; i-- {
		errs = append(errs, s.processes[i].stop())
	}
	return errors.Join(errs...)
}

// run starts one more process of the server.
func (s *server) run(at place, name, program string, env []string, args ...string) error {
	p, err := start(filepath.Join(at.dir, name+".log"), program, env, args...)
	if err != nil {
		return err
	}
	s.processes = append(s.processes, p)
	s.pids = append(s.pids, p.cmd.Process.Pid)
	return nil
}

// await asks until ready says so, a process has ended, or it takes too long.
func (s *server) await(ctx context.Context, ready func(context.Context) error) error {
	const most, look = 30 * time.Second, 50 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		asking, done := context.WithTimeout(ctx, time.Second)
		err := ready(asking)
		done()
		if err == nil {
			return nil
		}
		for _, p := range s.processes {
			if p.ended() {
				return fmt.Errorf("%s has ended: %s", filepath.Base(p.cmd.Path), p.lastLine())
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready within %s: %w", most, err)
		case <-tick.C:
		}
	}
}

// all are the peers that there are; Quorate is the first.
func (c *config) all() []peer {
	const debian = "apt-get install redis-server etcd-server"
	return []peer{
		{
			Name: "Quorate", Programs: []string{c.quorate}, start: c.startQuorate,
			Durable: "majority of three replicas, synced",
			Not:     "-",
		},
		{
			Name: "Redis, in memory", Programs: []string{"redis-server"}, Advice: debian, start: startRedis(false),
			Durable: "nowhere",
			Not: "to survive its process; one decision per id; several limits at once; a window by a clock that does not " +
				"jump",
		},
		{
			Name: "Redis, appendfsync always", Programs: []string{"redis-server"}, Advice: debian, start: startRedis(true),
			Durable: "one disk, synced",
			Not: "to survive its machine, or a failover to a replica; one decision per id; several limits at once; a window " +
				"by a clock that does not jump",
		},
		{
			Name: "etcd", Programs: []string{"etcd"}, Advice: debian, start: startEtcd,
			Durable: "majority of three replicas, synced",
			Not:     "one decision per id; a window by one clock: each client uses its own",
		},
		{
			Name: "Gubernator", start: startGubernator,
			Durable: "nowhere; three nodes, each key on one",
			Not: "a rolling window: its token bucket starts anew when it ends, so twice the limit may pass around that; to " +
				"survive its process or a change of the nodes; one decision per id",
		},
	}
}

// peers are those that can be measured; what is missing is noted in the result.
func (c *config) peers(res *result) (found []peer) {
	for i, p := range c.all() {
		if i > 0 && c.only != "" && !strings.Contains(","+c.only+",", ","+p.Name+",") {
			continue
		}
		missing := ""
		for _, program := range p.Programs {
			if _, err := exec.LookPath(program); err != nil {
				missing = program
			}
		}
		if missing != "" {
			res.Missing = append(res.Missing,
				fmt.Sprintf("%s was not measured: %s was not found (%s).", p.Name, missing, p.Advice))
			continue
		}
		found = append(found, p)
	}
	return found
}

// fresh is an empty place for a peer.
func (c *config) fresh(name string) (place, error) {
	dir, err := os.MkdirTemp(c.dir, strings.ReplaceAll(strings.ToLower(name), " ", "-")+"-")
	return place{dir, c.basePort}, err
}
