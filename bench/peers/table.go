package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/bench"
	"github.com/quorate/quorate/bench/chart"
)

// The markers that the result stands between.
const (
	beginMark = "<!-- peers: begin -->\n"
	endMark   = "<!-- peers: end -->\n"
)

// between replaces what stands between the markers.
func between(doc, text string) (string, error) {
	before, rest, ok := strings.Cut(doc, beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !ok || !ended {
		return "", errors.New("the markers for the result are missing: " + strings.TrimSpace(beginMark) + " and " +
			strings.TrimSpace(endMark))
	}
	return before + beginMark + text + endMark + after, nil
}

// median is the middle of values, or the mean of the two middle ones; 0 of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// of are values of a peer's measurements, in the order of the rounds.
func (r *result) of(name string, outstanding int, value func(*bench.Report) float64) (out []float64) {
	for _, s := range r.Samples {
		if s.Peer == name && s.Outstanding == outstanding {
			out = append(out, value(s.Report))
		}
	}
	return out
}

func undecided(r *bench.Report) float64 { return float64(r.Errors + r.Unavailable + r.Bypassed) }

func perS(r *bench.Report) float64 { return r.DecisionsPerS }

// ratio is the median of the rounds' ratios between Quorate's decisions per second and a peer's.
func (r *result) ratio(name string, outstanding int) float64 {
	var out []float64
	theirs := r.of(name, outstanding, perS)
	for i, ours := range r.of(r.peers[0].Name, outstanding, perS) {
		if i < len(theirs) && theirs[i] > 0 {
			out = append(out, ours/theirs[i])
		}
	}
	return median(out)
}

// markdown is the result for a document.
func (r *result) markdown() string {
	var b strings.Builder
	m := &r.Machine
	fmt.Fprintf(&b, "Measured %s on %d × %s, %s, %s; a synced 4 KiB write takes %s. Load average %s before "+
		"and %s after.\n", m.Date, m.Cores, m.CPU, m.Kernel, m.Go, m.Sync.Round(time.Microsecond), m.Load, m.LoadAfter)
	fmt.Fprintf(&b, "Medians of %d round(s) of %s after %s of warm-up; %d principals, %d per rolling %s.\n\n", r.Rounds,
		r.Duration, r.WarmUp, keys, limit, window)
	b.WriteString("| outstanding | product | decisions/s | lowest to highest | p50 | p99 | " +
		"CPU per decision, servers + client | no decision | Quorate is |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|\n")
	for _, n := range r.Outstanding {
		for i, p := range r.peers {
			r.row(&b, i, p, n)
		}
	}
	for _, missing := range r.Missing {
		b.WriteString("\n" + missing + "\n")
	}
	b.WriteString("\n| product | an allow is on | it does not promise |\n|---|---|---|\n")
	for _, p := range r.peers {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", p.Name, p.Durable, p.Not)
	}
	return b.String()
}

func (r *result) row(b *strings.Builder, i int, p peer, n int) {
	rates := r.of(p.Name, n, perS)
	if len(rates) == 0 {
		return
	}
	ms := func(value func(*bench.Report) int64) string {
		us := median(r.of(p.Name, n, func(r *bench.Report) float64 { return float64(value(r)) }))
		return fmt.Sprintf("%.2f ms", us/1000)
	}
	cpu := func(value func(*bench.Report) float64) float64 { return median(r.of(p.Name, n, value)) }
	lost := 0.0
	for _, v := range r.of(p.Name, n, undecided) {
		lost += v
	}
	than := "-"
	if i > 0 {
		than = fmt.Sprintf("%.2f ×", r.ratio(p.Name, n))
	}
	fmt.Fprintf(b, "| %d | %s | %.0f | %.0f to %.0f | %s | %s | %.1f + %.1f µs | %.0f | %s |\n", n, p.Name, median(rates),
		slices.Min(rates), slices.Max(rates), ms(func(r *bench.Report) int64 { return r.P50Us }),
		ms(func(r *bench.Report) int64 { return r.P99Us }), cpu(func(r *bench.Report) float64 { return r.NodesCPUUs }),
		cpu(func(r *bench.Report) float64 { return r.ClientCPUUs }), lost, than)
}

// picture shows the decisions per second.
func (r *result) picture() []byte {
	c := chart.Bars{Title: fmt.Sprintf("Decisions per second, %d cores, median of %d round(s)", r.Machine.Cores, r.Rounds)}
	for _, n := range r.Outstanding {
		for _, p := range r.peers {
			if rates := r.of(p.Name, n, perS); len(rates) > 0 {
				c.Bars = append(c.Bars, chart.Bar{Name: fmt.Sprintf("%s, %d outstanding", p.Name, n), Value: median(rates)})
			}
		}
	}
	return c.SVG()
}
