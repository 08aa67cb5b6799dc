package report

import (
	"bytes"
	_ "embed" // the page
	"fmt"
	"html/template"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/history"
)

// maxProofs bounds the violations that are drawn.
const maxProofs = 30

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"seconds": seconds}).Parse(pageText))

// view is what the page shows.
type view struct {
	Verdict  *check.Verdict
	Config   *history.Config
	Word     string
	Counts   []count
	Checkers []checkerView
	Rates    *chart
	Timeline *timeline
	Skipped  []string
	Linear   bool // there is a page of the search
}

// count is a number with what it counts.
type count struct {
	Name string
	N    int64
}

// checkerView is a checker's outcome.
type checkerView struct {
	check.Outcome
	Numbers []count
	Proofs  []proof
	Hidden  int64 // violations that are not shown
}

// Write makes the page of a run, from what is in its directory.
func Write(dir string) error {
	verdict, err := check.ReadVerdict(dir)
	if err != nil {
		return fmt.Errorf("a page needs a verdict: %w", err)
	}
	g, err := gather(dir)
	if err != nil {
		return err
	}
	v := &view{
		Verdict: verdict, Config: &g.config, Word: "passed", Counts: counts(verdict.Counts), Rates: g.rates(),
		Timeline: g.timeline(),
	}
	if !verdict.Passed {
		v.Word = "broken: " + strings.Join(verdict.Failed(), ", ")
	}
	for _, kind := range slices.Sorted(maps.Keys(g.config.Skipped)) {
		v.Skipped = append(v.Skipped, kind+": "+g.config.Skipped[kind])
	}
	drawn := 0
	for _, o := range verdict.Checkers {
		c := checkerView{Outcome: o, Numbers: counts(o.Counts), Hidden: o.Found - int64(len(o.Violations))}
		for i := range o.Violations {
			if drawn++; drawn > maxProofs {
				c.Hidden++
				continue
			}
			c.Proofs = append(c.Proofs, g.proof(&o.Violations[i]))
		}
		v.Checkers = append(v.Checkers, c)
	}
	if _, err := os.Stat(filepath.Join(dir, check.LinearFile)); err == nil {
		v.Linear = true
	}
	var b bytes.Buffer
	if err := page.Execute(&b, v); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, history.PageFile), b.Bytes(), 0o600)
}

// counts are numbers in the order of their names.
func counts(m map[string]int64) (out []count) {
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, count{strings.ReplaceAll(name, "_", " "), m[name]})
	}
	return out
}

// seconds is an instant for people.
func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }
