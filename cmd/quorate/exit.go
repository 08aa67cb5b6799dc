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
		err := check(cmd, args)
		if missing := argNames(cmd); err != nil && len(args) < len(missing) {
			return errMissing(cmd, missing[len(args):])
		}
		if err != nil {
			return usagef(cmd, "%v", err)
		}
		return nil
	}
}

// filledArgs is usageArgs for a command none of whose arguments may be empty.
func filledArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	counted := usageArgs(check)
	return func(cmd *cobra.Command, args []string) error {
		if err := counted(cmd, args); err != nil {
			return err
		}
		names := argNames(cmd)
		for i, arg := range args {
			if arg == "" && i < len(names) {
				return errMissing(cmd, names[i:i+1])
			}
		}
		return nil
	}
}

// argWords is what those arguments are called that are more than the word in the usage.
var argWords = map[string]string{
	"ID": "the id", "NAME": "the NAME", "INTO": "the partition that gets its slots", "TO": "the partition that gets them",
	"FIRST-LAST": "the slots, FIRST-LAST", "PLAN": "the plan by its number",
}

// argNames is what the arguments are called that a command must have, in their order, as its usage lists them.
func argNames(cmd *cobra.Command) (out []string) {
	for _, word := range strings.Fields(cmd.Use)[1:] {
		if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-…") != "" || strings.HasPrefix(word, "--") {
			break // what may be left out, and flags
		}
		name, ok := argWords[word]
		if !ok {
			name = "the " + strings.ToLower(strings.TrimSuffix(word, "…"))
		}
		out = append(out, name)
	}
	return out
}

// errMissing says which arguments there have to be.
func errMissing(cmd *cobra.Command, names []string) error {
	text := names[0]
	if last := len(names) - 1; last > 0 {
		text = strings.Join(names[:last], ", ") + " and " + names[last]
	}
	return usagef(cmd, "%s: name %s", cmd.Name(), text)
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
