package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/bench/capacity"
	"github.com/quorate/quorate/bench/chart"
	"github.com/quorate/quorate/policy"
)

func newCapacity(o *options) *cobra.Command {
	n := capacity.Need{Window: time.Minute, ReplayHorizon: 30 * time.Second}
	var window, horizon string
	var figures bool
	cmd := &cobra.Command{
		Use:   "capacity --rps N --principals N --limit N --window W",
		Short: "Say how large a cluster has to be for a load",
		Long: `capacity prints how many owners and nodes a load needs, with memory, network and disk, by arithmetic from
measured figures; --figures prints those, with their sources. It asks no cluster.`,
		Example: `  quorate capacity --rps 50000 --principals 1000000 --limit 100 --window 60s
  quorate capacity --rps 1e7 --principals 1e8 --limit 60 --window 60s --denied 0.3 --hinted 0.9 --cores 32`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := capacity.Default()
			if figures {
				return o.printFigures(cmd, f.List())
			}
			for _, name := range []string{"rps", "principals", "limit", "window"} {
				if !cmd.Flags().Changed(name) {
					return usagef(cmd, "--%s is missing: say what the cluster is for", name)
				}
			}
			var err error
			if n.Window, err = benchDuration(window); err != nil {
				return usagef(cmd, "--window: %v", err)
			}
			if n.ReplayHorizon, err = benchDuration(horizon); err != nil {
				return usagef(cmd, "--replay-horizon: %v", err)
			}
			p, err := f.Plan(n)
			if err != nil {
				return usagef(cmd, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
			}
			return o.printPlan(cmd, p, &f)
		},
	}
	flags := cmd.Flags()
	flags.Float64Var(&n.RPS, "rps", 0, "checks per second of all gateways")
	flags.Float64Var(&n.Principals, "principals", 0, "principals with admissions within the window")
	flags.Float64Var(&n.Limit, "limit", 0, "how much each principal may consume in the window")
	flags.StringVar(&window, "window", "", "the limit's window, such as 60s or 1d")
	flags.Float64Var(&n.DeniedShare, "denied", 0, "share of the checks that is denied, 0 to 1")
	flags.Float64Var(&n.HintedShare, "hinted", 0, "share of the denied checks that deny hints answer, 0 to 1")
	flags.StringVar(&horizon, "replay-horizon", "30s", "how long a decision is remembered by its id")
	flags.IntVar(&n.Cores, "cores", 8, "processors of a node")
	flags.BoolVar(&figures, "figures", false, "print the figures that the arithmetic rests on, and their sources")
	return cmd
}

func (o *options) printFigures(cmd *cobra.Command, list []capacity.Figure) error {
	return o.output.print(cmd.OutOrStdout(), list, func(t table.Writer) {
		t.AppendHeader(table.Row{"figure", "value", "unit", "source"})
		for _, f := range list {
			source := f.Source
			if !f.Measured {
				source = "not measured: " + source
			}
			t.AppendRow(table.Row{f.Name, chart.Short(f.Value), f.Unit, source})
		}
	})
}

func (o *options) printPlan(cmd *cobra.Command, p *capacity.Plan, f *capacity.Figures) error {
	err := o.output.print(cmd.OutOrStdout(), p, func(t table.Writer) {
		t.AppendHeader(table.Row{"what", "how much", "why"})
		row := func(what, much, why string, args ...any) {
			t.AppendRow(table.Row{what, much, fmt.Sprintf(why, args...)})
		}
		short := chart.Short
		row("checks at owners", short(p.OwnerRPS)+"/s", "of %s/s, after deny hints", short(p.Need.RPS))
		row("allowed", short(p.AllowedRPS)+"/s", "%s live admissions each, at most %s", short(p.PairsPerKey),
			short(p.Need.Limit))
		row("owners", fmt.Sprint(p.Owners), "for %s; an owner is planned at %s/s", p.OwnersFor,
			short(f.OwnerPerS.Value*f.Utilisation.Value))
		row("nodes", fmt.Sprint(p.Nodes), "for %s; %d cores each", p.NodesFor, p.Need.Cores)
		row("CPU of the nodes", short(p.NodeCores)+" cores", "leader %sµs and two followers %sµs per decision",
			short(f.LeaderCPU.Value), short(f.FollowerCPU.Value))
		row("CPU of the gateways", short(p.GatewayCores)+" cores", "the SDK's part")
		row("memory of a node", short(p.NodeMemoryBytes)+"B", "keys %sB and replay records %sB on all replicas, times %s",
			short(p.KeyMemoryBytes), short(p.RecordMemoryBytes), short(f.MemoryFactor.Value))
		row("network of a node", short(p.NodeNetBytesPerS)+"B/s", "gateways %sB/s and replicas %sB/s in all",
			short(p.AskBytesPerS), short(p.ReplicateBytesPerS))
		row("log of a node", short(p.NodeLogBytesPerS)+"B/s", "written and synced")
	})
	if err == nil && p.CappedRPS > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"the limit admits %s/s less than was asked for: those are denied; say so with --denied\n", chart.Short(p.CappedRPS))
	}
	return err
}

// benchDuration reads a duration as a policy has it.
func benchDuration(s string) (time.Duration, error) {
	nanos, err := policy.ParseDuration(s)
	return time.Duration(nanos), err
}
