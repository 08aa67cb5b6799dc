package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strconv"
)

// The layout, in pixels.
const (
	width, height  = 760, 420
	left, right    = 80, 140
	top, bottom    = 50, 60
	barHeight, gap = 26, 12
	labelWidth     = 340
	barRight       = 100
)

var colors = []string{"#2463a6", "#c25a1b", "#5b8c2a", "#8a3f9e", "#a6861f"}

// Point is one measured point.
type Point struct{ X, Y float64 }

// Line is a named row of points, in the order of X.
type Line struct {
	Name   string
	Points []Point
}

// Lines is a picture of values against a load. Y is logarithmic.
type Lines struct {
	Title, X, Y string
	Lines       []Line
}

// Bar is one subject's value.
type Bar struct {
	Name  string
	Value float64
	// Note stands behind the value.
	Note string
}

// Bars is a picture of one value for several subjects.
type Bars struct {
	Title string
	Bars  []Bar
}

// drawing is an SVG that grows.
type drawing struct{ b bytes.Buffer }

func begin(w, h int, title string) *drawing {
	d := &drawing{}
	fmt.Fprintf(&d.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" `+
		`font-family="sans-serif" font-size="13" fill="#222" role="img">`+"\n", w, h, w, h)
	fmt.Fprintf(&d.b, "<title>%s</title>\n", escaped(title))
	fmt.Fprintf(&d.b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", w, h)
	d.text(w/2, 26, "middle", `font-size="16"`, title)
	return d
}

func (d *drawing) end() []byte {
	d.b.WriteString("</svg>\n")
	return d.b.Bytes()
}

func escaped(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer takes all
	return b.String()
}

func (d *drawing) text(x, y int, anchor, more, s string) {
	if more != "" {
		more = " " + more
	}
	fmt.Fprintf(&d.b, `<text x="%d" y="%d" text-anchor="%s"%s>%s</text>`+"\n", x, y, anchor, more, escaped(s))
}

func (d *drawing) line(x1, y1, x2, y2 float64, color string) {
	fmt.Fprintf(&d.b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, color)
}

// SVG draws the picture.
func (l *Lines) SVG() []byte {
	d := begin(width, height, l.Title)
	most, low, high := l.extent()
	x := func(v float64) float64 { return left + v/most*(width-left-right) }
	y := func(v float64) float64 {
		return height - bottom - (math.Log10(v)-low)/(high-low)*(height-top-bottom)
	}
	for exp := low; exp <= high; exp++ {
		v := math.Pow(10, exp)
		d.line(left, y(v), width-right, y(v), "#ddd")
		d.text(left-8, int(y(v))+4, "end", "", Short(v))
	}
	const steps = 5
	for i := range steps + 1 {
		v := most * float64(i) / steps
		d.line(x(v), height-bottom, x(v), height-bottom+5, "#222")
		d.text(int(x(v)), height-bottom+20, "middle", "", Short(v))
	}
	d.line(left, height-bottom, width-right, height-bottom, "#222")
	d.text(left+(width-left-right)/2, height-16, "middle", "", l.X)
	d.text(20, top+(height-top-bottom)/2, "middle",
		fmt.Sprintf(`transform="rotate(-90 20 %d)"`, top+(height-top-bottom)/2), l.Y)
	for i, one := range l.Lines {
		color := colors[i%len(colors)]
		var points bytes.Buffer
		for _, p := range one.Points {
			if p.Y > 0 {
				fmt.Fprintf(&points, "%.1f,%.1f ", x(p.X), y(p.Y))
			}
		}
		fmt.Fprintf(&d.b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n",
			bytes.TrimSpace(points.Bytes()), color)
		d.text(width-right+14, top+20+i*22, "start", fmt.Sprintf(`fill="%s"`, color), one.Name)
	}
	return d.end()
}

// extent is the largest X, and the powers of ten that enclose all Y.
func (l *Lines) extent() (most, low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, one := range l.Lines {
		for _, p := range one.Points {
			most = max(most, p.X)
			if p.Y > 0 {
				low, high = min(low, math.Floor(math.Log10(p.Y))), max(high, math.Ceil(math.Log10(p.Y)))
			}
		}
	}
	if most <= 0 {
		most = 1
	}
	if low > high {
		low, high = 0, 1
	}
	if low == high {
		high++
	}
	return most, low, high
}

// SVG draws the picture.
func (b *Bars) SVG() []byte {
	d := begin(width, top+len(b.Bars)*(barHeight+gap)+gap, b.Title)
	most := 0.0
	for _, one := range b.Bars {
		most = max(most, one.Value)
	}
	if most <= 0 {
		most = 1
	}
	const room = width - labelWidth - barRight
	for i, one := range b.Bars {
		y := top + i*(barHeight+gap)
		length := max(0, one.Value) / most * room
		d.text(labelWidth-8, y+barHeight/2+5, "end", "", one.Name)
		fmt.Fprintf(&d.b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
			labelWidth, y, length, barHeight, colors[i%len(colors)])
		label := Short(one.Value)
		if one.Note != "" {
			label += " " + one.Note
		}
		d.text(labelWidth+int(length)+8, y+barHeight/2+5, "start", "", label)
	}
	return d.end()
}

// Short is a number as people write it: 950, 1.5k, 20k, 3M.
func Short(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= unit.size {
			return digits3(v/unit.size) + unit.name
		}
	}
	return digits3(v)
}

// digits3 is v with three digits that count, without trailing zeros.
func digits3(v float64) string {
	places := 0
	for limit := 100.0; places < 3 && math.Abs(v) < limit && v != 0; limit /= 10 {
		places++
	}
	p := math.Pow10(places)
	return strconv.FormatFloat(math.Round(v*p)/p, 'f', -1, 64)
}
