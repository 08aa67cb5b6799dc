package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/policy"
)

// stdinName stands for standard input among file names.
const stdinName = "-"

func newPolicy(o *options) *cobra.Command {
	return newGroup("policy", "Check policies and put them in force",
		newPolicyValidate(o), newPolicyApply(o), newPolicyShow(o), newPolicyList(o), newPolicyDiff(o),
		newPolicyStatus(o), newPolicyRollback(o), newPolicyImportEnvoy())
}

// policySummary is what is said of a valid policy file.
type policySummary struct {
	File       string `json:"file"`
	Version    string `json:"version"`
	Classes    int    `json:"classes"`
	Tiers      int    `json:"tiers"`
	Principals int    `json:"principals"`
	Groups     int    `json:"groups"`
}

func (s policySummary) String() string {
	return fmt.Sprintf("%s: ok: version %s, %s, %s, %s, %s", s.File, s.Version,
		count(s.Classes, "class", "classes"), count(s.Tiers, "tier", "tiers"),
		count(s.Principals, "principal", "principals"), count(s.Groups, "group", "groups"))
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// policyProblem is one problem of a policy file, for scripts.
type policyProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

// policyValidation is the answer of policy validate over all its files.
type policyValidation struct {
	Valid    bool            `json:"valid"`
	Policies []policySummary `json:"policies"` // the valid ones
	Problems []policyProblem `json:"problems"`
}

func newPolicyValidate(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE…",
		Short: "Check policy files without a cluster",
		Long: `Check policy files without a cluster, and tell all problems at once: one per line on standard
error, as file:line:column: message. The file - is standard input.`,
		Example: "  quorate policy validate policy.yaml\n  generate | quorate policy validate -",
		Args:    usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, files []string) error {
			v, err := validatePolicies(cmd.InOrStdin(), files)
			if err != nil {
				return err
			}
			if o.output == outputTable {
				v.printLines(cmd.OutOrStdout(), cmd.ErrOrStderr())
			} else if err := o.output.print(cmd.OutOrStdout(), v, nil); err != nil {
				return err
			}
			if !v.Valid {
				return errReported
			}
			return nil
		},
	}
}

// validatePolicies checks each file. The error is that a file cannot be read.
func validatePolicies(stdin io.Reader, files []string) (*policyValidation, error) {
	v := &policyValidation{Valid: true, Policies: []policySummary{}, Problems: []policyProblem{}}
	for _, file := range files {
		src, name, err := readPolicy(stdin, file)
		if err != nil {
			return nil, err
		}
		p, err := policy.Parse(name, src)
		var problems policy.Problems
		switch {
		case errors.As(err, &problems):
			v.Valid = false
			for _, pr := range problems {
				v.Problems = append(v.Problems, policyProblem(pr))
			}
		case err != nil:
			return nil, err
		default:
			v.Policies = append(v.Policies, policySummary{
				File: name, Version: p.Version, Classes: len(p.Classes), Tiers: len(p.Tiers),
				Principals: len(p.Principals), Groups: len(p.Groups),
			})
		}
	}
	return v, nil
}

func (v *policyValidation) printLines(stdout, stderr io.Writer) {
	for _, s := range v.Policies {
		fmt.Fprintln(stdout, s)
	}
	for _, p := range v.Problems {
		fmt.Fprintln(stderr, policy.Problem(p))
	}
}

// readPolicy reads a policy file, or standard input for -, and returns the name to call it by. It
// reads at most one byte more than a policy may have, which policy.Parse then refuses.
func readPolicy(stdin io.Reader, file string) (src []byte, name string, err error) {
	name = file
	if file == stdinName {
		name = "stdin"
	} else {
		f, err := os.Open(file)
		if err != nil {
			return nil, "", fmt.Errorf("cannot read the policy: %w", err)
		}
		defer f.Close() //nolint:errcheck // only read from
		stdin = f
	}
	src, err = io.ReadAll(io.LimitReader(stdin, policy.MaxSourceBytes+1))
	if err != nil {
		return nil, "", fmt.Errorf("cannot read the policy %s: %w", name, err)
	}
	return src, name, nil
}

// parsePolicy parses a policy that a command needs in order to go on; its error is one line.
func parsePolicy(name string, src []byte) (*policy.Policy, error) {
	p, err := policy.Parse(name, src)
	var problems policy.Problems
	if !errors.As(err, &problems) || len(problems) == 0 {
		return p, err
	}
	more := ""
	if n := len(problems) - 1; n > 0 {
		more = fmt.Sprintf(" (and %s; quorate policy validate tells all)",
			count(n, "more problem", "more problems"))
	}
	return nil, fmt.Errorf("%v%s", problems[0], more)
}
