package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the next one ends the process at once, and the nodes with it.
	context.AfterFunc(ctx, stop)
	if status, done := inOwnMounts(ctx, os.Args[1:]); done {
		os.Exit(status) //nolint:forbidigo // this is main
	}
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr)) //nolint:forbidigo // this is main
}

// The exit statuses.
const (
	exitBroken = 1
	exitUsage  = 2
)

// errBroken ends the program after a verdict that has been printed.
var errBroken = errors.New("the run did not pass")

// usageError is an error of whoever types.
type usageError struct{ error }

// command is the whole program. It returns the exit status.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use: "jepsen", Short: "Run the chaos suite, and judge what it saw",
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return usageError{fmt.Errorf("unknown command %q", args[0])}
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newRun(), newCheck(), newList()) //nolint:contextcheck // cobra hands the context to RunE itself
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errBroken):
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "jepsen: %v; see jepsen --help\n", err)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "jepsen: %s\n", strings.TrimSpace(err.Error()))
	}
	return exitBroken
}

// exactly wants so many arguments.
func exactly(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("%s: want %s, not %d arguments", cmd.Name(), what, len(args))}
		}
		return nil
	}
}
