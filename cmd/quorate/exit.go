package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// The exit statuses. They are part of the contract.
const (
	exitDone        = 0 // also: allowed
	exitError       = 1
	exitUsage       = 2
	exitDenied      = 3
	exitUnavailable = 4
)

// statusError is an error that ends the program with a status of its own.
type statusError struct {
	status int
	// err is what is printed; nil where the command has said everything already.
	err error
}

func (e *statusError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *statusError) Unwrap() error { return e.err }

// errDenied ends the program after a denial that has been printed.
var errDenied = &statusError{status: exitDenied}

// errReported ends the program after problems that have been printed.
var errReported = &statusError{status: exitError}

// unavailable marks err as the cluster's inability to answer.
func unavailable(err error) error { return &statusError{status: exitUnavailable, err: err} }

// usagef makes an error of wrong usage of cmd, which refers to the command's help.
func usagef(cmd *cobra.Command, format string, args ...any) error {
	message := strings.TrimSuffix(fmt.Sprintf(format, args...), ".")
	return &statusError{
		status: exitUsage,
		err:    fmt.Errorf("%s; see %s --help", message, cmd.CommandPath()),
	}
}

// usageArgs makes the errors of a check on the number of arguments errors of usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef(cmd, "%v", err)
		}
		return nil
	}
}

// report prints err in one line and returns the exit status.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	status := exitError
	var se *statusError
	if errors.As(err, &se) {
		status = se.status
		if se.err == nil {
			return status
		}
	}
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	fmt.Fprintf(stderr, "quorate: %s\n", strings.Join(lines, "; "))
	return status
}
