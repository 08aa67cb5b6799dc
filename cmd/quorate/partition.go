package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func newPartition(o *options) *cobra.Command {
	return newGroup("partition", "Look after the partitions",
		newPartitionList(o), newTransferLeader(o), newPartitionSplit(o), newPartitionMerge(o), newPartitionMove(o),
		newPartitionAbort(o), newPartitionRecover(o))
}

// partitionsView is the list of partitions as it is printed.
type partitionsView struct {
	Control    *partitionView  `json:"control"` // null before the cluster is made
	Partitions []partitionView `json:"partitions"`
	Plans      []planView      `json:"plans"` // the newest first; null where they are not known
}

func newPartitionList(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the partitions, who leads them, what they own, and what is moved",
		Long: `list shows the partitions, and the plans that move slots between them: those under way, and the last ones that
have ended. -o json and -o yaml have more of the latter.`,
		Args: usageArgs(cobra.NoArgs),
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
				out := partitionsView{Control: v.Control, Partitions: v.Partitions}
				plans, err := call(ctx, s, s.ListPlans, &quoratev1.ListPlansRequest{})
				if err == nil {
					out.Plans = plansOf(plans)
				} else {
					fmt.Fprintf(cmd.ErrOrStderr(), "the plans are not known: %v\n", plainText(err.Error()))
				}
				return o.printPartitions(cmd, v, out)
			})
		},
	}
}

func (o *options) printPartitions(cmd *cobra.Command, v clusterView, out partitionsView) error {
	w := cmd.OutOrStdout()
	err := o.output.print(w, out, func(t table.Writer) {
		t.AppendHeader(table.Row{"partition", "leader", "term", "voters", "learners", "slots", "policy", "applied"})
		for _, p := range v.groups() {
			t.AppendRow(table.Row{
				p.ID, dash(p.Leader), p.Term, shortList(p.voters()), shortList(p.learners()), slotsText(p.Ranges),
				p.policyText(), p.AppliedIndex,
			})
		}
	})
	if err != nil || o.output != outputTable || len(out.Plans) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	return o.output.print(w, nil, func(t table.Writer) { fillPlans(t, out.Plans) })
}

func newTransferLeader(o *options) *cobra.Command {
	req := &quoratev1.TransferLeaderRequest{}
	cmd := &cobra.Command{
		Use:   "transfer-leader PARTITION [NODE]",
		Short: "Hand the leadership of a partition to another replica",
		Long: `transfer-leader hands the leadership of PARTITION to its replica on NODE, or to whichever other is ready. The
control group is called control.`,
		Args: filledArgs(cobra.RangeArgs(1, 2)),
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
