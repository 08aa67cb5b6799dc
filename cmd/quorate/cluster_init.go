package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func newClusterInit(o *options) *cobra.Command {
	req, file := &quoratev1.InitClusterRequest{}, ""
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make the cluster, once",
		Long: `init makes the cluster of the running nodes that the node at --addr has in its list of whom to join. It is
asked of one node, the first of --addr. With --policy the policy is then put in force as revision 1; without, nothing
is decided until policy apply. A cluster that was made and has no policy yet gets it by init --policy as well.`,
		Example: "  quorate cluster init --addr 127.0.0.1:7070 --policy policy.yaml",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			addrs, err := o.addrs(cmd)
			if err != nil {
				return err
			}
			var p *policy.Policy
			if file != "" {
				if p, err = loadPolicy(cmd, file); err != nil {
					return err
				}
			}
			return o.withSessionOf(cmd, addrs[:1], func(ctx context.Context, s *session) error {
				v, err := initCluster(ctx, s, req, p)
				if err != nil {
					return err
				}
				return o.printInit(cmd, v)
			})
		},
	}
	cmd.Flags().Uint32Var(&req.Partitions, "partitions", 0,
		"how many it begins with, at most 128 (default: as many as nodes, at most 32)")
	cmd.Flags().StringVar(&file, "policy", "", "the policy to begin with (- is standard input)")
	addComment(cmd, &req.Comment)
	return cmd
}

// initView is a cluster that was made, as it is printed.
type initView struct {
	ClusterID  string         `json:"cluster_id"`
	Made       bool           `json:"made"` // false where it was there before
	Nodes      []string       `json:"nodes"`
	Partitions []string       `json:"partitions"`
	Policy     *publishedView `json:"policy"` // null without --policy
}

// initCluster makes the cluster and puts its first policy in force, if there is one. What of it was done before
// is not done again.
func initCluster(
	ctx context.Context, s *session, req *quoratev1.InitClusterRequest, p *policy.Policy,
) (*initView, error) {
	v, err := makeCluster(ctx, s, req)
	if err != nil {
		return nil, err
	}
	switch {
	case p == nil && !v.Made:
		return nil, fmt.Errorf("cluster %s is made already: `quorate cluster status` shows it", v.ClusterID)
	case p == nil:
		return v, nil
	}
	r, err := inForce(ctx, s)
	if err == nil && r != nil {
		return nil, fmt.Errorf("cluster %s has its policy already, revision %s: change it with `quorate policy apply`",
			v.ClusterID, revisionOf(r))
	}
	if err == nil {
		v.Policy, err = publish(ctx, s, p, &quoratev1.ApplyPolicyRequest{Comment: req.GetComment()})
	}
	if err != nil {
		return nil, fmt.Errorf("cluster %s is made, but its policy is not in force: %w; repeat it, or use "+
			"`quorate policy apply`", v.ClusterID, err)
	}
	v.Policy.Status = settle(ctx, s, v.Policy.Revision.Number)
	return v, nil
}

// makeCluster makes the cluster unless it is there. The node goes on where an earlier attempt was cut short.
func makeCluster(ctx context.Context, s *session, req *quoratev1.InitClusterRequest) (*initView, error) {
	r, err := call(ctx, s, s.InitCluster, req)
	switch quotaerr.ReasonOf(err) {
	case "":
		return &initView{
			ClusterID: r.GetClusterId(), Made: true, Nodes: append([]string{}, r.GetNodes()...),
			Partitions: append([]string{}, r.GetPartitions()...),
		}, nil
	case quotaerr.OutcomeUnknown:
		return nil, fmt.Errorf("%w: repeat it, it goes on where it was", err)
	case quotaerr.InvalidArgument:
		if v, again := madeCluster(ctx, s, req.GetPartitions()); again != nil || v != nil {
			return v, again
		}
	}
	return nil, err
}

// madeCluster is the cluster that the node has a part in; nil when it has none.
func madeCluster(ctx context.Context, s *session, partitions uint32) (*initView, error) {
	r, err := clusterStatus(ctx, s)
	if err != nil || r.GetControl() == nil {
		return nil, err
	}
	v := &initView{ClusterID: r.GetClusterId(), Nodes: []string{}, Partitions: []string{}}
	for _, n := range r.GetNodes() {
		v.Nodes = append(v.Nodes, n.GetId())
	}
	for _, p := range r.GetPartitions() {
		v.Partitions = append(v.Partitions, p.GetId())
	}
	slots := 0
	for _, p := range r.GetPartitions() {
		for _, o := range p.GetRanges() {
			slots += int(o.GetLastSlot()) - int(o.GetFirstSlot()) + 1
		}
	}
	if partitions != 0 && slots < fsm.NumSlots {
		return nil, quotaerr.New(quotaerr.NoQuorum, "cluster %s is made, and not all of its partitions answer yet: ask again",
			v.ClusterID)
	}
	if partitions != 0 && int(partitions) != len(v.Partitions) {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "cluster %s is made already, with %s: leave out --partitions",
			v.ClusterID, count(len(v.Partitions), "partition", "partitions"))
	}
	return v, nil
}

func (o *options) printInit(cmd *cobra.Command, v *initView) error {
	w := cmd.OutOrStdout()
	if o.output != outputTable {
		return o.output.print(w, v, nil)
	}
	verb := "made"
	if !v.Made {
		verb = "found"
	}
	fmt.Fprintf(w, "cluster %s is %s\nnodes: %s\npartitions: %s\n", v.ClusterID, verb,
		strings.Join(v.Nodes, " "), strings.Join(v.Partitions, " "))
	if v.Policy == nil {
		_, err := fmt.Fprintln(w, "next: quorate policy apply FILE; until then nothing is decided")
		return err
	}
	return o.printPublished(cmd, v.Policy)
}
