package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/quorate/quorate/bench/chart"
)

// MaxSteps bounds a sweep.
const MaxSteps = 100

// Sweep is a row of open loops at growing rates.
type Sweep struct {
	FromPerS, ToPerS float64
	Steps            int // at least 2
}

// Validate reports what is wrong.
func (s Sweep) Validate() error {
	if !(s.FromPerS > 0 && s.ToPerS > s.FromPerS && s.ToPerS <= MaxRatePerS) || s.Steps < 2 || s.Steps > MaxSteps {
		return fmt.Errorf("a sweep from %v/s to %v/s in %d steps: give growing rates up to %d/s, and 2 to %d steps",
			s.FromPerS, s.ToPerS, s.Steps, MaxRatePerS, MaxSteps)
	}
	return nil
}

// Rates are those of the steps, evenly apart.
func (s Sweep) Rates() (out []float64) {
	for i := range s.Steps {
		out = append(out, s.FromPerS+(s.ToPerS-s.FromPerS)*float64(i)/float64(s.Steps-1))
	}
	return out
}

// Run runs the load at each rate, one after another. Keys are exhausted anew before each. When ctx ends it returns
// the steps that were measured.
func (s Sweep) Run(ctx context.Context, l Load) (out []*Report, err error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	for _, rate := range s.Rates() {
		l.RatePerS = rate
		r, err := l.Run(ctx)
		if errors.Is(err, ErrNothingMeasured) && len(out) > 0 {
			out[len(out)-1].Interrupted = true
			break
		}
		if err != nil {
			return nil, err
		}
		if out = append(out, r); r.Interrupted {
			break
		}
	}
	return out, nil
}

// Best is the report with the most decisions per second; nil of none.
func Best(reports []*Report) (best *Report) {
	for _, r := range reports {
		if best == nil || r.DecisionsPerS > best.DecisionsPerS {
			best = r
		}
	}
	return best
}

// Picture draws the latencies of a sweep against its rates, as SVG.
func Picture(title string, reports []*Report) []byte {
	c := chart.Lines{
		Title: title, X: "checks due per second", Y: "latency from the due instant, ms",
		Lines: []chart.Line{{Name: "99.9 %"}, {Name: "99 %"}, {Name: "median"}},
	}
	for _, r := range reports {
		for i, us := range []int64{r.P999Us, r.P99Us, r.P50Us} {
			c.Lines[i].Points = append(c.Lines[i].Points, chart.Point{X: r.RatePerS, Y: float64(us) / 1000})
		}
	}
	return c.SVG()
}
