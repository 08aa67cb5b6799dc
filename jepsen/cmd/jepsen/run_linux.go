package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorate/quorate/jepsen/run"
)

func newRun() *cobra.Command {
	o := run.Options{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Make a run: a cluster, workloads, faults; and judge it",
		Long: `run makes a cluster of real processes, has workloads ask it, and disturbs it as the mix and the seed say.
Then all is healed, and the cluster must decide again; then all but a core die for good, and it must decide still. What
happened is in the directory, which check judges again. A run that was interrupted is judged by what there was.

A seed draws the same faults for the same mix; when they come beside the checks, the machine decides.`,
		Args: exactly(0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				o.Seed = rand.Uint64N(1 << 32)
			}
			if o.Dir == "" {
				o.Dir = filepath.Join("data", fmt.Sprintf("%s-%d-%s", o.Mix, o.Seed, time.Now().UTC().Format("20060102T150405")))
			}
			if o.Program == "" {
				return usageError{errors.New("name the program with --program: make build-chaos makes bin/quorate-chaos")}
			}
			for _, program := range []*string{&o.Program, &o.Release} {
				if *program == "" {
					continue
				}
				var err error
				if *program, err = filepath.Abs(*program); err != nil {
					return err
				}
				if _, err := os.Stat(*program); err != nil {
					return err
				}
			}
			o.Out = cmd.OutOrStdout()
			fmt.Fprintf(o.Out, "again: jepsen run --mix %s --seed %d --nodes %d; in %s\n", o.Mix, o.Seed, o.Nodes, o.Dir)
			verdict, err := run.Do(cmd.Context(), o)
			if verdict != nil {
				fmt.Fprint(o.Out, verdict)
				fmt.Fprintf(o.Out, "judge it again: jepsen check %s\n", o.Dir)
			}
			if err == nil && !verdict.Passed {
				err = errBroken
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.Mix, "mix", "mixed", "which faults and workloads; see jepsen list")
	flags.Uint64Var(&o.Seed, "seed", 0, "what is drawn from (default: a new one, which is printed)")
	flags.DurationVar(&o.Duration, "duration", 0, "how long faults are made (default: the mix's)")
	flags.IntVar(&o.Nodes, "nodes", 5, "nodes of the cluster")
	flags.StringVar(&o.Dir, "out", "", "directory of the run, with none in it (default: a new one in data)")
	flags.StringSliceVar(&o.Faults, "faults", nil, "kinds of faults, in place of the mix's")
	flags.StringSliceVar(&o.Workloads, "workloads", nil, "workloads, in place of the mix's")
	flags.StringSliceVar(&o.Require, "require", nil, "what the machine must have: namespaces, disks")
	flags.StringVar(&o.Mutant, "mutant", "", "the guard that is switched off in the nodes: the run must then not pass")
	flags.StringVar(&o.Program, "program", os.Getenv("QUORATE_CHAOS_BINARY"),
		"the quorate under test, built with the tag chaos (default: $QUORATE_CHAOS_BINARY)")
	flags.StringVar(&o.Release, "release", os.Getenv(releaseEnvironment),
		"another build of quorate, which nodes run for a while with mixed-versions (default: $"+releaseEnvironment+")")
	return cmd
}

// releaseEnvironment names the variable with the program that is not the suite's own.
const releaseEnvironment = "QUORATE_BINARY"
