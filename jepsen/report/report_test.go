package report

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/history"
)

// mustPage writes the verdict and the page of a run, and returns the page.
func mustPage(t *testing.T, dir string) string {
	t.Helper()
	v, err := check.Run(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := Write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, history.PageFile))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// mustGolden copies a golden run.
func mustGolden(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("../check/testdata", name))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// foreign finds what would be fetched from elsewhere.
var foreign = regexp.MustCompile(`(?i)(src|href|action)\s*=|https?://|@import|url\(|<script|<link|<iframe`)

// TestPages shows that each golden run has a page that needs nothing else, and that says of each violation what its
// proof is.
func TestPages(t *testing.T) {
	runs, err := filepath.Glob("../check/testdata/*/*")
	if err != nil || len(runs) == 0 {
		t.Fatalf("no golden runs: %v", err)
	}
	for _, run := range runs {
		name := strings.TrimPrefix(run, "../check/testdata/")
		t.Run(name, func(t *testing.T) {
			dir := mustGolden(t, name)
			text := mustPage(t, dir)
			if found := foreign.FindString(text); found != "" {
				t.Errorf("the page has %q", found)
			}
			v, err := check.ReadVerdict(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range v.Checkers {
				for _, violation := range o.Violations {
					for _, item := range violation.Certificate {
						if item.ID != "" && !strings.Contains(text, item.ID+" of ") {
							t.Errorf("the page does not tell of %s", item.ID)
						}
					}
				}
			}
			if strings.Contains(text, "FAIL") == v.Passed {
				t.Errorf("passed is %v, and the page says something else", v.Passed)
			}
		})
	}
}

// TestPageNeedsVerdict shows that there is no page of a run that was not judged.
func TestPageNeedsVerdict(t *testing.T) {
	if err := Write(mustGolden(t, "good/moves")); err == nil || !strings.Contains(err.Error(), "verdict") {
		t.Errorf("a page without a verdict: %v", err)
	}
}

// TestPageIsBounded shows that an hour with very many faults, leaders, attempts and violations has a page of a bounded
// size, and that no text in them is taken for a part of the page.
func TestPageIsBounded(t *testing.T) {
	dir := t.TempDir()
	r, err := history.Record(dir, &history.Config{Name: "<script>", Nodes: 5, Duration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	hour := func(i, n int) time.Duration { return time.Duration(i) * time.Hour / time.Duration(n) }
	for i := range 20_000 {
		for _, e := range []history.Event{
			{At: hour(i, 20_000), Until: hour(i+1, 20_000), Kind: "fault", What: fmt.Sprint("kind-", i%30), Injected: true, Text: "<b>"},
			{At: hour(i, 20_000), Kind: "leader", What: "n0", Nodes: []string{"n0"}, Group: fmt.Sprint("p", i%8), Value: uint64(i)},
		} {
			if err := r.Event(&e); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 20_000 {
		a := history.Asked{
			ID: fmt.Sprint("d", i), Principal: "<p>", Class: "a", Cost: 1, Sent: hour(i, 20_000), Received: hour(i, 20_000) + 1,
			Answer: history.Answer{Reason: []string{"<script>", "allowed", "quota_exhausted"}[i%3], Allowed: i%3 == 1, Revision: 1},
		}
		if err := r.Asked(&a); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	text := mustPage(t, dir)
	if most := 4 << 20; len(text) > most {
		t.Errorf("the page has %d bytes, more than %d", len(text), most)
	}
	for _, raw := range []string{"<script>", "<p>,", "<b>,"} {
		if strings.Contains(text, raw) {
			t.Errorf("the page has %q as it was", raw)
		}
	}
}
