package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

// NodeInfo is what `node list -o json` tells of a node.
type NodeInfo struct {
	ID         string   `json:"id"`
	State      string   `json:"state"`
	Partitions []string `json:"partitions"`
	Control    string   `json:"control"`
}

// ListNodes asks which nodes there are.
func (c *Cluster) ListNodes(ctx context.Context) (map[string]NodeInfo, error) {
	out, err := c.Command(ctx, "node", "list", "-o", "json")
	if err != nil {
		return nil, err
	}
	var v struct {
		Nodes []NodeInfo `json:"nodes"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return nil, fmt.Errorf("node list: %w: %s", err, out)
	}
	nodes := map[string]NodeInfo{}
	for _, n := range v.Nodes {
		nodes[n.ID] = n
	}
	return nodes, nil
}

// AwaitNode waits until a node is listed in a way.
func (c *Cluster) AwaitNode(ctx context.Context, id, what string, is func(NodeInfo) bool) error {
	var last NodeInfo
	var lastErr error
	err := process.Await(ctx, id+" "+what, func() bool {
		nodes, err := c.ListNodes(ctx)
		if lastErr = err; err != nil {
			return false
		}
		last = nodes[id]
		return is(last)
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%w: it is %+v", err, last), lastErr)
	}
	return nil
}

// Policies puts policies in force and keeps which there were, for a History.
type Policies struct {
	cluster   *Cluster
	clock     func() time.Duration
	revisions []history.Revision
	// Unknown are the commands that did not know whether they had made a revision.
	Unknown []string
}

// NewPolicies begins with the policy that the cluster was made with.
func NewPolicies(c *Cluster, clock func() time.Duration) *Policies {
	return &Policies{cluster: c, clock: clock, revisions: []history.Revision{
		{Number: 1, Policy: c.options.Policy, Began: -time.Hour, Active: clock()},
	}}
}

// Present is the newest.
func (p *Policies) Present() history.Policy { return p.revisions[len(p.revisions)-1].Policy.Clone() }

// Revisions are those that there have been, for a History.
func (p *Policies) Revisions() []history.Revision { return slices.Clone(p.revisions) }

// Apply puts a policy in force and waits until nobody decides under an older one.
func (p *Policies) Apply(ctx context.Context, next history.Policy) error {
	file, err := p.cluster.policyFile(next)
	if err != nil {
		return err
	}
	return p.publish(ctx, next, "policy", "apply", file)
}

// Rollback puts the policy of a revision in force again, and waits.
func (p *Policies) Rollback(ctx context.Context, to uint64) error {
	return p.publish(ctx, p.revisions[to-1].Policy.Clone(), "policy", "rollback", fmt.Sprint(to))
}

// Switch disables or enables a class, and waits.
func (p *Policies) Switch(ctx context.Context, class string, disabled bool) error {
	next := p.Present()
	c := next.Classes[class]
	c.Disabled = disabled
	next.Classes[class] = c
	verb := "enable"
	if disabled {
		verb = "disable"
	}
	return p.publish(ctx, next, "class", verb, class)
}

// retryPublish is between two tries of a command that found nobody to do it.
const retryPublish = 500 * time.Millisecond

// unavailable reports whether a command ended with status 4: nobody could do it, or it is not known whether it was.
func unavailable(err error) bool { return err != nil && strings.Contains(err.Error(), "exit status 4") }

// publish runs a command that makes a revision. When it was not answered, or does not know whether it has made one, the
// list of revisions tells, as people are told to look; if it has not, it is run again, until ctx ends.
func (p *Policies) publish(ctx context.Context, next history.Policy, args ...string) error {
	number := uint64(len(p.revisions) + 1)
	began := p.clock()
	out, err := p.cluster.Command(ctx, append(args, "--wait", "-o", "json")...)
	for unavailable(err) && ctx.Err() == nil {
		p.Unknown = append(p.Unknown, fmt.Sprintf("after %v: %v", p.clock()-began, args))
		<-time.After(retryPublish)
		newest, version, looked := p.newest(ctx)
		if err = looked; err != nil {
			continue
		}
		if next.Version = version; newest == number {
			if err := p.awaitActive(ctx, number); err != nil {
				return err
			}
			p.revisions = append(p.revisions, history.Revision{Number: number, Policy: next, Began: began, Active: p.clock()})
			return nil
		}
		out, err = p.cluster.Command(ctx, append(args, "--wait", "-o", "json")...)
	}
	active := p.clock()
	if err != nil {
		return err
	}
	var v struct {
		Revision revisionName `json:"revision"`
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	if v.Revision.Number == number-1 && args[0] == "class" {
		if next.Classes[args[2]].Disabled == p.Present().Classes[args[2]].Disabled {
			return nil // it was so already, and makes no revision
		}
	}
	if v.Revision.Number != number {
		return fmt.Errorf("%v made revision %d, want %d: %s", args, v.Revision.Number, number, out)
	}
	next.Version = v.Revision.Version
	p.revisions = append(p.revisions, history.Revision{Number: number, Policy: next, Began: began, Active: active})
	return nil
}

// revisionName is how commands print a revision.
type revisionName struct {
	Number  uint64 `json:"number"`
	Version string `json:"version"`
}

// newest is the newest revision that there is.
func (p *Policies) newest(ctx context.Context) (number uint64, version string, err error) {
	out, err := p.cluster.Command(ctx, "policy", "list", "-o", "json")
	if err != nil {
		return 0, "", err
	}
	var v struct {
		Revisions []revisionName `json:"revisions"`
	}
	if err := json.Unmarshal(out, &v); err != nil || len(v.Revisions) == 0 {
		return 0, "", fmt.Errorf("policy list: %w: %s", err, out)
	}
	return v.Revisions[0].Number, v.Revisions[0].Version, nil
}

// awaitActive waits until nobody decides under an older revision.
func (p *Policies) awaitActive(ctx context.Context, number uint64) error {
	return process.Await(ctx, fmt.Sprintf("revision %d is active everywhere", number), func() bool {
		out, err := p.cluster.Command(ctx, "policy", "status", fmt.Sprint(number), "-o", "json")
		var v struct {
			Active bool `json:"active_everywhere"`
		}
		return err == nil && json.Unmarshal(out, &v) == nil && v.Active
	})
}
