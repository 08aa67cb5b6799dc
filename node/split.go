package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/placement"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/node/admin"
)

const (
	// rateSpan is the time over which decisions are counted.
	rateSpan = 10 * time.Second
	// splitPause is how long a partition is left alone after a plan, and splitBackoff after one that was undone.
	splitPause   = time.Minute
	splitBackoff = 10 * time.Minute
	// maxPerNode bounds the partitions that the planner makes, for each node: few, big groups batch better.
	maxPerNode = 32
)

// rate is how many a second there are of what is counted.
type rate struct {
	mu     sync.Mutex // guards the fields below
	count  int64
	at     time.Time
	perSec int64
}

// of is the rate over the last whole span, now that so many were counted.
func (r *rate) of(count int64, now time.Time) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	span := now.Sub(r.at)
	switch {
	case r.at.IsZero() || count < r.count: // counted anew
		r.count, r.at, r.perSec = count, now, 0
	case span >= rateSpan:
		r.perSec = int64(float64(count-r.count) / span.Seconds())
		r.count, r.at = count, now
	}
	return r.perSec
}

// splitStep begins to split a partition that has too much to do, if any has.
func (n *Node) splitStep(ctx context.Context, c *control.Control, s *state.State) error {
	marks := n.cfg.Placement
	if marks.SplitKeys == 0 && marks.SplitRate == 0 || len(s.Partitions) >= maxPerNode*len(s.Nodes) {
		return nil
	}
	now := time.Now()
	loads := make([]placement.Load, 0, len(s.Partitions))
	for _, p := range s.Partitions {
		load := placement.Load{Partition: n.placementPartition(p, now), Splittable: splittable(s, p, now)}
		if g := n.leading(p.ID.String(), now); g != nil {
			load.Keys, load.DecisionsPerSecond = g.Keys, g.DecisionsPerSecond
		}
		loads = append(loads, load)
	}
	split, ok := placement.NextSplit(loads, marks.SplitKeys, marks.SplitRate)
	replicas := n.placeNew(s, nil)
	if !ok || len(replicas) == 0 {
		return nil
	}
	p, _ := s.Partition(split.ID)
	_, err := c.Propose(ctx, &state.Command{
		Kind: state.KindStartPlan, Actor: admin.ItselfName,
		Comment: fmt.Sprintf("it has %d keys and makes %d decisions a second; the marks are %d and %d",
			split.Keys, split.DecisionsPerSecond, marks.SplitKeys, marks.SplitRate),
		Start: &state.StartPlan{Kind: state.PlanSplit, Source: p.ID, New: replicas, Ranges: p.UpperHalf()},
	})
	if err != nil {
		return fmt.Errorf("splitting %s: %w", p.ID, err)
	}
	n.logger.Info("a partition is to be split", "partition", p.ID.String(), "keys", split.Keys,
		"decisions_per_second", split.DecisionsPerSecond)
	return nil
}

// splittable reports that a partition can be split, and that nothing has just been moved from or to it.
func splittable(s *state.State, p *state.Partition, now time.Time) bool {
	if p.Plan != 0 || len(p.UpperHalf()) == 0 {
		return false
	}
	for _, ended := range s.Ended {
		pause := splitPause
		if ended.Phase == state.PlanAborted {
			pause = splitBackoff
		}
		since := now.Sub(time.Unix(0, ended.EndedWallNanos))
		if (ended.Source == p.ID || ended.Destination == p.ID) && since >= 0 && since < pause {
			return false
		}
	}
	return true
}
