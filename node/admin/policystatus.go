package admin

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/control/state"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/rpc"
)

const (
	// partitionWithin bounds the wait for one partition's leader, allPartitionsWithin for all of them, maxAsked how
	// many are asked at one time.
	partitionWithin     = time.Second
	allPartitionsWithin = 4 * time.Second
	maxAsked            = 64
	// maxCarriedTold bounds the carried rules in one answer.
	maxCarriedTold = 2000
)

// PolicyStatus tells how far a revision has come.
func (a *Admin) PolicyStatus(
	ctx context.Context, _ rpc.Actor, req *quoratev1.PolicyStatusRequest,
) (*quoratev1.PolicyStatusResponse, error) {
	c, s, _, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	r, err := revisionOr(s, req.GetRevision())
	if err != nil {
		return nil, err
	}
	out := &quoratev1.PolicyStatusResponse{
		Revision: revisionOf(r), InForce: uint64(s.RevisionNumber()), Partitions: a.askPartitions(ctx, s),
	}
	active := c.Active(r.Number)
	out.ActiveEverywhere = active.Everywhere
	if !active.Everywhere {
		out.ActiveIn = durationpb.New(time.Duration(active.InNanos))
	}
	return out, nil
}

// askPartitions asks the leaders of all partitions, as many as answer in time.
func (a *Admin) askPartitions(ctx context.Context, s *state.State) []*quoratev1.PartitionPolicy {
	ctx, cancel := context.WithTimeout(ctx, allPartitionsWithin)
	defer cancel()
	out := make([]*quoratev1.PartitionPolicy, len(s.Partitions))
	slots := make(chan struct{}, maxAsked)
	var wg sync.WaitGroup
	for i, p := range s.Partitions {
		out[i] = &quoratev1.PartitionPolicy{Partition: p.ID.String(), Installed: uint64(p.Installed)}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			a.askPartition(ctx, out[i])
		})
	}
	wg.Wait()
	told := 0
	for _, p := range out {
		p.Carried = p.Carried[:min(len(p.Carried), maxCarriedTold-told)]
		told += len(p.Carried)
	}
	return out
}

// askPartition fills in what the partition's leader says.
func (a *Admin) askPartition(ctx context.Context, p *quoratev1.PartitionPolicy) {
	ctx, cancel := context.WithTimeout(ctx, partitionWithin)
	defer cancel()
	answer, err := a.cluster.PartitionPolicy(ctx, p.GetPartition())
	if err != nil {
		return // that it was not reached is what the answer says
	}
	p.Installed = max(p.Installed, answer.GetInstalled())
	p.Carried, p.Reachable = answer.GetCarried(), true
}
