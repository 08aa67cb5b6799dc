//go:build chaos

package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/disk"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/mutants"
	"github.com/quorate/quorate/jepsen/process"
)

// endsWithin is how long a node may take to end after its disk has failed: the time that a write may take, and some.
const endsWithin = 15 * time.Second

// firstFailure is said of the first write that failed.
const firstFailure = "input/output error; what is on the disk is unknown"

// startOnDisks makes a cluster whose nodes have disks of their own, without TLS.
func (s *stage) startOnDisks() (c *disk.Cluster, nodes []*process.Node) {
	s.Helper()
	dir := filepath.Join(s.dir, "cluster")
	s.must(os.MkdirAll(dir, 0o750))
	if err := disk.Available(s.ctx, dir); err != nil {
		s.Skip(err)
	}
	s.policy = history.Policy{
		Version: "disk", Default: history.Class{Limits: []history.Limit{
			{Name: "default", Max: 1, Window: history.Window(time.Minute)},
		}},
		Classes: map[string]history.Class{class: {
			Limits:        []history.Limit{{Name: "hourly", Max: 1_000_000, Window: history.Window(time.Hour)}},
			ReplayHorizon: history.Window(15 * time.Minute), Timeout: history.Window(5 * time.Second),
		}},
	}
	c, err := disk.NewCluster(s.ctx, dir, disk.Options{
		Binary: s.binary, Environment: s.environment(&process.Node{ID: "all"}),
	})
	s.must(err)
	s.Cleanup(func() { s.must(c.Close()) })
	for _, n := range c.Nodes {
		nodes = append(nodes, &n.Node)
	}
	return c, nodes
}

// find notes what no judge of the run's directory can know.
func (s *stage) find(checker, format string, args ...any) {
	s.found = append(s.found, mutants.Finding{Checker: checker, Text: fmt.Sprintf(format, args...)})
}

// powerCut cuts the power of all nodes at once, and asks again for what was allowed.
func (s *stage) powerCut() {
	c, nodes := s.startOnDisks()
	for _, n := range c.Nodes { // what the nodes are is there after the cut, only what they did since is not
		s.must(n.Image.Sync())
	}
	var allowed []history.Asked
	for range 40 {
		for k, p := range principals("cut", 6) {
			if a := s.decide(s.next(p), nodes[k%3], nodes[(k+1)%3], nodes[(k+2)%3]); a.Answer.Allowed {
				allowed = append(allowed, a)
			}
		}
	}
	s.must(c.CutPower(s.ctx, c.Nodes...))
	s.event("fault", "power-cut", "n0", "n1", "n2")
	for _, n := range nodes {
		s.event("end", "power cut", n.ID)
	}
	err := c.StartAll(s.ctx)
	var ended *disk.Ended
	if errors.As(err, &ended) && strings.Contains(ended.Error(), "data was lost") {
		s.find("durability", "a node finds by itself that what it acknowledged is lost: %v", ended)
		return
	}
	s.must(err)
	for _, a := range allowed {
		if again := s.decide(a, nodes...); !again.Answer.Replayed {
			s.find("durability", "%s of %s was allowed, and after the power cut nobody knows of it: %+v", a.ID, a.Principal,
				again.Answer)
		}
	}
}

// diskError has the disk of the leader fail under it.
func (s *stage) diskError() {
	c, nodes := s.startOnDisks()
	s.decideAll(20, principals("before", 6), nodes...)
	leader, err := c.Leader(s.ctx)
	s.must(err)
	s.must(leader.Image.Shutdown())
	s.event("fault", "disk-error", leader.ID)
	var others []*process.Node
	for _, n := range nodes {
		if n.ID != leader.ID {
			others = append(others, n)
		}
	}
	s.decideAll(20, principals("after", 6), others...)
	waiting, cancel := context.WithTimeout(s.ctx, endsWithin)
	defer cancel()
	status, lines, err := leader.AwaitEnd(waiting)
	switch {
	case err != nil:
		s.find("process", "%s goes on without a disk: %v", leader.ID, err)
	case status != 1 || len(lines) != 1 || !strings.Contains(lines[0], firstFailure):
		s.find("process", "%s did not end by the first write that failed, but with status %d, and said %q", leader.ID,
			status, lines)
	default:
		s.event("end", lines[0], leader.ID)
	}
}
