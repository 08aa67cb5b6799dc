package main

import (
	"context"
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

func newPolicyList(o *options) *cobra.Command {
	req := &quoratev1.ListPoliciesRequest{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the history of revisions, the newest first",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.ListPolicies, req)
				if err != nil {
					return err
				}
				return o.printRevisions(cmd, r)
			})
		},
	}
	cmd.Flags().Uint32Var(&req.Limit, "limit", 100, "show at most so many, up to 1000")
	cmd.Flags().Uint64Var(&req.Before, "before", 0, "show only older ones than this revision")
	return cmd
}

// revisionsView is a page of the history as it is printed.
type revisionsView struct {
	Revisions []revisionView `json:"revisions"`
}

func (o *options) printRevisions(cmd *cobra.Command, r *quoratev1.ListPoliciesResponse) error {
	v := revisionsView{Revisions: []revisionView{}}
	for _, rev := range r.GetRevisions() {
		v.Revisions = append(v.Revisions, revisionOf(rev))
	}
	return o.output.print(cmd.OutOrStdout(), v, func(t table.Writer) {
		t.AppendHeader(table.Row{"revision", "version", "kind", "on", "author", "at", "comment"})
		for _, r := range v.Revisions {
			t.AppendRow(table.Row{r.Number, r.Version, r.Kind, r.Base, dash(r.Author), timeText(r.At), dash(r.Comment)})
		}
	})
}

func newPolicyDiff(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "diff [FROM] [TO|FILE]",
		Short: "Show what differs between two revisions, or between one and a file",
		Long: `diff shows what differs between two revisions, a line each. Without TO it is the one in force; without FROM
the one before TO. What is no number is a policy file (- is standard input; ./5 is a file named 5): it is compared to
FROM, or to the revision in force.`,
		Example: "  quorate policy diff 7 9\n  quorate policy diff policy.yaml",
		Args:    usageArgs(cobra.MaximumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				if _, ok := revisionIn(args[len(args)-1]); !ok {
					return o.diffFile(cmd, args)
				}
			}
			from, err := revisionArg(cmd, args, 0)
			if err != nil {
				return err
			}
			to, err := revisionArg(cmd, args, 1)
			if err != nil {
				return err
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.DiffPolicies, &quoratev1.DiffPoliciesRequest{From: from, To: to})
				if err != nil {
					return err
				}
				newer := revisionOf(r.GetTo())
				return o.printDiff(cmd, diffView{
					From: revisionOf(r.GetFrom()), To: &newer,
					Changes: append([]string{}, r.GetChanges()...), MoreChanges: r.GetMoreChanges(),
				})
			})
		},
	}
}

// diffFile compares a revision to a policy file, which is the last argument.
func (o *options) diffFile(cmd *cobra.Command, args []string) error {
	file := args[len(args)-1]
	from, err := revisionArg(cmd, args[:len(args)-1], 0)
	if err != nil {
		return err
	}
	p, err := loadPolicy(cmd, file)
	if err != nil {
		return err
	}
	return o.withSession(cmd, func(ctx context.Context, s *session) error {
		r, old, err := download(ctx, s, from)
		if err != nil {
			return err
		}
		v := diffView{From: r, File: file, Changes: []string{}}
		for _, c := range policy.Compare(old, p) {
			v.Changes = append(v.Changes, c.String())
		}
		return o.printDiff(cmd, v)
	})
}

// diffView is what differs, as it is printed.
type diffView struct {
	From        revisionView  `json:"from"`
	To          *revisionView `json:"to"`   // null with a file
	File        string        `json:"file"` // empty with two revisions
	Changes     []string      `json:"changes"`
	MoreChanges uint32        `json:"more_changes"`
}

func (o *options) printDiff(cmd *cobra.Command, v diffView) error {
	w := cmd.OutOrStdout()
	if o.output != outputTable {
		return o.output.print(w, v, nil)
	}
	to := v.File
	if v.To != nil {
		to = "revision " + v.To.String()
	}
	fmt.Fprintf(w, "revision %s -> %s: ", v.From, to)
	if len(v.Changes) == 0 {
		fmt.Fprintln(w, "no difference")
		return nil
	}
	fmt.Fprintln(w, count(len(v.Changes)+int(v.MoreChanges), "change", "changes"))
	for _, c := range v.Changes {
		fmt.Fprintf(w, "  %s\n", c)
	}
	if v.MoreChanges > 0 {
		fmt.Fprintf(w, "  and %d more\n", v.MoreChanges)
	}
	return nil
}
