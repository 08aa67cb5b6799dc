package node

import (
	"context"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/rpc"
)

var _ rpc.Queuer = (*backend)(nil)

// together are those of many principals whose partition is one.
type together struct {
	partition *partition.Partition // this node's replica; nil when it has none, or the partition is not known
	indexes   []int
}

// byPartition puts principals together by their partitions, of which there are few.
func (b *backend) byPartition(count int, principal func(i int) string) []together {
	n := (*Node)(b)
	var out []together
	var ids []string
next:
	for i := range count {
		id := n.routes.PartitionOf(principal(i))
		for k := range ids {
			if ids[k] == id {
				out[k].indexes = append(out[k].indexes, i)
				continue next
			}
		}
		t := together{indexes: make([]int, 0, count-i)}
		if r := n.hosted.of(id); id != "" && r != nil {
			t.partition = r.partition.Load()
		}
		t.indexes = append(t.indexes, i)
		ids, out = append(ids, id), append(out, t)
	}
	return out
}

// Leaders is Leader of many.
func (b *backend) Leaders(principals []string) []rpc.Leadership {
	out := make([]rpc.Leadership, len(principals))
	for _, t := range b.byPartition(len(principals), func(i int) string { return principals[i] }) {
		if t.partition == nil {
			for _, i := range t.indexes {
				out[i] = b.Leader(principals[i])
			}
			continue
		}
		of, epochs := principals, make([]fsm.Epoch, len(t.indexes))
		if len(t.indexes) < len(principals) {
			of = make([]string, len(t.indexes))
			for k, i := range t.indexes {
				of[k] = principals[i]
			}
		}
		leader, leading, changed := t.partition.Roles(of, epochs)
		for k, i := range t.indexes {
			if leader == "" || epochs[k] == 0 {
				out[i] = b.Leader(principals[i]) // who also looks at what others say
				continue
			}
			out[i] = rpc.Leadership{Node: leader, Local: leading, Epoch: epochs[k], Changed: changed}
		}
	}
	return out
}

// Enqueue has many checks decided.
func (b *backend) Enqueue(
	ctx context.Context, asked []rpc.Asked, done func([]rpc.Outcome),
) (giveUp func(index int, cause error)) {
	type place struct {
		queued *partition.Enqueued
		index  int
	}
	places := make([]place, len(asked))
	for _, t := range b.byPartition(len(asked), func(i int) string { return asked[i].Check.Principal }) {
		if t.partition == nil {
			outcomes := make([]rpc.Outcome, 0, len(t.indexes))
			for _, i := range t.indexes {
				route, _, err := (*Node)(b).route(asked[i].Check.Principal)
				if err == nil {
					err = (*Node)(b).elsewhere(route)
				}
				outcomes = append(outcomes, rpc.Outcome{Index: i, Err: err})
			}
			done(outcomes)
			continue
		}
		of := make([]partition.Asked, len(t.indexes))
		for k, i := range t.indexes {
			of[k] = partition.Asked(asked[i])
		}
		queued := t.partition.Enqueue(ctx, of, func(came []partition.Outcome) {
			outcomes := make([]rpc.Outcome, len(came))
			for k := range came {
				o := &came[k]
				outcomes[k] = rpc.Outcome{Index: t.indexes[o.Index], Answer: rpc.Answer(o.Answer), Err: o.Err}
			}
			done(outcomes)
		})
		for k, i := range t.indexes {
			places[i] = place{queued, k}
		}
	}
	return func(index int, cause error) {
		if p := places[index]; p.queued != nil {
			p.queued.GiveUp(p.index, cause)
		}
	}
}
