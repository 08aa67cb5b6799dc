package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// changedView says that a command has changed something, as it is printed.
type changedView struct {
	Node      string `json:"node,omitempty"`
	Partition string `json:"partition,omitempty"`
	Token     string `json:"token,omitempty"`
	Plan      uint64 `json:"plan,omitempty"`
	Done      string `json:"done"` // what has become of it
}

// printChanged prints what has become of something. For people it says more, in next.
func (o *options) printChanged(cmd *cobra.Command, v changedView, next string) error {
	if o.output != outputTable {
		return o.output.print(cmd.OutOrStdout(), v, nil)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: %s%s\n", v.Node+v.Partition+v.Token+planName(v.Plan), v.Done, next)
	return err
}

func newNodeAdd(o *options) *cobra.Command {
	req := &quoratev1.AddNodeRequest{}
	cmd := &cobra.Command{
		Use:   "add NODE",
		Short: "Take in a node that waits",
		Long: `add takes in NODE, which runs with the cluster's id and addresses to join, and is shown as waiting by
node list. Replicas are moved to it step by step.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Node = args[0]
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				if _, err := call(ctx, s, s.AddNode, req); err != nil {
					return err
				}
				return o.printChanged(cmd, changedView{Node: req.Node, Done: "added"},
					"; replicas come to it step by step: quorate node list shows them")
			})
		},
	}
	addComment(cmd, &req.Comment)
	return cmd
}

func newNodeDrain(o *options) *cobra.Command {
	req, wait := &quoratev1.DrainNodeRequest{}, false
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move a node's replicas away, to remove it or to stop it for long",
		Long: `drain moves the replicas of NODE to others, step by step; the cluster serves on. With --wait it returns when
none is left, however long that takes; ended before, the drain goes on. --undo takes it back: what has moved stays
where it is.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Node = args[0]
			if req.Undo && wait {
				return usagef(cmd, "--undo is done at once, so there is nothing to --wait for")
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				if _, err := call(ctx, s, s.DrainNode, req); err != nil {
					return err
				}
				v, next := changedView{Node: req.Node, Done: nodeDraining}, "; quorate node list shows what is left"
				switch {
				case req.Undo:
					v.Done, next = nodeActive, ""
				case wait:
					if err := awaitDrained(ctx, s, req.Node); err != nil {
						return err
					}
					v.Done, next = "drained", "; it may be stopped, and removed with quorate node remove "+req.Node
				}
				return o.printChanged(cmd, v, next)
			})
		},
	}
	cmd.Flags().BoolVar(&req.Undo, "undo", false, "take the drain back")
	cmd.Flags().BoolVar(&wait, "wait", false, "return when no replica is left")
	addComment(cmd, &req.Comment)
	return cmd
}

// awaitDrained looks until a node has no replica any more, and says which are left.
func awaitDrained(ctx context.Context, s *session, id string) error {
	progress := newLines(s.progress)
	taken := false
	err := poll(ctx, func() (bool, error) {
		r, err := call(ctx, s, s.ListNodes, &quoratev1.ListNodesRequest{})
		if err != nil {
			return false, err
		}
		n, ok := nodesOf(r).one(id)
		switch {
		case !ok || n.State == nodeRemoved || n.State == nodeDraining && len(n.Partitions) == 0:
			return true, nil
		case n.State == nodeDraining:
			taken = true
			progress.say(id, "%s left: %s", count(len(n.Partitions), "replica", "replicas"), shortList(n.Partitions))
		case taken:
			return false, fmt.Errorf("node %s is %s again: somebody has taken the drain back", id, n.State)
		}
		return false, nil
	})
	if err != nil {
		return interrupted(ctx, err, "%s drains on, but is not known to be empty: look with `quorate node list`", id)
	}
	return nil
}

func newNodeRemove(o *options) *cobra.Command {
	req := &quoratev1.RemoveNodeRequest{}
	cmd := &cobra.Command{
		Use:   "remove NODE",
		Short: "Remove a drained node from the cluster, for good",
		Long: `remove removes NODE, which must be drained. Its id is not used again. A node whose data is lost is not removed
but replaced: see node replace.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Node = args[0]
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				if _, err := call(ctx, s, s.RemoveNode, req); err != nil {
					return err
				}
				return o.printChanged(cmd, changedView{Node: req.Node, Done: nodeRemoved},
					"; stop it, and delete its data directory")
			})
		},
	}
	addComment(cmd, &req.Comment)
	return cmd
}
