package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mustElements parses a picture, as a reader of XML would, and counts its elements.
func mustElements(t *testing.T, svg []byte) map[string]int {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	count := map[string]int{}
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			t.Fatalf("not well-formed: %v\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok {
			count[e.Name.Local]++
			for _, a := range e.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("%s has %s=%q", e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	}
}

// Shows that a picture of lines is well-formed whatever its texts are, has a line per name with all its points but
// those that no logarithm has, and stands when there is nothing to draw.
func TestLines(t *testing.T) {
	l := Lines{Title: `<&"'> & more`, X: "load", Y: "µs", Lines: []Line{
		{"a<b", []Point{{1, 1}, {2, 0}, {3, 1000}}}, {"c", []Point{{1, 5}}}, {Name: "none"},
	}}
	svg := l.SVG()
	n := mustElements(t, svg)
	if n["svg"] != 1 || n["polyline"] != 3 || n["title"] != 1 {
		t.Errorf("%v\n%s", n, svg)
	}
	first, _, _ := strings.Cut(string(svg[bytes.Index(svg, []byte(`points="`))+8:]), `"`)
	if points := strings.Fields(first); len(points) != 2 {
		t.Errorf("the points are %q", points)
	}
	if bytes.Contains(svg, []byte("a<b")) || !bytes.Contains(svg, []byte("a&lt;b")) {
		t.Errorf("not escaped:\n%s", svg)
	}
	mustElements(t, (&Lines{}).SVG())
	mustElements(t, (&Lines{Lines: []Line{{"flat", []Point{{0, 10}, {0, 10}}}}}).SVG())
}

// Shows that bars are as long as their values are large, and that a picture of none stands.
func TestBars(t *testing.T) {
	b := Bars{Title: "t", Bars: []Bar{{"one", 100, "± 2"}, {"half", 50, ""}, {"nothing", 0, ""}}}
	svg := string(b.SVG())
	if n := mustElements(t, []byte(svg)); n["rect"] != 4 {
		t.Errorf("%v", n)
	}
	for _, want := range []string{`width="320.0"`, `width="160.0"`, `width="0.0"`, "100 ± 2"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in\n%s", want, svg)
		}
	}
	mustElements(t, (&Bars{}).SVG())
}

// Shows how numbers are written.
func TestShort(t *testing.T) {
	got := map[float64]string{}
	want := map[float64]string{
		0: "0", 0.0125: "0.013", 0.5: "0.5", 1: "1", 12.34: "12.3", 950: "950", 1500: "1.5k", 20_000: "20k", 123_456: "123k",
		3e6: "3M", 4.2e9: "4.2G", 1e14: "100000G", -2000: "-2k",
	}
	for v := range want {
		got[v] = Short(v)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if math.Signbit(0) || Short(999.9) != "1000" {
		t.Error(Short(999.9))
	}
}
