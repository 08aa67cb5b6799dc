package run

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
)

// maxPartitions bounds what is split; above it partitions are merged.
const maxPartitions = 6

// An operator's act may be refused beside other faults: then it was not in effect, and the run goes on.

// partitions are the ids of those that have slots, and who has replicas of them.
func (d *drawn) partitions(ctx context.Context) (ids []string, of map[string]*cluster.GroupState) {
	s, err := d.run.cluster.Status(ctx)
	if err != nil {
		return nil, nil
	}
	of = map[string]*cluster.GroupState{}
	for i := range s.Partitions {
		if g := &s.Partitions[i]; len(g.Ranges) > 0 {
			ids = append(ids, g.ID)
			of[g.ID] = g
		}
	}
	return ids, of
}

func (d *drawn) transfer(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, operateWithin)
	defer cancel()
	ids, of := d.partitions(ctx)
	ids = slices.DeleteFunc(ids, func(id string) bool {
		return of[id].Leader == n.ID ||
			!slices.ContainsFunc(of[id].Replicas, func(s cluster.ReplicaState) bool { return s.Node == n.ID && !s.Learner })
	})
	if len(ids) == 0 {
		return d.transferAway(ctx, n), nil
	}
	_, err := d.run.cluster.Command(ctx, "partition", "transfer-leader", ids[r.IntN(len(ids))], n.ID)
	return err == nil, nil
}

// transferAway hands a partition that a node leads to another one.
func (d *drawn) transferAway(ctx context.Context, n *cluster.Node) bool {
	ids, of := d.partitions(ctx)
	for _, id := range ids {
		for _, s := range of[id].Replicas {
			if of[id].Leader == n.ID && s.Node != n.ID && !s.Learner && s.Reachable {
				_, err := d.run.cluster.Command(ctx, "partition", "transfer-leader", id, s.Node)
				return err == nil
			}
		}
	}
	return false
}

// plan begins a plan and waits until it has ended.
func (d *drawn) plan(ctx context.Context, args ...string) (bool, error) {
	began := d.run.now()
	id, err := d.run.cluster.StartPlan(ctx, args...)
	if err != nil {
		return false, nil //nolint:nilerr // refused, or not heard of
	}
	plan, err := d.run.cluster.AwaitPlan(ctx, id)
	what := "not known"
	switch {
	case err != nil:
	case plan.Done():
		what = "done"
	default:
		what = "undone"
	}
	return what == "done", d.run.recorder.Event(&history.Event{
		At: began, Until: d.run.now(), Kind: "plan", What: what, Value: id, Text: fmt.Sprint(args),
	})
}

func (d *drawn) split(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, operateWithin)
	defer cancel()
	ids, _ := d.partitions(ctx)
	if len(ids) >= maxPartitions {
		return d.merge(ctx, n, r)
	}
	if len(ids) == 0 {
		return false, nil
	}
	return d.plan(ctx, "split", ids[r.IntN(len(ids))])
}

func (d *drawn) merge(ctx context.Context, _ *cluster.Node, r *rand.Rand) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, operateWithin)
	defer cancel()
	ids, _ := d.partitions(ctx)
	if len(ids) < 3 {
		return false, nil
	}
	k := r.Perm(len(ids))
	return d.plan(ctx, "merge", ids[k[0]], ids[k[1]])
}

func (d *drawn) move(ctx context.Context, _ *cluster.Node, r *rand.Rand) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, operateWithin)
	defer cancel()
	ids, of := d.partitions(ctx)
	if len(ids) < 2 {
		return false, nil
	}
	k := r.Perm(len(ids))
	slots := of[ids[k[0]]].Ranges[0]
	if slots.Last-slots.First < 2 {
		return false, nil
	}
	half := slots.First + (slots.Last-slots.First)/2
	return d.plan(ctx, "move", ids[k[0]], fmt.Sprintf("%d-%d", slots.First, half), ids[k[1]])
}

func (d *drawn) tighten(ctx context.Context, _ *cluster.Node, r *rand.Rand) (bool, error) {
	return d.publish(ctx, r, func(n int64) int64 { return max(1, n/(2+r.Int64N(3))) })
}

func (d *drawn) loosen(ctx context.Context, _ *cluster.Node, r *rand.Rand) (bool, error) {
	return d.publish(ctx, r, func(n int64) int64 { return n + r.Int64N(n/2+1) })
}

// publish changes the limits of one class, drawn from what it had at first.
func (d *drawn) publish(ctx context.Context, r *rand.Rand, change func(int64) int64) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, operateWithin)
	defer cancel()
	next := d.run.policies.Present()
	var names []string
	for name := range next.Classes {
		names = append(names, name)
	}
	slices.Sort(names)
	name := names[r.IntN(len(names))]
	class := next.Classes[name]
	class.Limits = slices.Clone(d.base.Classes[name].Limits)
	for i := range class.Limits {
		class.Limits[i].Max = change(class.Limits[i].Max)
	}
	next.Classes[name] = class
	next.Version = fmt.Sprintf("chaos-%d-%s", d.run.policies.Number()+1, name)
	return d.run.policies.Apply(ctx, next) == nil, nil
}
