package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	left  = 150.0 // where time begins on a picture
	width = 1000.0
	lane  = 16.0
	// maxBars bounds the bars of a lane.
	maxBars = 600
)

// bar is a rectangle.
type bar struct {
	X, Y, W, H float64
	Class      string
	Title      string
}

// tick is an instant on an axis.
type tick struct {
	X    float64
	Text string
}

// label is a text.
type label struct {
	Y    float64
	Text string
}

// chart is bars over time.
type chart struct {
	Height float64
	Bars   []bar
	Ticks  []tick
	Top    string // what the highest stands for
	Keys   []key
}

// Box is the part of the plane that the chart is in, with room for the axis.
func (c *chart) Box() string {
	const above = 14
	return fmt.Sprintf("0 %d %.0f %.0f", -above, width, c.Height+above)
}

// key says what a colour means.
type key struct{ Class, Text string }

// timeline is lanes of what went on.
type timeline struct {
	chart
	Labels []label
}

// axis translates instants.
type axis struct{ from, to time.Duration }

func (a axis) x(at time.Duration) float64 {
	at = min(max(at, a.from), a.to)
	return left + (width-left)*float64(at-a.from)/float64(max(a.to-a.from, 1))
}

// ticks are instants in even steps.
func (a axis) ticks() (out []tick) {
	const about = 8
	step, span := time.Nanosecond, a.to-a.from
	for _, factor := range slices.Collect(steps) {
		if step = factor; span/step <= about {
			break
		}
	}
	for at := a.from + (step-a.from%step)%step; at <= a.to && len(out) < 4*about; at += step {
		out = append(out, tick{a.x(at), at.String()})
	}
	return out
}

// steps are 1, 2 and 5 times the powers of ten, in nanoseconds, and minutes and hours above a minute.
func steps(yield func(time.Duration) bool) {
	for nanos := int64(1); nanos < int64(time.Minute); nanos *= 10 {
		for _, n := range []int64{1, 2, 5} {
			if n*nanos < int64(time.Minute) && !yield(time.Duration(n*nanos)) {
				return
			}
		}
	}
	for _, unit := range []time.Duration{time.Minute, time.Hour} {
		for _, n := range []int64{1, 2, 5, 10, 30} {
			if !yield(time.Duration(n * int64(unit))) {
				return
			}
		}
	}
}

// rates is how much was asked and answered per second.
func (g *gathered) rates() *chart {
	const height = 160.0
	most := 1
	for _, r := range g.asked {
		most = max(most, r.allowed+r.denied+r.replayed+r.refused+r.unknown)
	}
	part := g.span / parts
	perSecond := func(n int) float64 { return float64(n) / max(part.Seconds(), 1e-9) }
	a := axis{0, g.span}
	c := &chart{
		Height: height, Ticks: a.ticks(), Top: fmt.Sprintf("%.0f/s", perSecond(most)),
		Keys: []key{
			{"allowed", "allowed"}, {"denied", "denied"}, {"replayed", "answered from a record"},
			{"refused", "refused"}, {"unknown", "unknown"},
		},
	}
	for i, r := range g.asked {
		y := height
		for k, n := range []int{r.allowed, r.denied, r.replayed, r.refused, r.unknown} {
			if n == 0 {
				continue
			}
			h := height * float64(n) / float64(most)
			y -= h
			c.Bars = append(c.Bars, bar{
				X: a.x(part * time.Duration(i)), Y: y, W: (width - left) / parts, H: h, Class: c.Keys[k].Class,
				Title: fmt.Sprintf("%s: %.1f/s %s", seconds(part*time.Duration(i)), perSecond(n), c.Keys[k].Text),
			})
		}
	}
	return c
}

// lanes of a timeline, in this order.
type lanes struct {
	axis
	of map[string][]history.Event
}

// timeline is which phases, faults, leaders, policies and plans there were.
func (g *gathered) timeline() *timeline {
	l := lanes{axis{0, g.span}, map[string][]history.Event{}}
	for _, e := range g.events {
		switch e.Kind {
		case "phase":
			l.add("0 phases", e)
		case "fault":
			l.add("1 "+e.What, e)
		case "end":
			l.add("2 ends of processes", e)
		case "plan", "operate":
			l.add("3 "+map[string]string{"plan": "plans", "operate": "operator"}[e.Kind], e)
		case "leader":
			l.add("5 leader of "+e.Group, e)
		case "epoch":
			l.add("6 epochs", e)
		}
	}
	for _, r := range g.revisions {
		e := history.Event{
			At: max(r.Began, 0), Until: r.Active, What: fmt.Sprintf("revision %d, %s", r.Number, r.Policy.Version),
		}
		if r.Active == history.Never {
			e.Until = g.span
		}
		l.add("4 policies", e)
	}
	for _, group := range slices.Sorted(maps.Keys(g.applied)) {
		of := g.applied[group]
		for term, at := range of.terms {
			l.add("7 terms of "+group, history.Event{At: at, What: fmt.Sprintf("term %d", term)})
		}
		for _, at := range of.plans {
			l.add("8 moves to "+group, history.Event{At: at, What: "slots came"})
		}
	}
	return l.draw()
}

func (l *lanes) add(name string, e history.Event) { l.of[name] = append(l.of[name], e) }

// draw draws the lanes. What would be drawn in one place is drawn once.
func (l *lanes) draw() *timeline {
	t := &timeline{}
	t.Ticks = l.ticks()
	for i, name := range slices.Sorted(maps.Keys(l.of)) {
		y := float64(i) * lane
		events := l.of[name]
		slices.SortStableFunc(events, func(a, b history.Event) int { return cmp.Compare(a.At, b.At) })
		t.Labels = append(t.Labels, label{y + lane - 4, fmt.Sprintf("%s (%d)", name[2:], len(events))})
		class := map[byte]string{'0': "phase", '1': "fault", '2': "end"}[name[0]]
		lasts := name[0] == '5' || name[0] == '7' // until the next
		first := len(t.Bars)
		for k := range events {
			e := &events[k]
			until := e.Until
			if lasts {
				if until = l.to; k+1 < len(events) {
					until = events[k+1].At
				}
			}
			b := bar{X: l.x(e.At), Y: y + 2, H: lane - 4, Class: cmp.Or(class, "other"), Title: titleOf(e)}
			if lasts && k%2 == 1 {
				b.Class = "another"
			}
			if name[0] == '1' && !e.Injected {
				b.Class = "asked"
			}
			b.W = max(l.x(until)-b.X, 2)
			if n := len(t.Bars); n > first {
				if last := &t.Bars[n-1]; b.X-last.X < 1.5 && b.X+b.W <= last.X+last.W+1.5 || n-first >= maxBars {
					last.W = max(last.W, b.X+b.W-last.X)
					last.Title = clip(last.Title+"; "+b.Title, 200)
					continue
				}
			}
			t.Bars = append(t.Bars, b)
		}
	}
	t.Height = float64(len(l.of)) * lane
	return t
}

// titleOf is an event for people.
func titleOf(e *history.Event) string {
	text := seconds(e.At)
	if e.Until > e.At && e.Until != history.Never {
		text += " to " + seconds(e.Until)
	}
	text += ": " + e.What
	for _, more := range []string{strings.Join(e.Nodes, ", "), e.Group, e.Text} {
		if more != "" && more != e.What {
			text += ", " + more
		}
	}
	if e.Value != 0 {
		text += fmt.Sprintf(", %d", e.Value)
	}
	return clip(text, 200)
}

// clip bounds a text.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
