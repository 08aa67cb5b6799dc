package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// addPlan adds the flags of a command that begins a plan.
func addPlan(cmd *cobra.Command, req *quoratev1.StartPlanRequest, wait *bool) {
	cmd.Flags().BoolVar(wait, "wait", false, "say how it goes on, and return when it has ended; 1 when it was undone")
	addComment(cmd, &req.Comment)
}

func newPartitionSplit(o *options) *cobra.Command {
	req, wait, at := &quoratev1.StartPlanRequest{Kind: quoratev1.PlanKind_PLAN_KIND_SPLIT}, false, int64(0)
	cmd := &cobra.Command{
		Use:   "split PARTITION",
		Short: "Move the upper slots of a partition to a new one",
		Long: `split makes a new partition and moves to it the slots of PARTITION from --at on, or the upper half of what it
owns, with all that their principals have used. It goes on by itself, and either is done or leaves everything as it was.
Checks of those principals wait for less than a second meanwhile; no failure mode is used.`,
		Example: "  quorate partition split p0 --wait --comment \"hot at noon\"",
		Args:    filledArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Source = args[0]
			if at < 0 || at >= fsm.NumSlots {
				return usagef(cmd, "--at is %d: slots are 0 to %d", at, fsm.NumSlots-1)
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				if cmd.Flags().Changed("at") {
					r, err := clusterStatus(ctx, s)
					if err != nil {
						return err
					}
					req.Ranges = slotsFrom(viewOf(r), req.Source, uint32(at))
				}
				return o.begin(ctx, cmd, s, req, wait)
			})
		},
	}
	cmd.Flags().Int64Var(&at, "at", 0, "the first slot that moves (default: the upper half of what it owns)")
	addPlan(cmd, req, &wait)
	return cmd
}

// slotsFrom are the slots that a partition owns from one on. Where it owns none the node says what is wrong.
func slotsFrom(v clusterView, partition string, at uint32) (out []*quoratev1.SlotRange) {
	for _, p := range v.Partitions {
		for _, r := range p.Ranges {
			if p.ID == partition && r.LastSlot >= at {
				out = append(out, &quoratev1.SlotRange{FirstSlot: max(r.FirstSlot, at), LastSlot: r.LastSlot})
			}
		}
	}
	if len(out) == 0 {
		out = []*quoratev1.SlotRange{{FirstSlot: at, LastSlot: fsm.NumSlots - 1}}
	}
	return out
}

func newPartitionMerge(o *options) *cobra.Command {
	req, wait := &quoratev1.StartPlanRequest{Kind: quoratev1.PlanKind_PLAN_KIND_MERGE}, false
	cmd := &cobra.Command{
		Use:   "merge PARTITION INTO",
		Short: "Move all slots of a partition to another, and end it",
		Long: `merge moves all slots of PARTITION to INTO, with all that their principals have used, and ends PARTITION. It
goes on by itself, and either is done or leaves everything as it was.`,
		Args: filledArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Source, req.Destination = args[0], args[1]
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				return o.begin(ctx, cmd, s, req, wait)
			})
		},
	}
	addPlan(cmd, req, &wait)
	return cmd
}

func newPartitionMove(o *options) *cobra.Command {
	req, wait := &quoratev1.StartPlanRequest{Kind: quoratev1.PlanKind_PLAN_KIND_MOVE}, false
	cmd := &cobra.Command{
		Use:   "move PARTITION FIRST-LAST TO",
		Short: "Move some slots of a partition to another",
		Long: `move moves the slots FIRST to LAST, or several such ranges with commas between them, from PARTITION to TO, with
all that their principals have used. It goes on by itself, and either is done or leaves everything as it was.`,
		Example: "  quorate partition move p0 0-1023,4096-4099 p1 --wait",
		Args:    filledArgs(cobra.ExactArgs(3)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req.Source, req.Destination = args[0], args[2]
			if req.Ranges, err = slotsArg(cmd, args[1]); err != nil {
				return err
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				return o.begin(ctx, cmd, s, req, wait)
			})
		},
	}
	addPlan(cmd, req, &wait)
	return cmd
}

// slotsArg reads ranges of slots.
func slotsArg(cmd *cobra.Command, text string) (out []*quoratev1.SlotRange, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, bad := strconv.ParseUint(first, 10, 16)
		to, worse := strconv.ParseUint(last, 10, 16)
		if bad != nil || worse != nil {
			return nil, usagef(cmd, "%q is no range of slots: write FIRST-LAST, from 0 to %d, as `quorate partition list` "+
				"shows them", part, fsm.NumSlots-1)
		}
		out = append(out, &quoratev1.SlotRange{FirstSlot: uint32(from), LastSlot: uint32(to)})
	}
	return out, nil
}

func newPartitionRecover(o *options) *cobra.Command {
	req, wait := &quoratev1.StartPlanRequest{Kind: quoratev1.PlanKind_PLAN_KIND_RECOVER}, false
	cmd := &cobra.Command{
		Use:   "recover PARTITION --from NODE",
		Short: "Make a partition anew that has lost its majority for good",
		Long: `recover makes a new partition of what the replica of PARTITION on NODE has applied, and gives it all slots.
What was admitted after that is not known. If the node was started again since the majority was lost, that is all after
the replica's last snapshot, because only a leader tells it which later entries of its log were committed. So each of
their principals is denied until its longest window has passed; with --accept-loss it is not, and may be admitted more
than its limits allow. Take the replica that has applied most, as cluster status shows it, and do not start its node
again before.`,
		Args: filledArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Source = args[0]
			if req.Node == "" {
				return usagef(cmd, "--from is required: name the node whose replica is taken")
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				return o.begin(ctx, cmd, s, req, wait)
			})
		},
	}
	cmd.Flags().StringVar(&req.Node, "from", "", "the node whose replica is taken")
	cmd.Flags().BoolVar(&req.AcceptLoss, "accept-loss", false, "deny nothing for what may have been admitted since")
	addPlan(cmd, req, &wait)
	return cmd
}

func newPartitionAbort(o *options) *cobra.Command {
	req := &quoratev1.AbortPlanRequest{}
	cmd := &cobra.Command{
		Use:   "abort PLAN",
		Short: "Undo a plan that has not been decided yet",
		Long: `abort undoes PLAN, a number that partition list shows, while it is open: its slots stay where they are. Once it
is decided it is too late, and they are moved back by another plan.`,
		Args: filledArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if req.Plan, err = strconv.ParseUint(args[0], 10, 64); err != nil || req.Plan == 0 {
				return usagef(cmd, "%q is no plan: give a number, as `quorate partition list` shows them", args[0])
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				if _, err := call(ctx, s, s.AbortPlan, req); err != nil {
					return err
				}
				return o.printChanged(cmd, changedView{Plan: req.Plan, Done: "aborted"},
					"; quorate partition list shows when it is undone")
			})
		},
	}
	addComment(cmd, &req.Comment)
	return cmd
}

// planName is a plan's name where it has one.
func planName(id uint64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("plan %d", id)
}
