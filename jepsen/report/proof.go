package report

import (
	"fmt"
	"math"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/history"
)

// maxDrawn bounds the steps of a proof that are drawn.
const maxDrawn = 60

// proof is a violation with the picture of its steps.
type proof struct {
	check.Violation
	Picture *timeline // nil without instants
	From    time.Duration
	To      time.Duration
}

// known reports whether an instant is one, rather than always or never.
func known(at time.Duration) bool { return at != history.Never && at > math.MinInt64/8 }

// proof draws the steps between which instants they were made, and the faults of that time.
func (g *gathered) proof(v *check.Violation) proof {
	p := proof{Violation: *v, From: history.Never, To: math.MinInt64}
	steps := v.Certificate
	if len(steps) > maxDrawn {
		steps = steps[:maxDrawn]
	}
	for _, s := range steps {
		for _, at := range []time.Duration{s.From, s.To} {
			if known(at) && (s.From != 0 || s.To != 0) {
				p.From, p.To = min(p.From, at), max(p.To, at)
			}
		}
	}
	if p.From > p.To {
		return p
	}
	margin := max((p.To-p.From)/10, time.Millisecond)
	p.From, p.To = p.From-margin, p.To+margin
	a := axis{p.From, p.To}
	p.Picture = &timeline{}
	p.Picture.Ticks = a.ticks()
	y := 0.0
	for _, s := range steps {
		if s.From == 0 && s.To == 0 {
			continue
		}
		x := a.x(s.From)
		p.Picture.Bars = append(p.Picture.Bars, bar{
			X: x, Y: y + 2, W: max(a.x(s.To)-x, 2), H: lane - 4, Class: "step", Title: s.Text,
		})
		p.Picture.Labels = append(p.Picture.Labels, label{y + lane - 4, clip(labelOf(&s), 24)})
		y += lane
	}
	for i := range g.events {
		e := &g.events[i]
		if e.Kind != "fault" || e.At > p.To || max(e.Until, e.At) < p.From || len(p.Picture.Bars) >= 2*maxDrawn {
			continue
		}
		x := a.x(e.At)
		p.Picture.Bars = append(p.Picture.Bars, bar{
			X: x, Y: y + 2, W: max(a.x(e.Until)-x, 2), H: lane - 4, Class: "fault", Title: titleOf(e),
		})
		p.Picture.Labels = append(p.Picture.Labels, label{y + lane - 4, clip(e.What, 24)})
		y += lane
	}
	p.Picture.Height = y
	return p
}

// labelOf is a step in a word.
func labelOf(s *check.Item) string {
	switch {
	case s.ID != "":
		return s.ID
	case s.Group != "":
		return fmt.Sprintf("%s:%d", s.Group, s.Index)
	}
	return "attempts"
}
