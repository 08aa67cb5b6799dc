package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/trace"
)

func newSimulate(o *options) *cobra.Command {
	var policyFile, traceFile, outFile string
	cmd := &cobra.Command{
		Use:   "simulate --policy FILE --trace FILE [--out FILE]",
		Short: "Replay a recorded trace through the real state machine",
		Long: `Replay a recorded trace of checks, one JSON object per line, through the state machine that
decides in a cluster, at the times that the trace gives. The answers are JSON lines on standard
output, or in the file of --out; a summary goes to standard error. The trace - is standard input.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if policyFile == "" || traceFile == "" {
				return usagef(cmd, "--policy and --trace are required")
			}
			if policyFile == stdinName && traceFile == stdinName {
				return usagef(cmd, "--policy and --trace cannot both be standard input")
			}
			src, name, err := readPolicy(cmd.InOrStdin(), policyFile)
			if err != nil {
				return err
			}
			first, err := parsePolicy(name, src)
			if err != nil {
				return err
			}
			if outFile != "" && policyFile != stdinName && sameFile(outFile, policyFile) {
				return fmt.Errorf("--out %s is the policy itself: name another file", outFile)
			}
			s := newSimulation(first)
			err = s.replayFiles(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), traceFile, outFile)
			if err != nil {
				return err
			}
			return s.summarize(cmd.ErrOrStderr(), o.output)
		},
	}
	cmd.Flags().StringVar(&policyFile, "policy", "", "policy file that is revision 1")
	cmd.Flags().StringVar(&traceFile, "trace", "", "trace to replay")
	cmd.Flags().StringVar(&outFile, "out", "", "file for the answers, instead of standard output")
	return cmd
}

// The one partition of a simulation lives in one term and owns every slot in one epoch.
const (
	simulatedTerm  = 1
	simulatedEpoch = fsm.Epoch(1)
)

// simulation is a partition without a cluster, driven by a trace.
type simulation struct {
	machine  *fsm.Machine
	policy   *policy.Policy // in force, or to be at the birth
	revision fsm.Revision
	tally    map[outcome]int64
}

// outcome is what the summary counts by: the class that counted, the answer, the limit that denied.
type outcome struct {
	class, answer, limit string
}

func newSimulation(first *policy.Policy) *simulation {
	return &simulation{machine: fsm.New(), policy: first, revision: 1, tally: map[outcome]int64{}}
}

// replayFiles opens what is to be read and written, and replays.
func (s *simulation) replayFiles(
	ctx context.Context, in io.Reader, out io.Writer, traceFile, outFile string,
) (err error) {
	name := "stdin"
	if traceFile != stdinName {
		f, err := os.Open(traceFile)
		if err != nil {
			return fmt.Errorf("cannot read the trace: %w", err)
		}
		defer f.Close() //nolint:errcheck // only read from
		in, name = f, traceFile
	}
	if outFile != "" {
		if sameFile(outFile, traceFile) {
			return fmt.Errorf("--out %s is the trace itself: name another file", outFile)
		}
		f, createErr := os.Create(outFile)
		if createErr != nil {
			return fmt.Errorf("cannot write the answers: %w", createErr)
		}
		defer func() { err = cmp.Or(err, f.Close()) }()
		out = f
	}
	buffered := bufio.NewWriterSize(out, 64<<10)
	err = s.replay(ctx, trace.NewReader(name, in), name, trace.NewWriter(buffered))
	// What was answered before an error is still worth having.
	if flushErr := buffered.Flush(); err == nil && flushErr != nil {
		return fmt.Errorf("cannot write the answers: %w", flushErr)
	}
	return err
}

// sameFile reports whether two paths name one file that exists.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}

// replay answers the lines of a trace until its end, or ctx's.
func (s *simulation) replay(ctx context.Context, r *trace.Reader, name string, w *trace.Writer) error {
	for {
		if err := ctx.Err(); err != nil {
			return errors.New("interrupted: the answers are incomplete")
		}
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if line.Policy != nil {
			where := fmt.Sprintf("%s:%d: policy", name, line.Number)
			next, err := parsePolicy(where, line.Policy)
			if err != nil {
				return err
			}
			s.install(line.At, next)
			continue
		}
		if err := w.Write(s.answer(line)); err != nil {
			return fmt.Errorf("cannot write the answers: %w", err)
		}
	}
}

// install puts the next revision in force.
func (s *simulation) install(at fsm.Time, next *policy.Policy) {
	s.bear(at)
	s.policy = next
	s.revision++
	install := fsm.NewInstall(s.revision, next)
	s.step(&fsm.Entry{Kind: fsm.KindInstall, Stamp: at, Install: &install})
}

// answer decides the check of a line. A malformed one is no entry and advances no time.
func (s *simulation) answer(line *trace.Line) trace.Answer {
	id := line.Check.DecisionID
	if line.Malformed != nil {
		s.tally[outcome{class: "-", answer: fsm.ReasonInvalidArgument.String()}]++
		return trace.MalformedAnswer(id)
	}
	s.bear(line.At)
	check := *line.Check
	check.RouteEpoch = simulatedEpoch
	answers := s.step(&fsm.Entry{Kind: fsm.KindBatch, Stamp: line.At, Checks: []fsm.Check{check}})
	d := &answers.Decisions[0]
	s.count(check.Class, d)
	return trace.NewAnswer(id, d)
}

// bear makes the partition at the first entry.
func (s *simulation) bear(at fsm.Time) {
	if s.machine.Born() {
		return
	}
	s.step(&fsm.Entry{Kind: fsm.KindBirth, Stamp: at, Birth: &fsm.Birth{
		Cluster:   "simulation",
		Partition: "simulation",
		Owned: []fsm.OwnedRange{{
			SlotRange: fsm.SlotRange{First: 0, Last: fsm.NumSlots - 1}, Epoch: simulatedEpoch,
		}},
		Bounds:  fsm.DefaultBounds(),
		Install: fsm.NewInstall(s.revision, s.policy),
	}})
}

func (s *simulation) step(e *fsm.Entry) *fsm.Answers {
	e.Term = simulatedTerm
	return s.machine.Step(simulatedTerm, e)
}

func (s *simulation) count(apiClass string, d *fsm.Decision) {
	class, _ := s.policy.ClassOf(apiClass)
	o := outcome{class: class, answer: d.Reason.String(), limit: d.Limit}
	if d.Replayed {
		o.answer += " (replayed)"
	}
	s.tally[o]++
}

// simulationRow is one line of the summary.
type simulationRow struct {
	Class  string `json:"class"`
	Answer string `json:"answer"`
	Limit  string `json:"limit,omitempty"`
	Checks int64  `json:"checks"`
}

// summarize prints how often each class was allowed, and denied by which limit.
func (s *simulation) summarize(w io.Writer, format outputFormat) error {
	keys := slices.SortedFunc(maps.Keys(s.tally), func(a, b outcome) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.answer, b.answer), cmp.Compare(a.limit, b.limit))
	})
	rows := make([]simulationRow, len(keys))
	for i, k := range keys {
		rows[i] = simulationRow{Class: k.class, Answer: k.answer, Limit: k.limit, Checks: s.tally[k]}
	}
	return format.print(w, rows, func(t table.Writer) {
		t.AppendHeader(table.Row{"class", "answer", "limit", "checks"})
		for _, r := range rows {
			t.AppendRow(table.Row{r.Class, r.Answer, cmp.Or(r.Limit, "-"), r.Checks})
		}
	})
}
