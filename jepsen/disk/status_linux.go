package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/quorate/quorate/jepsen/process"
)

// Status is what `cluster status -o json` tells, as far as it matters here.
type Status struct {
	Partitions []GroupState `json:"partitions"`
	Control    *GroupState  `json:"control"`
}

// GroupState is how the replicas of a partition, or of the control group, stand.
type GroupState struct {
	Leader   string         `json:"leader"`
	Replicas []ReplicaState `json:"replica_states"`
}

// replica is that of a node; the zero value when there is none.
func (g *GroupState) replica(node string) ReplicaState {
	for _, r := range g.Replicas {
		if r.Node == node {
			return r
		}
	}
	return ReplicaState{}
}

// groups are the control group and the one partition.
func (s *Status) groups() map[string]*GroupState {
	return map[string]*GroupState{"the control group": s.Control, "the partition": &s.Partitions[0]}
}

// ReplicaState is how far a replica is.
type ReplicaState struct {
	Node         string `json:"node"`
	Role         string `json:"role"`
	Reachable    bool   `json:"reachable"`
	AppliedIndex uint64 `json:"applied_index"`
	Digest       string `json:"digest"`
}

// Command runs a command of the binary against the cluster and returns what it printed.
func (c *Cluster) Command(ctx context.Context, args ...string) ([]byte, error) {
	var addrs []string
	for _, n := range c.Nodes {
		if n.Up() {
			addrs = append(addrs, n.GRPC)
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("no node is up")
	}
	return c.commandAt(ctx, addrs, args...)
}

// commandAt runs a command that may ask the nodes at the addresses.
func (c *Cluster) commandAt(ctx context.Context, addrs []string, args ...string) ([]byte, error) {
	return process.Run(ctx, c.options.Binary, append(args, "--addr", strings.Join(addrs, ","))...)
}

// Status asks for the cluster's status.
func (c *Cluster) Status(ctx context.Context) (Status, error) {
	var s Status
	out, err := c.Command(ctx, "cluster", "status", "-o", "json", "--timeout", "5s")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("cluster status: %w: %s", err, out)
	}
	if len(s.Partitions) != 1 || s.Control == nil {
		return s, fmt.Errorf("cluster status: expected the control group and one partition: %s", out)
	}
	return s, nil
}

// Leader waits until a node that is up leads the partition.
func (c *Cluster) Leader(ctx context.Context) (*Node, error) {
	return c.leader(ctx, func(s *Status) string { return s.Partitions[0].Leader })
}

// ControlLeader waits until a node that is up leads the control group.
func (c *Cluster) ControlLeader(ctx context.Context) (*Node, error) {
	return c.leader(ctx, func(s *Status) string { return s.Control.Leader })
}

func (c *Cluster) leader(ctx context.Context, of func(*Status) string) (leader *Node, err error) {
	err = process.Await(ctx, "a node leads", func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			return false
		}
		for _, n := range c.Nodes {
			if n.ID == of(&s) && n.Up() {
				leader = n
			}
		}
		return leader != nil
	})
	return leader, err
}

// AwaitVote waits until a node is a follower or leads in both groups: no learner any more.
func (c *Cluster) AwaitVote(ctx context.Context, n *Node) error {
	return process.Await(ctx, n.ID+" has its votes", func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			return false
		}
		for _, g := range s.groups() {
			r := g.replica(n.ID)
			if !r.Reachable || r.Role != "follower" && r.Role != "leader" {
				return false
			}
		}
		return true
	})
}

// AwaitAgreement waits until the nodes have applied the same index, in the partition and in the control group, and
// fails if their states differ there. While a load runs they hardly ever do, so it is to be stopped before.
func (c *Cluster) AwaitAgreement(ctx context.Context, nodes ...*Node) error {
	agreed := map[string]bool{}
	var differ error
	err := process.Await(ctx, "the replicas have applied the same index", func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			return false
		}
		for name, g := range s.groups() {
			same, err := g.agree(nodes)
			if err != nil {
				differ = fmt.Errorf("%s: %w", name, err)
			}
			agreed[name] = agreed[name] || same
		}
		return differ != nil || len(agreed) == 2 && agreed["the partition"] && agreed["the control group"]
	})
	return errors.Join(err, differ)
}

// agree reports whether the nodes' replicas have applied the same index; their states must then be the same.
func (g *GroupState) agree(nodes []*Node) (same bool, differ error) {
	first := g.replica(nodes[0].ID)
	same = first.Reachable && first.AppliedIndex > 0 && first.Digest != ""
	for _, n := range nodes[1:] {
		r := g.replica(n.ID)
		same = same && r.Reachable && r.AppliedIndex == first.AppliedIndex
		if same && r.Digest != first.Digest {
			differ = fmt.Errorf("at index %d the state of %s is %s, that of %s is %s",
				r.AppliedIndex, first.Node, first.Digest, r.Node, r.Digest)
		}
	}
	return same, differ
}

// Used is how much a principal has used of the load's class.
func (c *Cluster) Used(ctx context.Context, principal string) (int64, error) {
	out, err := c.Command(ctx, "peek", principal, class, "-o", "json", "--timeout", "10s")
	if err != nil {
		return 0, err
	}
	var v struct {
		Limits []struct {
			Used int64 `json:"used"`
		} `json:"limits"`
	}
	if err := json.Unmarshal(out, &v); err != nil || len(v.Limits) != 1 {
		return 0, errors.Join(err, fmt.Errorf("peek: expected one limit: %s", out))
	}
	return v.Limits[0].Used, nil
}
