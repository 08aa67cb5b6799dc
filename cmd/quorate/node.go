package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

func newNode(o *options) *cobra.Command {
	return newGroup("node", "Look after the nodes",
		newNodeList(o), newNodeAdd(o), newNodeDrain(o), newNodeRemove(o), newNodeReplace(o))
}

func newNodeReplace(o *options) *cobra.Command {
	req := &quoratev1.ReplaceNodeRequest{}
	cmd := &cobra.Command{
		Use:   "replace NODE",
		Short: "Take out the replicas of a node whose data is lost",
		Long: `replace takes the replicas of NODE, whose data directory is lost, damaged or an older copy, out of their
groups, so that their votes no longer count. The node must be stopped. Started again with an empty data directory it
gets replicas that first learn, and vote when they have caught up. Any running node takes the command; running it
again is harmless.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Node = args[0]
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.ReplaceNode, req)
				if err != nil {
					return err
				}
				return o.printReplacement(cmd, args[0], r)
			})
		},
	}
	addComment(cmd, &req.Comment)
	return cmd
}

// replacementView is what a replacement has done, as it is printed.
type replacementView struct {
	Node    string        `json:"node"`
	Removed []removedView `json:"removed"`
	Next    string        `json:"next"`
}

type removedView struct {
	Partition string `json:"partition"`
	Instance  string `json:"instance"`
}

func (o *options) printReplacement(cmd *cobra.Command, node string, r *quoratev1.ReplaceNodeResponse) error {
	v := replacementView{Node: node, Removed: []removedView{}, Next: r.GetNext()}
	for _, m := range r.GetRemoved() {
		v.Removed = append(v.Removed, removedView{m.GetPartition(), m.GetInstance()})
	}
	w := cmd.OutOrStdout()
	if o.output != outputTable {
		return o.output.print(w, v, func(table.Writer) {})
	}
	text := ""
	for _, m := range v.Removed {
		text += fmt.Sprintf("removed: the replica of %s in partition %s (instance %s)\n", node, m.Partition, m.Instance)
	}
	if text == "" {
		text = fmt.Sprintf("nothing to remove: no partition counts on a replica of %s any more\n", node)
	}
	_, err := fmt.Fprintf(w, "%snext: %s\n", text, v.Next)
	return err
}
