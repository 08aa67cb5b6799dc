package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/report"
)

func newCheck() *cobra.Command {
	return &cobra.Command{
		Use:   "check DIR",
		Short: "Judge a saved run again",
		Long: `check judges a run by its directory alone, prints the verdict and leaves it there.
Exit status: 0 all that was judged holds, 1 it does not.`,
		Args: exactly(1, "the directory of a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := check.Run(args[0])
			if err != nil {
				return err
			}
			fmt.Fprint(cmd.OutOrStdout(), v)
			if err := errors.Join(v.Write(args[0]), report.Write(args[0])); err != nil {
				return err
			}
			if !v.Passed {
				return errBroken
			}
			return nil
		},
	}
}
