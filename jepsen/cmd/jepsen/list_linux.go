package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/run"
	"github.com/quorate/quorate/jepsen/workload"
)

func newList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the mixes, workloads, faults and checkers, and what this machine has",
		Args:  exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			listMixes(table)
			fmt.Fprintln(table, "\nworkload\t")
			for _, k := range workload.Kinds() {
				fmt.Fprintf(table, "  %s\t%s\n", k.Name, k.About)
			}
			fmt.Fprintln(table, "\nchecker\t")
			for _, c := range check.Checkers() {
				fmt.Fprintf(table, "  %s\t%s\n", c.Name, c.Invariant)
			}
			has, why := run.Machine(cmd.Context())
			fmt.Fprintln(table, "\nthis machine has\t")
			for _, what := range slices.Sorted(maps.Keys(has)) {
				word := "yes"
				if !has[what] {
					word = "no: " + strings.ReplaceAll(why[what], "\n", " ")
				}
				fmt.Fprintf(table, "  %s\t%s\n", what, word)
			}
			listFaults(table, has, why)
			return table.Flush()
		},
	}
}

// listFaults lists the kinds of faults, and which of them cannot be made.
func listFaults(out io.Writer, has map[string]bool, why map[string]string) {
	fmt.Fprintln(out, "\nfault\t")
	for _, kind := range run.Kinds() {
		word := "can be made here"
		if not := run.Lacks(kind, os.Getenv(releaseEnvironment), has, why); not != "" {
			word = "left out: " + not
		}
		fmt.Fprintf(out, "  %s\t%s\n", kind, word)
	}
}

func listMixes(out io.Writer) {
	fmt.Fprintln(out, "mix\t")
	for _, m := range run.Mixes() {
		fmt.Fprintf(out, "  %s\t%s\n", m.Name, m.About)
	}
}
