package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
	"github.com/quorate/quorate/rpc/client"
)

func newCheck(o *options) *cobra.Command {
	req := &quoratev1.CheckRequest{}
	var cost int64
	cmd := &cobra.Command{
		Use:   "check PRINCIPAL CLASS",
		Short: "Ask for one decision, and consume if it is an allow",
		Long: `check asks whether PRINCIPAL may make a request of CLASS now, and consumes when the answer is an allow.
With --id the same decision is never made twice: a repeat gets the recorded answer. It goes on trying through a
failover, with the same id: keep --timeout below half of the class's replay horizon.
Exit status: 0 allowed, 3 denied, 4 unavailable.`,
		Args: usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Principal, req.ApiClass = args[0], args[1]
			if cmd.Flags().Changed("cost") {
				req.Cost = &cost
			}
			if !cmd.Flags().Changed("id") {
				req.DecisionId = "cli-" + uuid.NewString()
			}
			return o.withClient(cmd, func(ctx context.Context, c *client.Client) error {
				d, err := c.CheckAndConsume(ctx, req)
				if err != nil {
					return withID(err, req.GetDecisionId())
				}
				return o.printDecision(cmd, d)
			})
		},
	}
	flags := cmd.Flags()
	flags.Int64Var(&cost, "cost", 1, "units to consume")
	flags.StringVar(&req.DecisionId, "id", "", "decision id (default: a new one)")
	flags.StringVar(&req.Tier, "tier", "", "the principal's tier")
	return cmd
}

// withID names the decision id where the same one is to be asked for again.
func withID(err error, id string) error {
	var e *quotaerr.Error
	if !errors.As(err, &e) || !errtable.Lookup(e.Reason).Retryable() {
		return err
	}
	named := *e
	named.Message = fmt.Sprintf("%s; the id is %s: give it with --id", e.Message, id)
	return &named
}

func (o *options) printDecision(cmd *cobra.Command, d *quoratev1.Decision) error {
	b, err := rpc.MarshalDecision(d)
	if err != nil {
		return err
	}
	err = o.output.print(cmd.OutOrStdout(), json.RawMessage(b), func(t table.Writer) {
		t.AppendHeader(table.Row{"decision", "reason", "limit", "remaining", "retry after", "policy", "id"})
		t.AppendRow(table.Row{
			decided(d), d.GetReason(), dash(d.GetLimit()), d.GetRemaining(), waitText(d.GetRetryAfterMs()),
			d.GetPolicyVersion(), idText(d),
		})
	})
	if err != nil {
		return err
	}
	if !rpc.Allowed(d) {
		return errDenied
	}
	return nil
}

func decided(d *quoratev1.Decision) string {
	if rpc.Allowed(d) {
		return "allowed"
	}
	return "denied"
}

func idText(d *quoratev1.Decision) string {
	if d.GetReplayed() {
		return d.GetDecisionId() + " (replayed)"
	}
	return d.GetDecisionId()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func waitText(ms int64) string {
	if ms == 0 {
		return "-"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

func newPeek(o *options) *cobra.Command {
	req := &quoratev1.PeekRequest{}
	cmd := &cobra.Command{
		Use:   "peek PRINCIPAL CLASS",
		Short: "Show usage, without consuming",
		Args:  usageArgs(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Principal, req.ApiClass = args[0], args[1]
			return o.withClient(cmd, func(ctx context.Context, c *client.Client) error {
				p, err := c.Peek(ctx, req)
				if err != nil {
					return err
				}
				return o.printPeek(cmd, p)
			})
		},
	}
	cmd.Flags().StringVar(&req.Tier, "tier", "", "the principal's tier")
	return cmd
}

// peekView is a peek as it is printed.
type peekView struct {
	APIClass       string      `json:"api_class"`
	Disabled       bool        `json:"disabled"`
	Remaining      int64       `json:"remaining"`
	AsOf           time.Time   `json:"as_of"`
	PolicyVersion  string      `json:"policy_version"`
	PolicyRevision uint64      `json:"policy_revision"`
	Limits         []limitView `json:"limits"`
}

// limitView is the usage of one limit as it is printed.
type limitView struct {
	Name      string `json:"name"`
	Limit     int64  `json:"limit"`
	Window    string `json:"window"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	ResetMs   int64  `json:"reset_ms"`
}

func (o *options) printPeek(cmd *cobra.Command, p *quoratev1.PeekResponse) error {
	v := peekView{
		APIClass: p.GetApiClass(), Disabled: p.GetDisabled(), Remaining: p.GetRemaining(), AsOf: p.GetAsOf().AsTime(),
		PolicyVersion: p.GetPolicyVersion(), PolicyRevision: p.GetPolicyRevision(), Limits: []limitView{},
	}
	for _, l := range p.GetLimits() {
		v.Limits = append(v.Limits, limitView{
			Name: l.GetName(), Limit: l.GetLimit(), Window: policy.FormatDuration(int64(l.GetWindow().AsDuration())),
			Used: l.GetUsed(), Remaining: l.GetRemaining(), ResetMs: l.GetResetMs(),
		})
	}
	if v.Disabled && o.output == outputTable {
		fmt.Fprintf(cmd.ErrOrStderr(), "class %s is disabled: no check of it is admitted\n", v.APIClass)
	}
	return o.output.print(cmd.OutOrStdout(), v, func(t table.Writer) {
		t.AppendHeader(table.Row{"class", "limit", "window", "used", "of", "remaining", "reset after"})
		for _, l := range v.Limits {
			t.AppendRow(table.Row{v.APIClass, l.Name, l.Window, l.Used, l.Limit, l.Remaining, waitText(l.ResetMs)})
		}
	})
}
