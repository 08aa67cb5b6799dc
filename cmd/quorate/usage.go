package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func newUsage(o *options) *cobra.Command {
	return newGroup("usage", "Look after usage", newUsageForgive(o))
}

func newUsageForgive(o *options) *cobra.Command {
	req := &quoratev1.ForgiveUsageRequest{}
	cmd := &cobra.Command{
		Use:   "forgive PRINCIPAL [CLASS] --reason WHY",
		Short: "Drop what a principal has used, so that it may go on at once",
		Long: `forgive drops the usage of PRINCIPAL, of one CLASS or of all. From then on its caps count from nothing, so more
than the cap may pass within a window: the audit trail has who did it and why. With --id the same act is never done
twice. Recorded decisions stay: a repeated decision id still gets its answer.`,
		Args: usageArgs(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.Reason == "" {
				return usagef(cmd, "--reason is required: say why, for the audit trail")
			}
			req.Principal = args[0]
			if len(args) > 1 {
				req.ApiClass = args[1]
			}
			if req.ForgiveId == "" {
				req.ForgiveId = "cli-" + uuid.NewString()
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.ForgiveUsage, req)
				if quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown {
					return fmt.Errorf("%w; it may be done: repeat it with --id %s", err, req.ForgiveId)
				}
				if err != nil {
					return err
				}
				return o.printForgiven(cmd, req, r)
			})
		},
	}
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit trail")
	cmd.Flags().StringVar(&req.ForgiveId, "id", "",
		"names this act: repeated with the same it is done once (default: a new one)")
	return cmd
}

// forgivenView is dropped usage as it is printed.
type forgivenView struct {
	Principal string              `json:"principal"`
	APIClass  string              `json:"api_class"` // empty for all
	ForgiveID string              `json:"forgive_id"`
	Forgiven  []forgivenClassView `json:"forgiven"`
}

type forgivenClassView struct {
	APIClass string `json:"api_class"`
	Amount   int64  `json:"amount"`
}

func (o *options) printForgiven(
	cmd *cobra.Command, req *quoratev1.ForgiveUsageRequest, r *quoratev1.ForgiveUsageResponse,
) error {
	v := forgivenView{req.GetPrincipal(), req.GetApiClass(), req.GetForgiveId(), []forgivenClassView{}}
	for _, f := range r.GetForgiven() {
		v.Forgiven = append(v.Forgiven, forgivenClassView{f.GetApiClass(), f.GetAmount()})
	}
	w := cmd.OutOrStdout()
	if o.output == outputTable && len(v.Forgiven) == 0 {
		_, err := fmt.Fprintln(w, "there was no usage to forgive")
		return err
	}
	return o.output.print(w, v, func(t table.Writer) {
		t.AppendHeader(table.Row{"class", "forgiven"})
		for _, f := range v.Forgiven {
			t.AppendRow(table.Row{f.APIClass, f.Amount})
		}
	})
}
