package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc/client"
)

const (
	// devLook is between two looks whether the cluster is ready.
	devLook = 20 * time.Millisecond
	// devAskTimeout bounds one question to a node while the cluster comes up.
	devAskTimeout = 5 * time.Second
	// devVoters is how many replicas of a partition vote, with enough nodes.
	devVoters = 3
)

// bringUp makes the cluster, unless that was done before, and waits until it is whole.
func (c *devCluster) bringUp(ctx context.Context, f *devFlags, running *devRunning, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, devReadyTimeout)
	defer cancel()
	var sessions []*session
	defer func() {
		for _, s := range sessions {
			_ = s.Close() // nothing was left to say
		}
	}()
	for _, n := range c.nodes {
		made, err := client.New([]string{n.GRPC})
		if err != nil {
			return err
		}
		sessions = append(sessions, &session{made, devAskTimeout, stderr})
	}
	d := &devStart{devCluster: c, sessions: sessions, running: running}
	if err := d.until(ctx, d.answering); err != nil {
		return err
	}
	if err := d.make(ctx, f, stderr); err != nil {
		return err
	}
	return d.until(ctx, d.whole)
}

// devStart is a local cluster that comes up.
type devStart struct {
	*devCluster
	sessions []*session // with each node alone
	running  *devRunning
	waiting  string // for what, as it was last seen
}

// until looks until there is nothing to wait for any more.
func (d *devStart) until(ctx context.Context, look func(context.Context) (waiting string)) error {
	next := time.NewTicker(devLook)
	defer next.Stop()
	for {
		if d.waiting = look(ctx); d.waiting == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return d.late(ctx)
		case <-d.running.failed:
			return d.running.why()
		case <-next.C:
		}
	}
}

func (d *devStart) late(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return errors.New("interrupted before the cluster was ready")
	}
	return fmt.Errorf("the cluster is not ready after %s, it waits for %s: see the logs in %s",
		devReadyTimeout, d.waiting, d.dir)
}

// answering waits until each node answers, and is of this cluster: another one may have its ports.
func (d *devStart) answering(ctx context.Context) (waiting string) {
	for i, s := range d.sessions {
		if r, err := d.status(ctx, s); err != nil || r.GetClusterId() != d.nodes[i].ClusterID {
			return "an answer of node " + d.nodes[i].ID
		}
	}
	return ""
}

// status is the cluster as one node sees it. A node that does not run yet is asked again soon.
func (d *devStart) status(ctx context.Context, s *session) (*quoratev1.ClusterStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return s.ClusterStatus(ctx)
}

// make makes the cluster and puts its first policy in force, as far as that was not done before.
func (d *devStart) make(ctx context.Context, f *devFlags, stderr io.Writer) error {
	partitions := f.partitions
	if partitions == 0 {
		partitions = f.nodes
	}
	if err := d.try(ctx, "the cluster to be made", func() error { return d.form(ctx, uint32(partitions)) }); err != nil {
		return err
	}
	first := d.sessions[0]
	var p *policy.Policy
	return d.try(ctx, "its first policy", func() error {
		r, err := inForce(ctx, first)
		if err == nil && r == nil {
			if p == nil {
				if p, err = d.firstPolicy(f); err != nil {
					return err
				}
			}
			_, err = publish(ctx, first, p, &quoratev1.ApplyPolicyRequest{})
			if quotaerr.ReasonOf(err) != quotaerr.PolicyStale {
				return err
			}
			err = nil // the node did not know yet
		}
		if err == nil && d.found && f.policy != "" {
			fmt.Fprintf(stderr, "%s holds a cluster that has its policy already: --policy is not read\n", d.dir)
		}
		return err
	})
}

