package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func newPolicyRollback(o *options) *cobra.Command {
	comment, wait := "", false
	cmd := &cobra.Command{
		Use:   "rollback REVISION",
		Short: "Put an older revision's policy in force again",
		Long: `rollback puts the policy of REVISION in force again, as a revision of its own. Usage is kept: nothing that was
counted is forgotten. It is refused when another revision comes in force while it works.`,
		Args: usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := revisionArg(cmd, args, 0)
			if err != nil {
				return err
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				base, err := inForce(ctx, s)
				if err != nil {
					return err
				}
				r, err := call(ctx, s, s.RollbackPolicy,
					&quoratev1.RollbackPolicyRequest{To: to, Base: base.GetNumber(), Comment: comment})
				if err != nil {
					return orLook(err)
				}
				return o.finish(ctx, cmd, s, publishedOf(r), wait)
			})
		},
	}
	addComment(cmd, &comment)
	addWait(cmd, &wait)
	return cmd
}

// orLook adds to an error of unknown outcome how to find out.
func orLook(err error) error {
	if quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown {
		return fmt.Errorf("%w: `quorate policy list` tells whether it is in force", err)
	}
	return err
}

func newClass(o *options) *cobra.Command {
	return newGroup("class", "Switch classes off and on", newClassSwitch(o, true), newClassSwitch(o, false))
}

// newClassSwitch makes the command that disables a class, or the one that enables it.
func newClassSwitch(o *options, disabled bool) *cobra.Command {
	comment, wait := "", false
	cmd := &cobra.Command{
		Use:   "enable CLASS",
		Short: "Switch a class on again",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.SwitchClass,
					&quoratev1.SwitchClassRequest{ApiClass: args[0], Disabled: disabled, Comment: comment})
				if err != nil {
					return orLook(err)
				}
				return o.finish(ctx, cmd, s, publishedOf(r), wait)
			})
		},
	}
	if disabled {
		cmd.Use, cmd.Short = "disable CLASS", "Switch a class off: all its requests are denied"
	}
	cmd.Long = cmd.Short + `.
CLASS is a listed class, or default for all that are not listed. It is a revision of its own, made on whichever is in
force.`
	addComment(cmd, &comment)
	addWait(cmd, &wait)
	return cmd
}
