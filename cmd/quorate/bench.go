package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/bench"
	"github.com/quorate/quorate/sdk"
)

const (
	// benchClients are the clients of a closed loop, and benchOpenClients those of an open one, unless they are given.
	benchClients     = 256
	benchOpenClients = 4096
	// maxConnections bounds the clients of the SDK; each has a connection to each node.
	maxConnections = 64
)

// benchFlags are the flags of bench.
type benchFlags struct {
	clients          int
	rate             float64
	sweep            string
	keys             int
	prefix, class    string
	duration, warmUp time.Duration
	zipf, exhausted  float64
	connections      int
	hints            bool
	svg              string
	pids             []int
}

func newBench(o *options) *cobra.Command {
	f := &benchFlags{}
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Put a load on a cluster, and measure",
		Long: `bench asks a running cluster through the SDK, as gateways do, and prints decisions per second and latencies.
--clients N is a closed loop: N clients, each of which asks again when it was answered. --rate R is an open one: R
checks a second are due whatever the cluster does, at most --clients of them are under way, and a latency runs from
when the check was due. --sweep FROM,TO,STEPS is an open loop at several rates; --svg FILE draws their latencies.

It consumes: the principals are --prefix and a number, and the class's policy decides what they are allowed. Give the
class a limit with room, and a timeout that does not cut off what is to be measured. What was denied a moment ago is
asked again, unless --hints lets the SDK answer it, as a gateway's would.

Ctrl-C ends it early, and prints what was measured. Exit status 4 means that nothing could be decided.`,
		Example: `  quorate bench --clients 256 --keys 100000 --class convert --duration 10s
  quorate bench --rate 20000 --zipf 1.1 --exhausted 0.2 -o json
  quorate bench --sweep 10000,100000,10 --svg latency.svg`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.bench(cmd, f) },
	}
	flags := cmd.Flags()
	flags.IntVar(&f.clients, "clients", 0, fmt.Sprintf("checks under way at most (default %d; with --rate or --sweep %d)",
		benchClients, benchOpenClients))
	flags.Float64Var(&f.rate, "rate", 0, "checks per second of an open loop (default: a closed loop)")
	flags.StringVar(&f.sweep, "sweep", "", "open loops at several rates: FROM,TO,STEPS")
	flags.IntVar(&f.keys, "keys", 10_000, "number of principals")
	flags.StringVar(&f.prefix, "prefix", "bench-", "what the principals' names begin with")
	flags.StringVar(&f.class, "class", "default", "class of each check")
	flags.DurationVar(&f.duration, "duration", 10*time.Second, "how long to measure, at each rate of a sweep")
	flags.DurationVar(&f.warmUp, "warm-up", 2*time.Second, "how long to load before measuring")
	flags.Float64Var(&f.zipf, "zipf", 0, "exponent of the principals' popularity (default: all alike)")
	flags.Float64Var(&f.exhausted, "exhausted", 0, "share of the principals whose allowance is used up first, 0 to 1")
	flags.IntVar(&f.connections, "connections", 1, "clients of the SDK, each with its own connections")
	flags.BoolVar(&f.hints, "hints", false, "let the SDK answer denied principals by itself, as in a gateway")
	flags.StringVar(&f.svg, "svg", "", "file for a picture of latency against load; with --sweep")
	flags.IntSliceVar(&f.pids, "node-pids", nil, "processes on this machine whose CPU is to be counted, pid[,…]")
	return cmd
}

