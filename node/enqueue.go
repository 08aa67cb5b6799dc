package node

import (
	"context"
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/rpc"
)

var _ rpc.Queuer = (*backend)(nil)

// together are those of many checks whose partition is one.
type together struct {
	partition *partition.Partition // this node's replica; nil when it has none, or the partition is not known
	indexes   []int                // in their order
	queued    *partition.Enqueued  // once they are
}

// byPartition puts checks together by the partitions of their principals, of which there are few.
func (b *backend) byPartition(asked []rpc.Asked) []together {
	n := (*Node)(b)
	var out []together
	var ids []string
next:
	for i := range asked {
		id := n.routes.PartitionOf(asked[i].Check.Principal)
		for k := range ids {
			if ids[k] == id {
				out[k].indexes = append(out[k].indexes, i)
				continue next
			}
		}
		rest := len(asked) - i
		if i > 0 { // it is one of several
			rest = 1 + rest/4
		}
		t := together{indexes: make([]int, 0, rest)}
		if r := n.hosted.of(id); id != "" && r != nil {
			t.partition = r.partition.Load()
		}
		t.indexes = append(t.indexes, i)
		ids, out = append(ids, id), append(out, t)
	}
	return out
}

// Leaders is Leader of many.
func (b *backend) Leaders(asked []rpc.Asked) []rpc.Leadership {
	out := make([]rpc.Leadership, len(asked))
	for _, t := range b.byPartition(asked) {
		if t.partition == nil {
			for _, i := range t.indexes {
				out[i] = b.Leader(asked[i].Check.Principal)
			}
			continue
		}
		of, epochs := make([]string, len(t.indexes)), make([]fsm.Epoch, len(t.indexes))
		for k, i := range t.indexes {
			of[k] = asked[i].Check.Principal
		}
		leader, leading, changed := t.partition.Roles(of, epochs)
		for k, i := range t.indexes {
			if leader == "" || epochs[k] == 0 {
				out[i] = b.Leader(of[k]) // who also looks at what others say
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
	all := b.byPartition(asked)
	for n := range all {
		t := &all[n]
		if t.partition == nil {
			done(b.notHere(asked, t.indexes))
			continue
		}
		of := make([]partition.Asked, len(t.indexes))
		for k, i := range t.indexes {
			of[k] = partition.Asked(asked[i])
		}
		t.queued = t.partition.Enqueue(ctx, of, func(came []partition.Outcome) {
			outcomes := make([]rpc.Outcome, len(came))
			for k := range came {
				o := &came[k]
				outcomes[k] = rpc.Outcome{Index: t.indexes[o.Index], Answer: (*rpc.Answer)(&o.Answer), Err: o.Err}
			}
			done(outcomes)
		})
	}
	return func(index int, cause error) {
		for n := range all {
			if k, found := slices.BinarySearch(all[n].indexes, index); found && all[n].queued != nil {
				all[n].queued.GiveUp(k, cause)
			}
		}
	}
}

// notHere are the outcomes of checks of a partition of which this node has no replica.
func (b *backend) notHere(asked []rpc.Asked, indexes []int) []rpc.Outcome {
	outcomes := make([]rpc.Outcome, 0, len(indexes))
	for _, i := range indexes {
		route, _, err := (*Node)(b).route(asked[i].Check.Principal)
		if err == nil {
			err = (*Node)(b).elsewhere(route)
		}
		outcomes = append(outcomes, rpc.Outcome{Index: i, Err: err})
	}
	return outcomes
}
