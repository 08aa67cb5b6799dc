package main

import (
	"encoding/xml"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/bench"
)

// Shows the median of none, one, an even and an odd number of values, whatever their order.
func TestMedian(t *testing.T) {
	for _, row := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{7}, 7}, {[]float64{9, 1}, 5}, {[]float64{9, 1, 2}, 2}} {
		if got := median(row.values); got != row.want {
			t.Errorf("%v: %v, want %v", row.values, got, row.want)
		}
	}
}

// threeRounds is a result in which a peer is at first slower and then faster.
func threeRounds() *result {
	r := &result{
		Rounds: 3, Outstanding: []int{8}, WarmUp: time.Second, Duration: 2 * time.Second,
		peers:   []peer{{Name: "ours", Durable: "here", Not: "-"}, {Name: "theirs", Durable: "there", Not: "much"}},
		Missing: []string{"another was not measured: it was not found."},
	}
	for round, rates := range [][2]float64{{300, 100}, {400, 200}, {100, 200}} {
		for i, rate := range rates {
			r.Samples = append(r.Samples, sample{r.peers[i].Name, 8, round, &bench.Report{
				DecisionsPerS: rate, P50Us: 1500, P99Us: 2500, NodesCPUUs: 4, ClientCPUUs: 2, Errors: uint64(i),
			}})
		}
	}
	return r
}

// Shows that a ratio is the median of the rounds' ratios, which here is not the ratio of the medians, and what the
// table says: medians, extremes, undecided checks of all rounds, the ratio, and what is missing.
func TestMarkdown(t *testing.T) {
	r := threeRounds()
	if got := r.ratio("theirs", 8); got != 2 {
		t.Errorf("the ratio is %v", got)
	}
	text := r.markdown()
	for _, want := range []string{
		"| 8 | ours | 300 | 100 to 400 | 1.50 ms | 2.50 ms | 4.0 + 2.0 µs | 0 | - |\n",
		"| 8 | theirs | 200 | 100 to 200 | 1.50 ms | 2.50 ms | 4.0 + 2.0 µs | 3 | 2.00 × |\n",
		"\nanother was not measured: it was not found.\n", "| theirs | there | much |\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	d := xml.NewDecoder(strings.NewReader(string(r.picture())))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Shows that only what stands between the markers is replaced, and that a document without them is refused.
func TestBetween(t *testing.T) {
	got, err := between("a\n"+beginMark+"old\n"+endMark+"z\n", "new\n")
	if err != nil || got != "a\n"+beginMark+"new\n"+endMark+"z\n" {
		t.Errorf("%q %v", got, err)
	}
	for _, bad := range []string{"", beginMark, endMark, endMark + beginMark} {
		if _, err := between(bad, "new"); err == nil {
			t.Errorf("%q was changed", bad)
		}
	}
}

// Shows that flags that cannot be meant are refused with what to give.
func TestParse(t *testing.T) {
	good := []string{"-quorate", "q"}
	for want, args := range map[string][]string{
		"":                    good,
		"-quorate is missing": nil,
		"-rounds is 0":        append(slices.Clone(good), "-rounds", "0"),
		"give numbers from 1": append(slices.Clone(good), "-outstanding", "5,x"),
		"keep them below":     append(slices.Clone(good), "-duration", "10s"),
	} {
		_, err := parse(args, io.Discard)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
}
