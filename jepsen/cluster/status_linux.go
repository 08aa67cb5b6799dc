package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/quorate/quorate/jepsen/process"
)

// Status is what `cluster status -o json` tells, as far as it matters here.
type Status struct {
	Nodes      []NodeState  `json:"nodes"`
	Partitions []GroupState `json:"partitions"`
	Control    *GroupState  `json:"control"`
}

// NodeState is how a node stands.
type NodeState struct {
	ID        string `json:"id"`
	Reachable bool   `json:"reachable"`
	State     string `json:"state"`
}

// GroupState is how the replicas of a partition, or of the control group, stand.
type GroupState struct {
	ID       string         `json:"id"`
	Leader   string         `json:"leader"`
	Term     uint64         `json:"term"`
	Revision uint64         `json:"policy_revision"`
	Replicas []ReplicaState `json:"replica_states"`
	Ranges   []Range        `json:"ranges"`
}

// ReplicaState is how far a replica is.
type ReplicaState struct {
	Node         string `json:"node"`
	Role         string `json:"role"`
	Learner      bool   `json:"learner"`
	Reachable    bool   `json:"reachable"`
	Stopped      string `json:"stopped"`
	AppliedIndex uint64 `json:"applied_index"`
	Digest       string `json:"digest"`
}

// nodes are those with a replica.
func (g *GroupState) nodes() (nodes []string) {
	for _, r := range g.Replicas {
		nodes = append(nodes, r.Node)
	}
	return nodes
}

// wanting is why a partition is not whole: exactly so many voters and no learner, all there and in no way wrong.
func (g *GroupState) wanting(voters int) error {
	if g.Leader == "" {
		return fmt.Errorf("%s has no leader", g.ID)
	}
	for _, r := range g.Replicas {
		if !r.Reachable || r.Learner || r.Stopped != "" || r.Role != "leader" && r.Role != "follower" {
			return fmt.Errorf("the replica of %s on %s is not whole: %+v", g.ID, r.Node, r)
		}
	}
	if len(g.Replicas) != voters {
		return fmt.Errorf("%s has its replicas on %v, and not %d", g.ID, g.nodes(), voters)
	}
	return nil
}

// settled is why replicas cannot be said to be the same yet: they have not applied the same index. differ is not nil
// if they have, and are not the same.
func (g *GroupState) settled() (unsettled, differ error) {
	for _, r := range g.Replicas {
		if !r.Reachable || r.Digest == "" || r.AppliedIndex == 0 {
			return fmt.Errorf("the replica of %s on %s has not told what it has", g.ID, r.Node), nil
		}
	}
	for _, r := range g.Replicas {
		first := g.Replicas[0]
		switch {
		case r.AppliedIndex != first.AppliedIndex:
			unsettled = fmt.Errorf("%s has applied up to %d on %s, to %d on %s",
				g.ID, first.AppliedIndex, first.Node, r.AppliedIndex, r.Node)
		case r.Digest != first.Digest:
			differ = fmt.Errorf("%s differs at index %d: %s on %s, %s on %s",
				g.ID, r.AppliedIndex, first.Digest, first.Node, r.Digest, r.Node)
		}
	}
	return unsettled, differ
}

// groups are the control group and the partitions.
func (s *Status) groups() []*GroupState {
	groups := []*GroupState{s.Control}
	for i := range s.Partitions {
		groups = append(groups, &s.Partitions[i])
	}
	return groups
}

// Status asks for the cluster's status.
func (c *Cluster) Status(ctx context.Context) (*Status, error) {
	out, err := c.Command(ctx, "cluster", "status", "-o", "json")
	if err != nil {
		return nil, err
	}
	s := &Status{}
	if err := json.Unmarshal(out, s); err != nil {
		return nil, fmt.Errorf("cluster status: %w: %s", err, out)
	}
	if len(s.Partitions) != c.options.Partitions && !c.options.Moves || s.Control == nil {
		return nil, fmt.Errorf("cluster status: want the control group and %d partitions: %s", c.options.Partitions, out)
	}
	return s, nil
}

// AwaitWhole waits until each partition has so many voters and no other replica, and a policy.
func (c *Cluster) AwaitWhole(ctx context.Context, voters int) error {
	var last error
	err := process.Await(ctx, "the cluster is whole", func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			last = err
			return false
		}
		last = nil
		for i := range s.Partitions {
			g := &s.Partitions[i]
			if last == nil {
				last = g.wanting(voters)
			}
			if last == nil && g.Revision == 0 {
				last = fmt.Errorf("%s has no policy", g.ID)
			}
		}
		return last == nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

// AwaitAgreement waits until every group's replicas have been seen with the same index applied, and fails if their
// states differ there. While a load runs that hardly ever happens.
func (c *Cluster) AwaitAgreement(ctx context.Context) error {
	agreed := map[string]bool{}
	var last, differs error
	err := process.Await(ctx, "all replicas have applied the same", func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			last = err
			return false
		}
		all := true
		for _, g := range s.groups() {
			unsettled, differ := g.settled()
			if differ != nil {
				differs = differ
			}
			if unsettled != nil {
				last = unsettled
			} else {
				agreed[g.ID] = true
			}
			all = all && agreed[g.ID]
		}
		return differs != nil || all
	})
	if err != nil {
		err = fmt.Errorf("%w: %w", err, last)
	}
	return errors.Join(differs, err)
}

// Leader waits until a node that is up and not paused leads a group: a partition's id, or "control".
func (c *Cluster) Leader(ctx context.Context, group string) (leader *Node, err error) {
	err = process.Await(ctx, "a node leads "+group, func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			return false
		}
		i := slices.IndexFunc(s.groups(), func(g *GroupState) bool { return g.ID == group })
		if i < 0 {
			return false
		}
		leader = c.Node(s.groups()[i].Leader)
		return leader != nil && leader.Up() && !leader.Paused()
	})
	return leader, err
}
