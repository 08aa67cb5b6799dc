package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

func newCluster(o *options) *cobra.Command {
	return newGroup("cluster", "Make and show the cluster", newClusterInit(o), newClusterStatus(o))
}

func newClusterStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show nodes, partitions and who leads",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := clusterStatus(ctx, s)
				if err != nil {
					return err
				}
				return o.printStatus(cmd, viewOf(r))
			})
		},
	}
}

func clusterStatus(ctx context.Context, s *session) (*quoratev1.ClusterStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.ClusterStatus(ctx)
}

// clusterView is a cluster's status as it is printed.
type clusterView struct {
	ClusterID  string          `json:"cluster_id"`
	Nodes      []nodeView      `json:"nodes"`
	Partitions []partitionView `json:"partitions"`
	Control    *partitionView  `json:"control"` // null before the cluster is made
}

type nodeView struct {
	ID        string `json:"id"`
	GRPC      string `json:"grpc"`
	HTTP      string `json:"http"`
	Raft      string `json:"raft"`
	Reachable bool   `json:"reachable"`
	Version   string `json:"version"`
	Waiting   string `json:"waiting"` // for what, before it has its replicas
	Zone      string `json:"zone"`
	State     string `json:"state"` // active or draining
}

// partitionView is a partition, or the control group, as its leader sees it; without one, as the replica that has
// applied most.
type partitionView struct {
	ID             string        `json:"id"`
	Leader         string        `json:"leader"`
	Term           uint64        `json:"term"`
	Replicas       []string      `json:"replicas"`
	Ranges         []rangeView   `json:"ranges"`
	PolicyRevision uint64        `json:"policy_revision"`
	PolicyVersion  string        `json:"policy_version"`
	AppliedIndex   uint64        `json:"applied_index"`
	Digest         string        `json:"digest"`
	ReplicaStates  []replicaView `json:"replica_states"`
}

type rangeView struct {
	FirstSlot uint32 `json:"first_slot"`
	LastSlot  uint32 `json:"last_slot"`
	Epoch     uint64 `json:"epoch"`
}

type replicaView struct {
	Node         string `json:"node"`
	Role         string `json:"role"`
	Reachable    bool   `json:"reachable"`
	AppliedIndex uint64 `json:"applied_index"`
	Digest       string `json:"digest"`
	Learner      bool   `json:"learner"`
	Stopped      string `json:"stopped"` // why it has stopped for good
	FeatureLevel uint32 `json:"feature_level"`
	DiskLow      bool   `json:"disk_low"`
	Instance     string `json:"instance"` // of its data directory
}

func viewOf(s *quoratev1.ClusterStatusResponse) clusterView {
	v := clusterView{ClusterID: s.GetClusterId(), Nodes: []nodeView{}, Partitions: []partitionView{}}
	for _, n := range s.GetNodes() {
		v.Nodes = append(v.Nodes, nodeView{
			ID: n.GetId(), GRPC: n.GetGrpc(), HTTP: n.GetHttp(), Raft: n.GetRaft(), Reachable: n.GetReachable(),
			Version: n.GetVersion(), Waiting: n.GetWaiting(), Zone: n.GetZone(), State: n.GetState(),
		})
	}
	for _, p := range s.GetPartitions() {
		v.Partitions = append(v.Partitions, partitionOf(p))
	}
	if s.GetControl() != nil {
		control := partitionOf(s.GetControl())
		v.Control = &control
	}
	return v
}

func partitionOf(p *quoratev1.Partition) partitionView {
	v := partitionView{
		ID: p.GetId(), Leader: p.GetLeader(), Term: p.GetTerm(), Replicas: append([]string{}, p.GetReplicas()...),
		Ranges: []rangeView{}, PolicyRevision: p.GetPolicyRevision(), PolicyVersion: p.GetPolicyVersion(),
		AppliedIndex: p.GetAppliedIndex(), Digest: p.GetDigest(), ReplicaStates: []replicaView{},
	}
	for _, r := range p.GetRanges() {
		v.Ranges = append(v.Ranges, rangeView{r.GetFirstSlot(), r.GetLastSlot(), r.GetEpoch()})
	}
	for _, r := range p.GetReplicaStates() {
		v.ReplicaStates = append(v.ReplicaStates, replicaView{
			Node: r.GetNode(), Role: roleText(r), Reachable: r.GetReachable(), AppliedIndex: r.GetAppliedIndex(),
			Digest: r.GetDigest(), Learner: r.GetLearner(), Stopped: r.GetStopped(), FeatureLevel: r.GetFeatureLevel(),
			DiskLow: r.GetDiskLow(), Instance: r.GetInstance(),
		})
	}
	return v
}

