package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// uploadPace is how slowly a policy's body may go up at least, in bytes per second.
const uploadPace = 1 << 20

// applyFlags are the flags of policy apply.
type applyFlags struct {
	base    uint64
	comment string
	dryRun  bool
	wait    bool
}

func newPolicyApply(o *options) *cobra.Command {
	f := &applyFlags{}
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Put a policy in force",
		Long: `apply checks FILE (- is standard input), brings it to the cluster and puts it in force as the next revision.
It is refused when another revision came in force since: --base names the revision that FILE was made from; without
it the one in force at the beginning is taken. It prints what has changed, and which earlier rules are still enforced.
With --wait it returns when no owner can decide under the revision before any more.`,
		Example: "  quorate policy show -o yaml > policy.yaml\n" +
			"  quorate policy apply policy.yaml --comment 'more for convert'",
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.dryRun && f.wait {
				return usagef(cmd, "--dry-run puts nothing in force, so there is nothing to --wait for")
			}
			p, err := loadPolicy(cmd, args[0])
			if err != nil {
				return err
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				base := f.base
				if !cmd.Flags().Changed("base") {
					r, err := inForce(ctx, s)
					if err != nil {
						return err
					}
					base = r.GetNumber()
				}
				v, err := publish(ctx, s, p, &quoratev1.ApplyPolicyRequest{Base: base, Comment: f.comment, DryRun: f.dryRun})
				if err != nil {
					return err
				}
				return o.finish(ctx, cmd, s, v, f.wait)
			})
		},
	}
	flags := cmd.Flags()
	flags.Uint64Var(&f.base, "base", 0, "the revision that FILE was made from (default: the one in force; 0: none yet)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "tell what would change, and change nothing")
	addComment(cmd, &f.comment)
	addWait(cmd, &f.wait)
	return cmd
}

func addComment(cmd *cobra.Command, comment *string) {
	cmd.Flags().StringVar(comment, "comment", "", "why, for the audit trail")
}

func addWait(cmd *cobra.Command, wait *bool) {
	cmd.Flags().BoolVar(wait, "wait", false, "return when no owner can decide under an older revision any more")
}

// loadPolicy reads a policy that shall be put in force. Its problems are printed as validate does.
func loadPolicy(cmd *cobra.Command, file string) (*policy.Policy, error) {
	src, name, err := readPolicy(cmd.InOrStdin(), file)
	if err != nil {
		return nil, err
	}
	p, err := policy.Parse(name, src)
	var problems policy.Problems
	if !errors.As(err, &problems) {
		return p, err
	}
	for _, problem := range problems {
		fmt.Fprintln(cmd.ErrOrStderr(), problem)
	}
	return nil, errReported
}

// publishedView is a new revision as it is printed.
type publishedView struct {
	Revision    revisionView      `json:"revision"`
	DryRun      bool              `json:"dry_run"`
	Changes     []string          `json:"changes"`
	MoreChanges uint32            `json:"more_changes"`
	Status      *policyStatusView `json:"status"` // null where it is not known
}

func publishedOf(r *quoratev1.ApplyPolicyResponse) *publishedView {
	v := &publishedView{Revision: revisionOf(r.GetRevision()), Changes: []string{}, MoreChanges: r.GetMoreChanges()}
	v.Changes = append(v.Changes, r.GetChanges()...)
	return v
}

// publish brings a policy to the cluster and puts it in force as req says.
func publish(
	ctx context.Context, s *session, p *policy.Policy, req *quoratev1.ApplyPolicyRequest,
) (*publishedView, error) {
	digest := p.Digest()
	if err := upload(ctx, s, p); err != nil {
		return nil, err
	}
	req.Digest = digest[:]
	r, err := call(ctx, s, s.ApplyPolicy, req)
	if quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown && !req.GetDryRun() {
		r, err = findPublished(ctx, s, req, err)
	}
	if err != nil {
		return nil, err
	}
	v := publishedOf(r)
	v.DryRun = req.GetDryRun()
	return v, nil
}

// findPublished looks whether a policy is in force, whose application seemed to fail with err.
func findPublished(
	ctx context.Context, s *session, req *quoratev1.ApplyPolicyRequest, err error,
) (*quoratev1.ApplyPolicyResponse, error) {
	r, again := inForce(ctx, s)
	if again != nil || r.GetBase() != req.GetBase() || !bytes.Equal(r.GetDigest(), req.GetDigest()) {
		return nil, orLook(err)
	}
	found := &quoratev1.ApplyPolicyResponse{Revision: r}
	diff, again := call(ctx, s, s.DiffPolicies, &quoratev1.DiffPoliciesRequest{To: r.GetNumber()})
	if again == nil { // else it is in force all the same
		found.Changes, found.MoreChanges = diff.GetChanges(), diff.GetMoreChanges()
	}
	return found, nil
}

// upload brings a policy's body to the cluster, which may take longer than a question.
func upload(ctx context.Context, s *session, p *policy.Policy) error {
	body := p.AppendBinary(nil)
	ctx, cancel := context.WithTimeout(ctx, s.timeout+time.Duration(len(body))*time.Second/uploadPace)
	defer cancel()
	digest := p.Digest()
	_, err := s.UploadPolicy(ctx, digest[:], bytes.NewReader(body))
	return err
}

// finish prints a new revision with how far it is, which with wait is everywhere.
func (o *options) finish(ctx context.Context, cmd *cobra.Command, s *session, v *publishedView, wait bool) (err error) {
	switch number := v.Revision.Number; {
	case v.DryRun:
	case wait:
		// What is in force is told even if the wait fails.
		v.Status, err = awaitActive(ctx, s, number)
	default:
		v.Status = settle(ctx, s, number)
	}
	return errors.Join(o.printPublished(cmd, v), err)
}

func (o *options) printPublished(cmd *cobra.Command, v *publishedView) error {
	w := cmd.OutOrStdout()
	if o.output != outputTable {
		return o.output.print(w, v, nil)
	}
	is := "is in force"
	if v.DryRun {
		is = "would be put in force"
	}
	fmt.Fprintf(w, "revision %s %s, on %d\n", v.Revision, is, v.Revision.Base)
	for _, c := range v.Changes {
		fmt.Fprintf(w, "  %s\n", c)
	}
	if v.MoreChanges > 0 {
		fmt.Fprintf(w, "  and %d more\n", v.MoreChanges)
	}
	switch {
	case v.DryRun:
		return nil
	case v.Status == nil:
		fmt.Fprintf(w, "how far it is: quorate policy status %d\n", v.Revision.Number)
		return nil
	}
	fmt.Fprintln(w, v.Status.activeText())
	for _, p := range v.Status.Partitions {
		if p.Installed < v.Revision.Number {
			fmt.Fprintf(w, "%s: %s\n", p.Partition, p.text(v.Revision.Number))
		}
	}
	return v.Status.printCarried(w)
}
