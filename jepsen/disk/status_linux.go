package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Status is what `cluster status -o json` tells, as far as it matters here.
type Status struct {
	Partitions []struct {
		Leader   string         `json:"leader"`
		Replicas []ReplicaState `json:"replica_states"`
	} `json:"partitions"`
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
	args = append(args, "--addr", strings.Join(addrs, ","))
	out, err := exec.CommandContext(ctx, c.options.Binary, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("quorate %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return out, err
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
	if len(s.Partitions) != 1 {
		return s, fmt.Errorf("cluster status: %d partitions, expected one: %s", len(s.Partitions), out)
	}
	return s, nil
}

// Leader waits until a node that is up leads.
func (c *Cluster) Leader(ctx context.Context) (leader *Node, err error) {
	err = await(ctx, "a node leads", func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			return false
		}
		for _, n := range c.Nodes {
			if n.ID == s.Partitions[0].Leader && n.Up() {
				leader = n
			}
		}
		return leader != nil
	})
	return leader, err
}

// AwaitVote waits until a node is a follower or leads: no learner any more.
func (c *Cluster) AwaitVote(ctx context.Context, n *Node) error {
	return await(ctx, n.ID+" has a vote", func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			return false
		}
		for _, r := range s.Partitions[0].Replicas {
			if r.Node == n.ID && r.Reachable {
				return r.Role == "follower" || r.Role == "leader"
			}
		}
		return false
	})
}

// AwaitAgreement waits until the nodes have applied the same index, and fails if their states differ there. While
// a load runs they hardly ever do, so it is to be stopped before.
func (c *Cluster) AwaitAgreement(ctx context.Context, nodes ...*Node) error {
	var differ error
	err := await(ctx, "the replicas have applied the same index", func() bool {
		s, err := c.Status(ctx)
		if err != nil {
			return false
		}
		byNode := map[string]ReplicaState{}
		for _, r := range s.Partitions[0].Replicas {
			byNode[r.Node] = r
		}
		first := byNode[nodes[0].ID]
		same := first.Reachable && first.AppliedIndex > 0 && first.Digest != ""
		for _, n := range nodes[1:] {
			r := byNode[n.ID]
			same = same && r.Reachable && r.AppliedIndex == first.AppliedIndex
			if same && r.Digest != first.Digest {
				differ = fmt.Errorf("at index %d the state of %s is %s, that of %s is %s",
					r.AppliedIndex, first.Node, first.Digest, r.Node, r.Digest)
			}
		}
		return same || differ != nil
	})
	return errors.Join(err, differ)
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