// unmade reports that the nodes wait for a cluster to be made.
func (v clusterView) unmade() bool {
	return v.Control == nil && slices.ContainsFunc(v.Nodes, func(n nodeView) bool {
		return strings.Contains(n.Waiting, "quorate cluster init")
	})
}

// groups are the control group, once it is there, and the partitions.
func (v clusterView) groups() []partitionView {
	if v.Control == nil {
		return v.Partitions
	}
	return append([]partitionView{*v.Control}, v.Partitions...)
}

// voters are the nodes whose replicas vote, learners those whose replicas do not yet.
func (p partitionView) voters() []string   { return p.nodes(false) }
func (p partitionView) learners() []string { return p.nodes(true) }

func (p partitionView) nodes(learner bool) (out []string) {
	for _, r := range p.ReplicaStates {
		if r.Learner == learner {
			out = append(out, r.Node)
		}
	}
	return out
}

// policyText is the policy in force in a partition; a dash before there is one, and for the control group.
func (p partitionView) policyText() string {
	if p.PolicyRevision == 0 {
		return "-"
	}
	return fmt.Sprintf("%s (%d)", p.PolicyVersion, p.PolicyRevision)
}

// roleText is a replica's role in a word. A node that does not answer cannot say it.
func roleText(r *quoratev1.ReplicaState) string {
	if !r.GetReachable() {
		return "unreachable"
	}
	return strings.ToLower(strings.TrimPrefix(r.GetRole().String(), "ROLE_"))
}

// notes is what is out of the ordinary about a replica.
func (r replicaView) notes() string {
	var words []string
	if r.Learner && r.Role != "learner" {
		words = append(words, "learner")
	}
	if r.DiskLow {
		words = append(words, "disk low")
	}
	if r.Stopped != "" {
		words = append(words, r.Stopped)
	}
	return dash(strings.Join(words, "; "))
}

// short is enough of an instance to tell it from others.
func (r replicaView) short() string {
	first, _, _ := strings.Cut(r.Instance, "-")
	return dash(first)
}

func (o *options) printStatus(cmd *cobra.Command, v clusterView) error {
	w := cmd.OutOrStdout()
	err := o.output.print(w, v, func(t table.Writer) {
		t.AppendHeader(table.Row{"node", "state", "zone", "grpc", "http", "raft", "reachable", "version", "waiting"})
		for _, n := range v.Nodes {
			t.AppendRow(table.Row{
				n.ID, dash(n.State), dash(n.Zone), n.GRPC, n.HTTP, n.Raft, n.Reachable, dash(n.Version), dash(n.Waiting),
			})
		}
	})
	if err != nil || o.output != outputTable {
		return err
	}
	if v.unmade() {
		_, err := fmt.Fprintln(w, "\nnext, on one node and once: quorate cluster init, or quorate snapshot restore FILE to "+
			"make it of a backup")
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return o.output.print(w, nil, func(t table.Writer) {
		t.AppendHeader(table.Row{
			"partition", "slots", "policy", "replica", "instance", "role", "applied", "digest", "level", "notes",
		})
		for _, p := range v.groups() {
			for _, r := range p.ReplicaStates {
				t.AppendRow(table.Row{
					p.ID, slotsText(p.Ranges), p.policyText(), r.Node, r.short(), r.Role, r.AppliedIndex, dash(r.Digest),
					r.FeatureLevel, r.notes(),
				})
			}
		}
	})
}

// slotsText writes ranges of slots with their ownership epochs, as the cluster's incarnation and a counter.
func slotsText(ranges []rangeView) string {
	words := make([]string, len(ranges))
	for i, r := range ranges {
		words[i] = fmt.Sprintf("%d-%d@%d.%d", r.FirstSlot, r.LastSlot, r.Epoch>>32, uint32(r.Epoch))
	}
	return dash(strings.Join(words, " "))
}
