package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// The phases of a plan that has ended.
const (
	planDone   = "done"
	planUndone = "undone"
)

// planView is a plan as it is printed.
type planView struct {
	ID          uint64      `json:"id"`
	Kind        string      `json:"kind"`   // split, merge, move, recover or restore
	Source      string      `json:"source"` // empty for a restore
	Destination string      `json:"destination"`
	Ranges      []rangeView `json:"ranges"`   // under the epochs at its start
	Phase       string      `json:"phase"`    // open, decided, aborted, done or undone
	Progress    string      `json:"progress"` // what is being done; empty once it has ended
	Epoch       uint64      `json:"epoch"`    // of the slots at the destination; 0 before it is decided
	Started     time.Time   `json:"started"`
	Ended       *time.Time  `json:"ended"` // null while it has not
	Author      string      `json:"author"`
	Comment     string      `json:"comment"`
	Message     string      `json:"message"` // why it was undone
	Node        string      `json:"node"`    // whose replica or backup is taken; empty for a partition's leader
	AcceptLoss  bool        `json:"accept_loss"`
}

func planViewOf(p *quoratev1.Plan) planView {
	v := planView{
		ID: p.GetId(), Kind: strings.ToLower(strings.TrimPrefix(p.GetKind().String(), "PLAN_KIND_")),
		Source: p.GetSource(), Destination: p.GetDestination(), Ranges: []rangeView{}, Phase: p.GetPhase(),
		Progress: p.GetProgress(), Epoch: p.GetEpoch(), Started: timeOf(p.GetStarted()), Author: p.GetAuthor(),
		Comment: p.GetComment(), Message: p.GetMessage(), Node: p.GetNode(), AcceptLoss: p.GetAcceptLoss(),
	}
	for _, r := range p.GetRanges() {
		v.Ranges = append(v.Ranges, rangeView{r.GetFirstSlot(), r.GetLastSlot(), r.GetEpoch()})
	}
	if p.GetEnded() != nil {
		at := p.GetEnded().AsTime()
		v.Ended = &at
	}
	return v
}

// name is what a plan is called.
func (v *planView) name() string { return fmt.Sprintf("plan %d", v.ID) }

// ended reports that nothing more is done for it.
func (v *planView) ended() bool { return v.Phase == planDone || v.Phase == planUndone }

// from is where the state comes from.
func (v *planView) from() string {
	switch {
	case v.Node == "":
		return v.Source
	case v.Source == "":
		return "backup on " + v.Node
	}
	return v.Source + " on " + v.Node
}

// what is what the plan does, in words.
func (v *planView) what() string {
	return fmt.Sprintf("%s, slots %s from %s to %s", v.Kind, v.slots(), v.from(), v.Destination)
}

// slots writes the slots without their epochs, the first few.
func (v *planView) slots() string {
	words := make([]string, len(v.Ranges))
	for i, r := range v.Ranges {
		words[i] = fmt.Sprintf("%d-%d", r.FirstSlot, r.LastSlot)
	}
	return shortList(words)
}

// note is what there is to say of how it stands.
func (v *planView) note() string {
	if v.Phase == planUndone || v.Phase == "aborted" {
		return strings.Trim(v.Message+"; "+v.Progress, "; ")
	}
	if v.Phase == planDone && v.Node != "" && !v.AcceptLoss && v.Ended != nil {
		return "admissions of before may be missing: until its window has passed since " + timeText(*v.Ended) +
			", each limit counts as full"
	}
	return v.Progress
}

// took is for how long it has been, or was, under way, by the clocks of the nodes that led the control group.
func (v *planView) took() string {
	if v.Ended == nil {
		return aboutText(time.Since(v.Started))
	}
	took := max(v.Ended.Sub(v.Started), 0)
	if took < time.Minute {
		return took.Round(10 * time.Millisecond).String()
	}
	return aboutText(took)
}

// plansOf are the plans as they are listed, the newest first.
func plansOf(r *quoratev1.ListPlansResponse) []planView {
	out := []planView{}
	for _, p := range r.GetPlans() {
		out = append(out, planViewOf(p))
	}
	return out
}