// form makes the cluster on the first node, unless it is made already. Where that was cut short, the node that
// leads the control group goes on with it.
func (d *devStart) form(ctx context.Context, partitions uint32) error {
	begun, leader := false, ""
	for _, s := range d.sessions {
		r, err := d.status(ctx, s)
		if err != nil {
			return err
		}
		if r.GetControl() == nil {
			continue // it has no map to tell either
		}
		if d.owned(ctx, s) {
			return nil
		}
		begun, leader = true, r.GetControl().GetLeader()
	}
	for i, s := range d.sessions {
		if d.nodes[i].ID == leader || !begun {
			_, err := makeCluster(ctx, s, &quoratev1.InitClusterRequest{Partitions: partitions})
			return err
		}
	}
	return quotaerr.New(quotaerr.NoQuorum, "nobody leads the control group")
}

// owned reports whether a node knows of an owner for every slot: then the cluster is made.
func (d *devStart) owned(ctx context.Context, s *session) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	slots := 0
	for m, err := range s.WatchConfig(ctx) {
		if err != nil {
			break
		}
		for _, r := range m.GetMap().GetRanges() {
			slots += int(r.GetSlots().GetLastSlot()) - int(r.GetSlots().GetFirstSlot()) + 1
		}
		break // what comes next are changes
	}
	return slots == fsm.NumSlots
}

// try does something until it succeeds, or fails in a way that waiting does not mend.
func (d *devStart) try(ctx context.Context, what string, do func() error) error {
	var last error
	err := d.until(ctx, func(context.Context) (waiting string) {
		if last = do(); last == nil || !retryable(last) {
			return ""
		}
		return fmt.Sprintf("%s (%v)", what, last)
	})
	if err == nil {
		err = last
	}
	return err
}

// firstPolicy is the one that --policy names, or that which was laid down when the directory was made.
func (d *devStart) firstPolicy(f *devFlags) (*policy.Policy, error) {
	file := f.policy
	if file == "" {
		file = filepath.Join(d.dir, devPolicyName)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parsePolicy(file, text)
}

// whole waits until every node is ready, and every partition has its voters and the policy.
func (d *devStart) whole(ctx context.Context) (waiting string) {
	for _, n := range d.nodes {
		if !saysReady(ctx, n.HTTP) {
			return "node " + n.ID + " to be ready"
		}
	}
	r, err := d.status(ctx, d.sessions[0])
	if err != nil {
		return "the cluster's status"
	}
	return viewOf(r).wanting()
}

// wanting is what a cluster that has just been started lacks still; empty when it is whole.
func (v clusterView) wanting() string {
	active := 0
	for _, n := range v.Nodes {
		if n.State == "" || n.State == nodeActive {
			active++
		}
	}
	switch {
	case v.Control == nil || v.Control.Leader == "":
		return "the control group to have a leader"
	case len(v.Control.voters()) < min(devVoters, active):
		return "the control group to have its voters"
	}
	slots := 0
	leads := map[string]int{}
	for _, p := range v.Partitions {
		switch {
		case p.Leader == "":
			return "partition " + p.ID + " to have a leader"
		case p.PolicyRevision == 0:
			return "partition " + p.ID + " to have the policy"
		case len(p.voters()) < min(devVoters, active) || len(p.learners()) > 0:
			return "partition " + p.ID + " to have its replicas"
		}
		leads[p.Leader]++
		for _, r := range p.Ranges {
			slots += int(r.LastSlot) - int(r.FirstSlot) + 1
		}
	}
	if slots != fsm.NumSlots {
		return "all slots to have an owner"
	}
	return v.leaderToMove(leads)
}

// leaderToMove is what is said while the leadership of a partition is about to move to a node that leads less:
// with each move partition time stands still for a moment, so the first waits would be too long.
func (v clusterView) leaderToMove(leads map[string]int) string {
	for _, p := range v.Partitions {
		for _, to := range p.voters() {
			if leads[p.Leader] >= leads[to]+2 {
				return "the leaders to be spread"
			}
		}
	}
	return ""
}

// saysReady reports whether a node's probe says that it is ready.
func saysReady(ctx context.Context, addr string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	return err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK
}
