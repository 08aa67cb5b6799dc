package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// momentFlag is a flag's moment: a time, or how long ago.
type momentFlag struct{ at time.Time }

func (m *momentFlag) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.Format(time.RFC3339)
}

// Type is the word for the value in the help.
func (m *momentFlag) Type() string { return "time" }

// Set reads a moment as RFC 3339 has it, a day in UTC, or a duration back from now.
func (m *momentFlag) Set(text string) error {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			m.at = at
			return nil
		}
	}
	nanos, err := policy.ParseDuration(text)
	if err != nil || nanos < 0 {
		return fmt.Errorf("%q is no moment: write 2026-01-31T12:00:00Z, 2026-01-31, or 24h for a day ago", text)
	}
	m.at = time.Now().Add(-time.Duration(nanos))
	return nil
}

// stamp is the moment on the wire; nil when it is not set.
func (m *momentFlag) stamp() *timestamppb.Timestamp {
	if m.at.IsZero() {
		return nil
	}
	return timestamppb.New(m.at)
}

func newAudit(o *options) *cobra.Command {
	req := &quoratev1.SearchAuditRequest{}
	var since, until momentFlag
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed what, the newest first",
		Long: `audit shows the audit trail: who changed what in the cluster, when and why, refused attempts too. Flags
restrict it. Where it ends and there is more, it says how to go on.`,
		Example: "  quorate audit --since 24h --action policy\n  quorate audit --actor admin/ops --until 2026-01-31",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			req.From, req.Until = since.stamp(), until.stamp()
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.SearchAudit, req)
				if err != nil {
					return err
				}
				return o.printAudit(cmd, r)
			})
		},
	}
	flags := cmd.Flags()
	flags.Var(&since, "since", "only from this time on, or so long ago")
	flags.Var(&until, "until", "only before this time, or so long ago")
	flags.StringVar(&req.Actor, "actor", "", "only by this actor, such as admin/ops")
	flags.StringVar(&req.Action, "action", "", "only this action, or all below it: policy finds policy.publish")
	flags.StringVar(&req.Object, "object", "", "only about this, such as n1")
	flags.Uint32Var(&req.Limit, "limit", 100, "show at most so many, up to 1000")
	flags.Uint64Var(&req.Before, "before", 0, "show only what is before this record")
	return cmd
}

// auditView is a page of the audit trail as it is printed.
type auditView struct {
	Records []auditRecordView `json:"records"`
	Next    uint64            `json:"next"` // for --before, to go on; 0 at the end
}

type auditRecordView struct {
	Index      uint64    `json:"index"`
	At         time.Time `json:"at"`
	Actor      string    `json:"actor"`
	Action     string    `json:"action"`
	Object     string    `json:"object"`
	Comment    string    `json:"comment"`
	Difference string    `json:"difference"`
	Result     string    `json:"result"`
	Message    string    `json:"message"`
}

func auditOf(r *quoratev1.SearchAuditResponse) auditView {
	v := auditView{Records: []auditRecordView{}, Next: r.GetNext()}
	for _, a := range r.GetRecords() {
		v.Records = append(v.Records, auditRecordView{
			a.GetIndex(), timeOf(a.GetAt()), a.GetActor(), a.GetAction(), a.GetObject(), a.GetComment(),
			a.GetDifference(), a.GetResult(), a.GetMessage(),
		})
	}
	return v
}

func (o *options) printAudit(cmd *cobra.Command, r *quoratev1.SearchAuditResponse) error {
	v, w := auditOf(r), cmd.OutOrStdout()
	err := o.output.print(w, v, func(t table.Writer) {
		t.AppendHeader(table.Row{"record", "at", "actor", "action", "object", "result", "comment", "difference"})
		for _, a := range v.Records {
			result := a.Result
			if a.Result != "done" && a.Message != "" {
				result += ": " + a.Message
			}
			t.AppendRow(table.Row{
				a.Index, timeText(a.At), a.Actor, a.Action, dash(oneLine(a.Object)), oneLine(result),
				dash(oneLine(a.Comment)), dash(oneLine(a.Difference)),
			})
		}
	})
	if err == nil && o.output == outputTable && v.Next != 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "there is more: go on with --before %d\n", v.Next)
	}
	return err
}

// plainText is text in one line, without what a terminal would obey.
func plainText(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.TrimSpace(text))
}

// oneLine is text for a cell of a table: its first line, shortened, without what a terminal would obey.
func oneLine(text string) string {
	const most = 80
	first, rest, more := strings.Cut(strings.TrimSpace(text), "\n")
	runes := []rune(plainText(first))
	if len(runes) > most {
		runes, more = append(runes[:most], '…'), more && rest == ""
	}
	if more {
		return fmt.Sprintf("%s (and %s)", string(runes), count(strings.Count(rest, "\n")+1, "more line", "more lines"))
	}
	return string(runes)
}
