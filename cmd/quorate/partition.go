package main

import (
	"context"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func newPartition(o *options) *cobra.Command {
	return newGroup("partition", "Look after the partitions", newPartitionList(o), newTransferLeader(o))
}

// partitionsView is the list of partitions as it is printed.
type partitionsView struct {
	Control    *partitionView  `json:"control"` // null before the cluster is made
	Partitions []partitionView `json:"partitions"`
}

func newPartitionList(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the partitions, who leads them, and what they own",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := clusterStatus(ctx, s)
				if err != nil {
					return err
				}
				v := viewOf(r)
				if v.Control == nil {
					return quotaerr.New(quotaerr.NoQuorum, "the node that was asked has no part in a cluster yet, or is "+
						"starting: `quorate cluster status` shows what it waits for; ask another node, or again")
				}
				return o.output.print(cmd.OutOrStdout(), partitionsView{v.Control, v.Partitions}, func(t table.Writer) {
					t.AppendHeader(table.Row{"partition", "leader", "term", "voters", "learners", "slots", "policy", "applied"})
					for _, p := range v.groups() {
						t.AppendRow(table.Row{
							p.ID, dash(p.Leader), p.Term, shortList(p.voters()), shortList(p.learners()), slotsText(p.Ranges),
							p.policyText(), p.AppliedIndex,
						})
					}
				})
			})
		},
	}
}

func newTransferLeader(o *options) *cobra.Command {
	req := &quoratev1.TransferLeaderRequest{}
	cmd := &cobra.Command{
		Use:   "transfer-leader PARTITION [NODE]",
		Short: "Hand the leadership of a partition to another replica",
		Long: `transfer-leader hands the leadership of PARTITION to its replica on NODE, or to whichever other is ready. The
control group is called control.`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Partition = args[0]
			if len(args) > 1 {
				req.Node = args[1]
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				if _, err := call(ctx, s, s.TransferLeader, req); err != nil {
					return err
				}
				return o.printChanged(cmd, changedView{Partition: req.Partition, Done: "handed over"},
					": quorate partition list shows who leads")
			})
		},
	}
	addComment(cmd, &req.Comment)
	return cmd
}
