package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/quorate/quorate/jepsen/process"
)

// Plan is what `partition list -o json` tells of a plan.
type Plan struct {
	ID          uint64  `json:"id"`
	Kind        string  `json:"kind"`
	Source      string  `json:"source"`
	Destination string  `json:"destination"`
	Ranges      []Range `json:"ranges"`
	Phase       string  `json:"phase"`
	Progress    string  `json:"progress"`
	Epoch       uint64  `json:"epoch"`
	Message     string  `json:"message"`
}

// The phases in which a plan has ended.
const (
	planDone   = "done"
	planUndone = "undone"
)

// ended reports whether nothing will happen for the plan any more.
func (p *Plan) ended() bool { return p.Phase == planDone || p.Phase == planUndone }

// Plans asks for the plans that are under way and those that ended lately.
func (c *Cluster) Plans(ctx context.Context) ([]Plan, error) {
	out, err := c.Command(ctx, "partition", "list", "-o", "json")
	if err != nil {
		return nil, err
	}
	var v struct {
		Plans []Plan `json:"plans"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return nil, fmt.Errorf("partition list: %w: %s", err, out)
	}
	return v.Plans, nil
}

// Plan asks for one plan.
func (c *Cluster) Plan(ctx context.Context, id uint64) (Plan, error) {
	plans, err := c.Plans(ctx)
	if err != nil {
		return Plan{}, err
	}
	i := slices.IndexFunc(plans, func(p Plan) bool { return p.ID == id })
	if i < 0 {
		return Plan{}, fmt.Errorf("plan %d is not listed: %+v", id, plans)
	}
	return plans[i], nil
}

// StartPlan runs a command of `partition` that begins a plan, and returns the plan's number.
func (c *Cluster) StartPlan(ctx context.Context, args ...string) (uint64, error) {
	out, err := c.Command(ctx, slices.Concat([]string{"partition"}, args, []string{"-o", "json"})...)
	if err != nil {
		return 0, err
	}
	var v Plan
	if err := json.Unmarshal(out, &v); err != nil || v.ID == 0 {
		return 0, fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return v.ID, nil
}

// AwaitPlan waits until a plan has ended, and returns how.
func (c *Cluster) AwaitPlan(ctx context.Context, id uint64) (plan Plan, err error) {
	var last error
	err = process.Await(ctx, fmt.Sprintf("plan %d ends", id), func() bool {
		var p Plan
		if p, last = c.Plan(ctx, id); last == nil {
			plan = p
		}
		return plan.ended()
	})
	if err != nil {
		err = errors.Join(fmt.Errorf("%w: it is %+v", err, plan), last)
	}
	return plan, err
}

// Slots waits until no plan is under way and the partitions' leaders tell of each slot who owns it.
func (c *Cluster) Slots(ctx context.Context) (slots Slots, err error) {
	var last error
	err = process.Await(ctx, "each slot has one owner", func() bool {
		var s *Status
		if s, last = c.Status(ctx); last != nil {
			return false
		}
		var ranges []Range
		for _, g := range s.Partitions {
			if g.Leader == "" {
				last = fmt.Errorf("%s has no leader", g.ID)
				return false
			}
			for _, r := range g.Ranges {
				r.Partition = g.ID
				ranges = append(ranges, r)
			}
		}
		slots, last = NewSlots(ranges)
		return last == nil
	})
	return slots, errors.Join(err, last)
}
