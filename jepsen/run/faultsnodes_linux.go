package run

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

func (d *drawn) kill(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	if err := n.Kill(); err != nil {
		return false, err
	}
	end := history.Event{At: d.run.now(), Kind: "end", What: "killed", Nodes: []string{n.ID}, Injected: true}
	if err := d.run.recorder.Event(&end); err != nil {
		return false, err
	}
	held(r)
	return true, n.Start()
}

func (d *drawn) pause(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	if err := n.Pause(ctx); err != nil {
		return false, err
	}
	held(r)
	return true, n.Resume()
}

func (d *drawn) restartAll(ctx context.Context, _ *cluster.Node, r *rand.Rand) (bool, error) {
	for _, n := range d.members() {
		if _, err := d.kill(ctx, n, r); err != nil {
			return false, err
		}
	}
	return true, nil
}

// slowFile has a node's syncs take as long as it says, while it is there.
func slowFile(dir string, n *process.Node) string { return filepath.Join(dir, n.ID+".slow-sync") }

func (d *drawn) slowSync(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	file := slowFile(filepath.Join(d.run.Dir, clusterDir), &n.Node)
	took := time.Duration(50+r.IntN(400)) * time.Millisecond
	if err := replace(file, []byte(took.String())); err != nil {
		return false, err
	}
	held(r)
	return true, os.Remove(file)
}

// skew is what a node's clock file says.
type skew struct {
	Wall   int64 `json:"wall_offset_ns"`
	Rate   int64 `json:"rate_ppm"`
	Freeze bool  `json:"freeze"`
}

// clockFile holds what is wrong with a node's clocks.
func clockFile(dir string, n *process.Node) string { return filepath.Join(dir, n.ID+".clock") }

// skewed changes a node's clocks.
func (d *drawn) skewed(n *cluster.Node, change func(*skew)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.offset[n.ID]
	change(&s)
	d.offset[n.ID] = s
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return replace(clockFile(filepath.Join(d.run.Dir, clusterDir), &n.Node), text)
}

// wall sets a node's wall clock for as long as a fault lasts.
func (d *drawn) wall(n *cluster.Node, r *rand.Rand, offset time.Duration) (bool, error) {
	if err := d.skewed(n, func(s *skew) { s.Wall = int64(offset) }); err != nil {
		return false, err
	}
	held(r)
	return true, d.skewed(n, func(s *skew) { s.Wall = 0 })
}

// sign is 1 or -1.
func sign(r *rand.Rand) int64 { return 2*r.Int64N(2) - 1 }

func (d *drawn) wallStep(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	return d.wall(n, r, time.Duration(sign(r)*r.Int64N(int64(10*time.Minute))))
}

func (d *drawn) wallJump(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	const day = 24 * time.Hour
	return d.wall(n, r, []time.Duration{day, -day, 100 * day, -100 * 365 * day}[r.IntN(4)])
}

func (d *drawn) wallStrobe(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	by := time.Duration(r.Int64N(int64(time.Hour)))
	for range 100 {
		if err := d.skewed(n, func(s *skew) { s.Wall = int64(by) - s.Wall }); err != nil {
			return false, err
		}
		<-time.After(time.Duration(10+r.IntN(40)) * time.Millisecond)
	}
	return true, d.skewed(n, func(s *skew) { s.Wall = 0 })
}

// drift has the clocks that count run as wrong as they may.
func (d *drawn) drift(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	if err := d.skewed(n, func(s *skew) { s.Rate = 400 * sign(r) }); err != nil {
		return false, err
	}
	held(r)
	return true, d.skewed(n, func(s *skew) { s.Rate = 0 })
}

// freeze has the clocks that count stand, as while a machine is suspended.
func (d *drawn) freeze(_ context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	if err := d.skewed(n, func(s *skew) { s.Freeze = true }); err != nil {
		return false, err
	}
	held(r)
	return true, d.skewed(n, func(s *skew) { s.Freeze = false })
}

func (d *drawn) skewNextLeader(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	if err := d.skewed(n, func(s *skew) { s.Wall = int64(24*time.Hour) * sign(r) }); err != nil {
		return false, err
	}
	led, err := d.transfer(ctx, n, r)
	if err == nil {
		held(r)
		err = d.skewed(n, func(s *skew) { s.Wall = 0 })
	}
	return led, err
}

// replace puts a file in place whole.
func replace(file string, text []byte) error {
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