// plan makes the load that the flags ask for, without its target, and the sweep; nil for none.
func (f *benchFlags) plan(cmd *cobra.Command) (l bench.Load, s *bench.Sweep, err error) {
	given := cmd.Flags().Changed
	if f.sweep != "" {
		if s, err = parseSweep(f.sweep); err != nil {
			return l, nil, usagef(cmd, "--sweep: %v", err)
		}
	}
	switch {
	case given("rate") && s != nil:
		return l, nil, usagef(cmd, "--rate and --sweep both say how much is due: give one")
	case given("rate") && f.rate <= 0:
		return l, nil, usagef(cmd, "--rate is %v: give checks per second, above 0, or leave it out", f.rate)
	case f.svg != "" && s == nil:
		return l, nil, usagef(cmd, "--svg draws a sweep: give --sweep FROM,TO,STEPS too")
	case f.connections < 1 || f.connections > maxConnections:
		return l, nil, usagef(cmd, "--connections is %d: use 1 to %d", f.connections, maxConnections)
	case f.class == "":
		return l, nil, usagef(cmd, "--class is empty: name a class of the policy")
	}
	clients := f.clients
	if !given("clients") {
		clients = benchClients
		if f.rate > 0 || s != nil {
			clients = benchOpenClients
		}
	}
	l = bench.Load{
		Clients: clients, RatePerS: f.rate, WarmUp: f.warmUp, Duration: f.duration, PIDs: f.pids,
		Keys: bench.Keys{N: f.keys, Prefix: f.prefix, ZipfS: f.zipf, ExhaustedShare: f.exhausted},
	}
	if err := l.Validate(); err != nil {
		return l, nil, usagef(cmd, "%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return l, s, nil
}

func parseSweep(text string) (*bench.Sweep, error) {
	fields := strings.Split(text, ",")
	if len(fields) != 3 {
		return nil, fmt.Errorf("%q is not FROM,TO,STEPS", text)
	}
	s := &bench.Sweep{}
	var errs [3]error
	s.FromPerS, errs[0] = strconv.ParseFloat(strings.TrimSpace(fields[0]), 64)
	s.ToPerS, errs[1] = strconv.ParseFloat(strings.TrimSpace(fields[1]), 64)
	s.Steps, errs[2] = strconv.Atoi(strings.TrimSpace(fields[2]))
	if errors.Join(errs[:]...) != nil {
		return nil, fmt.Errorf("%q is not FROM,TO,STEPS in numbers", text)
	}
	return s, s.Validate()
}

// bench runs the load that the flags ask for, and prints what came of it.
func (o *options) bench(cmd *cobra.Command, f *benchFlags) (err error) {
	l, sweep, err := f.plan(cmd)
	if err != nil {
		return err
	}
	quota, err := o.benchTarget(cmd, f, l.Clients)
	if err != nil {
		return err
	}
	defer func() {
		for _, c := range quota.Clients {
			err = errors.Join(err, c.Close())
		}
	}()
	l.Target = quota
	if err := o.benchReady(cmd.Context(), quota); err != nil {
		return err
	}
	var done func()
	l.Progress, done = benchProgress(cmd.ErrOrStderr())
	reports, err := runBench(cmd.Context(), l, sweep)
	done()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	for _, r := range reports {
		r.Class, r.Connections, r.Hints = f.class, f.connections, f.hints
	}
	if f.svg != "" {
		picture := bench.Picture(fmt.Sprintf("Latency against load, %d principals", f.keys), reports)
		if err := os.WriteFile(f.svg, picture, 0o644); err != nil { //nolint:gosec // G306: a picture for everybody
			return fmt.Errorf("--svg: %w", err)
		}
	}
	return o.printBench(cmd, reports, sweep != nil)
}

func runBench(ctx context.Context, l bench.Load, sweep *bench.Sweep) ([]*bench.Report, error) {
	if sweep != nil {
		return sweep.Run(ctx, l)
	}
	r, err := l.Run(ctx)
	if err != nil {
		return nil, err
	}
	return []*bench.Report{r}, nil
}

// benchTarget makes the SDK's clients.
func (o *options) benchTarget(cmd *cobra.Command, f *benchFlags, clients int) (*bench.Quota, error) {
	addrs, err := o.addrs(cmd)
	if err != nil {
		return nil, err
	}
	files, token, err := o.named(cmd)
	if err != nil {
		return nil, err
	}
	if token != "" {
		return nil, usagef(cmd, "bench asks as a gateway does, by a certificate: give --tls-ca, --tls-cert and --tls-key")
	}
	settings := []sdk.Option{sdk.WithMaxInFlight(clients), sdk.WithPrincipalCeiling(0), sdk.WithPrincipalInFlight(0)}
	if !f.hints {
		settings = append(settings, sdk.WithHintCapacity(0))
	}
	if files.CA != "" || files.Cert != "" || files.Key != "" {
		settings = append(settings, sdk.WithTLSFiles(files.CA, files.Cert, files.Key))
	}
	q := &bench.Quota{Class: f.class}
	for range f.connections {
		c, err := sdk.New(addrs, settings...)
		if err != nil {
			for _, made := range q.Clients {
				err = errors.Join(err, made.Close())
			}
			return nil, err
		}
		q.Clients = append(q.Clients, c)
	}
	return q, nil
}

// benchReady waits until each client knows the cluster.
func (o *options) benchReady(ctx context.Context, q *bench.Quota) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	for _, c := range q.Clients {
		if err := c.Ready(ctx); err != nil {
			return unavailable(fmt.Errorf("bench: no node has given its configuration within %s: "+
				"start a cluster with `quorate dev`, or name one with --addr", o.timeout))
		}
	}
	return nil
}

// benchProgress tells the progress in one line that is written over, if w is a terminal; done clears it.
func benchProgress(w io.Writer) (tell func(bench.Progress), done func()) {
	file, ok := w.(*os.File)
	if !ok || !isatty.IsTerminal(file.Fd()) || os.Getenv("TERM") == "dumb" {
		return nil, func() {}
	}
	tell = func(p bench.Progress) {
		fmt.Fprintf(w, "\r\x1b[K%s %3.0f %%  %.0f/s", p.Stage, 100*p.Done, p.PerS)
		if p.P99 > 0 {
			fmt.Fprintf(w, "  p99 %s", p.P99)
		}
	}
	return tell, func() { fmt.Fprint(w, "\r\x1b[K") }
}

// benchView is what is printed: the report, of a sweep the one with the most decisions, and all of them.
type benchView struct {
	*bench.Report
	Points []*bench.Report `json:"points,omitempty"`
}

func (o *options) printBench(cmd *cobra.Command, reports []*bench.Report, swept bool) error {
	best := bench.Best(reports)
	v := benchView{Report: best}
	if swept {
		v.Points = reports
	}
	err := o.output.print(cmd.OutOrStdout(), v, func(t table.Writer) {
		t.AppendHeader(table.Row{
			"due/s", "decisions/s", "p50", "p99", "p99.9", "allowed", "denied", "hinted", "bypassed", "unavailable",
			"errors", "retries", "cpu/decision",
		})
		for _, r := range reports {
			due := "-"
			if r.RatePerS > 0 {
				due = fmt.Sprintf("%.0f", r.RatePerS)
			}
			us := func(n int64) string { return (time.Duration(n) * time.Microsecond).String() }
			t.AppendRow(table.Row{
				due, fmt.Sprintf("%.0f", r.DecisionsPerS), us(r.P50Us), us(r.P99Us), us(r.P999Us), r.Allowed, r.Denied,
				r.Hinted, r.Bypassed, r.Unavailable, r.Errors, r.Retries, cpuText(r),
			})
		}
	})
	if err != nil {
		return err
	}
	for _, r := range reports {
		for _, advice := range r.Advice() {
			fmt.Fprintln(cmd.ErrOrStderr(), advice)
		}
		if r.Interrupted {
			fmt.Fprintf(cmd.ErrOrStderr(), "interrupted: %.1f s were measured\n", r.ElapsedS)
		}
		if r.FirstError != "" {
			fmt.Fprintln(cmd.ErrOrStderr(), "the first error:", r.FirstError)
		}
	}
	if best.Decisions() == 0 && best.Checks() > 0 {
		return unavailable(errors.New("bench: nothing was decided: see `quorate cluster status`"))
	}
	return nil
}

func cpuText(r *bench.Report) string {
	text := fmt.Sprintf("%.1fµs", r.ClientCPUUs)
	if r.NodesCPUUs > 0 {
		text += fmt.Sprintf(" + %.1fµs", r.NodesCPUUs)
	}
	return text
}