// maxShownEnded bounds the plans in a table that have ended.
const maxShownEnded = 5

// fillPlans fills a table with the plans under way, and the last that have ended.
func fillPlans(t table.Writer, plans []planView) {
	t.AppendHeader(table.Row{"plan", "kind", "from", "to", "slots", "phase", "started", "for", "by", "comment", "note"})
	shown := 0
	for i := range plans {
		p := &plans[i]
		if p.ended() {
			if shown++; shown > maxShownEnded {
				continue
			}
		}
		t.AppendRow(table.Row{
			p.ID, p.Kind, p.from(), p.Destination, p.slots(), p.Phase, timeText(p.Started), p.took(), dash(p.Author),
			dash(oneLine(p.Comment)), dash(oneLine(p.note())),
		})
	}
}

// printBegun prints a plan that goes on by itself.
func (o *options) printBegun(cmd *cobra.Command, v *planView) error {
	if o.output != outputTable {
		return o.output.print(cmd.OutOrStdout(), v, nil)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: begun: %s\nnext: quorate partition list shows how it stands; "+
		"quorate partition abort %d undoes it while it is open\n%s", v.name(), v.what(), v.ID, v.lossText())
	return err
}

// printEnded prints a plan that has ended; one that was undone is an error.
func (o *options) printEnded(cmd *cobra.Command, v *planView) error {
	var undone error
	if v.Phase == planUndone {
		undone = fmt.Errorf("%s is undone, %s: %s", v.name(), v.stays(), cmp.Or(plainText(v.Message), "no reason is given"))
	}
	if o.output != outputTable {
		return errors.Join(o.output.print(cmd.OutOrStdout(), v, nil), undone)
	}
	if undone != nil {
		return undone
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: done in %s: %s owns slots %s\n%s", v.name(), v.took(), v.Destination,
		v.slots(), v.lossText())
	return err
}

// lossText is a line on what becomes of admissions that a replica or a backup has not got; empty where none miss.
func (v *planView) lossText() string {
	switch {
	case v.Node == "":
		return ""
	case v.AcceptLoss:
		return "the loss was accepted: what " + v.from() + " does not have is given up, and the audit trail says so\n"
	}
	return "each of their principals is denied until its longest window has passed since, as admissions may be missing\n"
}

// stays says whose the slots of a plan are that was undone.
func (v *planView) stays() string {
	if v.Source == "" {
		return "its slots are nobody's"
	}
	return "its slots are " + v.Source + "'s as before"
}

// begin asks for a plan and prints it, with wait once it has ended.
func (o *options) begin(
	ctx context.Context, cmd *cobra.Command, s *session, req *quoratev1.StartPlanRequest, wait bool,
) error {
	r, err := call(ctx, s, s.StartPlan, req)
	if quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown {
		return quotaerr.New(quotaerr.OutcomeUnknown, "no answer came: `quorate partition list` shows whether the plan has "+
			"begun; ask again if it has not")
	}
	if err != nil {
		return err
	}
	v := planViewOf(r.GetPlan())
	if !wait {
		return o.printBegun(cmd, &v)
	}
	if err := awaitPlan(ctx, s, &v); err != nil {
		return err
	}
	return o.printEnded(cmd, &v)
}

// awaitPlan looks until a plan has ended, and says how it goes on.
func awaitPlan(ctx context.Context, s *session, v *planView) error {
	progress := newLines(s.progress)
	progress.say(v.name(), "%s", v.what())
	err := poll(ctx, func() (bool, error) {
		r, err := call(ctx, s, s.ListPlans, &quoratev1.ListPlansRequest{Plan: v.ID})
		if err != nil {
			return false, err
		}
		if len(r.GetPlans()) != 1 {
			return false, quotaerr.New(quotaerr.Internal, "the node does not tell of %s; check that versions agree", v.name())
		}
		*v = planViewOf(r.GetPlans()[0])
		if !v.ended() {
			progress.say(v.name(), "%s: %s", v.Phase, plainText(v.note()))
		}
		return v.ended(), nil
	})
	if err != nil {
		return interrupted(ctx, err, "%s goes on, but is not known to have ended: look with `quorate partition list`",
			v.name())
	}
	return nil
}
