package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// policyStatusView is how far a revision has come, as it is printed.
type policyStatusView struct {
	Revision         revisionView          `json:"revision"`
	InForce          uint64                `json:"in_force"`
	ActiveEverywhere bool                  `json:"active_everywhere"`
	ActiveIn         string                `json:"active_in"` // empty once it is
	Partitions       []partitionPolicyView `json:"partitions"`

	activeIn time.Duration
}

type partitionPolicyView struct {
	Partition string        `json:"partition"`
	Installed uint64        `json:"installed"`
	Reachable bool          `json:"reachable"` // whether its leader answered
	Carried   []carriedView `json:"carried"`
}

// carriedView is an earlier revision's rule that is still enforced.
type carriedView struct {
	APIClass string `json:"api_class"`
	Revision uint64 `json:"revision"`
	Version  string `json:"version"`
	EndsIn   string `json:"ends_in"`

	endsIn time.Duration
}

func policyStatusOf(r *quoratev1.PolicyStatusResponse) *policyStatusView {
	v := &policyStatusView{
		Revision: revisionOf(r.GetRevision()), InForce: r.GetInForce(), ActiveEverywhere: r.GetActiveEverywhere(),
		Partitions: []partitionPolicyView{}, activeIn: r.GetActiveIn().AsDuration(),
	}
	if !v.ActiveEverywhere {
		v.ActiveIn = durationOf(r.GetActiveIn())
	}
	for _, p := range r.GetPartitions() {
		pv := partitionPolicyView{p.GetPartition(), p.GetInstalled(), p.GetReachable(), []carriedView{}}
		for _, c := range p.GetCarried() {
			pv.Carried = append(pv.Carried, carriedView{
				c.GetApiClass(), c.GetRevision(), c.GetVersion(), durationOf(c.GetEndsIn()), c.GetEndsIn().AsDuration(),
			})
		}
		v.Partitions = append(v.Partitions, pv)
	}
	return v
}

// settled reports whether every partition has the revision and says what it carries.
func (v *policyStatusView) settled() bool {
	return !slices.ContainsFunc(v.Partitions, func(p partitionPolicyView) bool {
		return p.Installed < v.Revision.Number || !p.Reachable
	})
}

// activeText says whether the revision is active everywhere.
func (v *policyStatusView) activeText() string {
	switch {
	case v.ActiveEverywhere:
		return "active everywhere: no owner can decide under an older revision"
	case v.ActiveIn == "":
		return "not active everywhere yet"
	default:
		return "active everywhere in at most " + aboutText(v.activeIn)
	}
}

// text says where a partition is, for a line of progress.
func (p partitionPolicyView) text(revision uint64) string {
	text := fmt.Sprintf("has revision %d", p.Installed)
	if p.Installed < revision {
		text += fmt.Sprintf(", not yet %d", revision)
	}
	if !p.Reachable {
		text += "; its leader does not answer"
	}
	return text
}

func newPolicyStatus(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "status [REVISION]",
		Short: "Show how far a revision has come, and which earlier rules are still enforced",
		Long: `status shows how far REVISION, or the one in force, has come. It is active everywhere when no owner can decide
under an older one any more. Until a new rule has seen a whole window of history, the rule before it is enforced
beside it: that is what is carried, and until when.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			revision, err := revisionArg(cmd, args, 0)
			if err != nil {
				return err
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.PolicyStatus, &quoratev1.PolicyStatusRequest{Revision: revision})
				if err != nil {
					return err
				}
				return o.printPolicyStatus(cmd, policyStatusOf(r))
			})
		},
	}
}

func (o *options) printPolicyStatus(cmd *cobra.Command, v *policyStatusView) error {
	w := cmd.OutOrStdout()
	if o.output != outputTable {
		return o.output.print(w, v, nil)
	}
	state := "in force"
	if v.InForce != v.Revision.Number {
		state = fmt.Sprintf("not in force: revision %d is", v.InForce)
	}
	fmt.Fprintf(w, "revision %s: %s\n%s\n\n", v.Revision, state, v.activeText())
	return o.output.print(w, nil, func(t table.Writer) {
		t.AppendHeader(table.Row{"partition", "installed", "leader answers", "carried"})
		for _, p := range v.Partitions {
			words := make([]string, len(p.Carried))
			for i, c := range p.Carried {
				words[i] = fmt.Sprintf("%s: revision %s for %s", yamlName(c.APIClass),
					revisionText(c.Revision, c.Version), aboutText(c.endsIn))
			}
			t.AppendRow(table.Row{p.Partition, p.Installed, p.Reachable, dash(strings.Join(words, ", "))})
		}
	})
}

// printCarried prints which earlier rules are still enforced somewhere, each once with its latest end.
func (v *policyStatusView) printCarried(w io.Writer) error {
	type rule struct {
		class    string
		revision uint64
	}
	latest := map[rule]carriedView{}
	var order []rule
	for _, p := range v.Partitions {
		for _, c := range p.Carried {
			r := rule{c.APIClass, c.Revision}
			was, seen := latest[r]
			if !seen {
				order = append(order, r)
			}
			if !seen || c.endsIn > was.endsIn {
				latest[r] = c
			}
		}
	}
	if len(order) == 0 {
		return nil
	}
	now := time.Now()
	return outputFormat(outputTable).print(w, nil, func(t table.Writer) {
		t.AppendHeader(table.Row{"class", "carried from", "for another", "until"})
		for _, r := range order {
			c := latest[r]
			t.AppendRow(table.Row{
				c.APIClass, revisionText(c.Revision, c.Version), aboutText(c.endsIn), timeText(now.Add(c.endsIn)),
			})
		}
	})
}

// awaitActive looks until no owner can decide under an older revision, and says how the partitions come on.
func awaitActive(ctx context.Context, s *session, revision uint64) (last *policyStatusView, err error) {
	progress := newLines(s.progress)
	err = poll(ctx, func() (bool, error) {
		r, err := call(ctx, s, s.PolicyStatus, &quoratev1.PolicyStatusRequest{Revision: revision})
		if err != nil {
			return false, err
		}
		last = policyStatusOf(r)
		for _, p := range last.Partitions {
			progress.say(p.Partition, "%s", p.text(revision))
		}
		return last.ActiveEverywhere, nil
	})
	if err != nil {
		return last, interrupted(ctx, err, "revision %d is in force, but is not known to be active everywhere: look with "+
			"`quorate policy status %d`", revision, revision)
	}
	return last, nil
}

// settleTime is how long a command waits for the partitions to take a new revision, to tell what they carry.
const settleTime = 3 * time.Second

// settle looks for a moment how far a new revision comes. It returns what it saw last; nil when nobody told.
func settle(ctx context.Context, s *session, revision uint64) (last *policyStatusView) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	// That the time is over, or that nobody answers, is no failure of what was done before.
	_ = poll(ctx, func() (bool, error) {
		r, err := call(ctx, s, s.PolicyStatus, &quoratev1.PolicyStatusRequest{Revision: revision})
		if err != nil {
			return false, err
		}
		last = policyStatusOf(r)
		return last.settled(), nil
	})
	return last
}
