package check

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

// Verdict is what all checkers say of a run: what ResultFile holds.
type Verdict struct {
	Passed bool   `json:"passed"`
	Run    string `json:"run"` // its name
	Seed   uint64 `json:"seed"`
	Mutant string `json:"mutant,omitempty"`
	// Checkers are the outcomes, in a fixed order.
	Checkers []Outcome `json:"checkers"`
	// NotJudged says which checkers had nothing to judge, and why.
	NotJudged []string         `json:"not_judged,omitempty"`
	Counts    map[string]int64 `json:"counts"`
}

// Outcome is what one checker says.
type Outcome struct {
	Name      string `json:"name"`
	Invariant string `json:"invariant"` // what must hold
	Passed    bool   `json:"passed"`
	// Skipped is why there was nothing to judge. It is then passed.
	Skipped    string           `json:"skipped,omitempty"`
	Found      int64            `json:"found"`                // violations
	Violations []Violation      `json:"violations,omitempty"` // the first of them
	Counts     map[string]int64 `json:"counts,omitempty"`
}

// Violation is a proof that what must hold does not.
type Violation struct {
	Text        string `json:"text"`
	Certificate []Item `json:"certificate,omitempty"`
}

// Item is one step of a proof, which can be followed by hand: mostly a decision, and between which instants of true
// time it was made.
type Item struct {
	Text      string        `json:"text"` // the step in words
	ID        string        `json:"id,omitempty"`
	Principal string        `json:"principal,omitempty"`
	Class     string        `json:"class,omitempty"`
	Cost      int64         `json:"cost,omitempty"`
	Node      string        `json:"node,omitempty"`
	Group     string        `json:"group,omitempty"`
	Index     uint64        `json:"index,omitempty"`
	Term      uint64        `json:"term,omitempty"`
	Epoch     uint64        `json:"epoch,omitempty"`
	Revision  uint64        `json:"revision,omitempty"`
	From      time.Duration `json:"from_ns"`
	To        time.Duration `json:"to_ns"`
}

// Failed are the names of the checkers that did not pass.
func (v *Verdict) Failed() (names []string) {
	for _, o := range v.Checkers {
		if !o.Passed {
			names = append(names, o.Name)
		}
	}
	return names
}

// Write puts the verdict into the run's directory.
func (v *Verdict) Write(dir string) error {
	return history.WriteFile(filepath.Join(dir, history.ResultFile), v)
}

// ReadVerdict reads what Write has written.
func ReadVerdict(dir string) (*Verdict, error) {
	path := filepath.Join(dir, history.ResultFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	v := &Verdict{}
	if err := json.Unmarshal(text, v); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return v, nil
}

// String is the verdict for a terminal: a line for each checker, and what it found.
func (v *Verdict) String() string {
	var b strings.Builder
	for _, o := range v.Checkers {
		word := "pass"
		switch {
		case !o.Passed:
			word = "FAIL"
		case o.Skipped != "":
			word = "none"
		}
		fmt.Fprintf(&b, "%s  %-12s  %s\n", word, o.Name, o.Invariant)
		if o.Skipped != "" {
			fmt.Fprintf(&b, "      not judged: %s\n", o.Skipped)
		}
		for _, violation := range o.Violations {
			fmt.Fprintf(&b, "      %s\n", violation.Text)
			for i, item := range violation.Certificate {
				fmt.Fprintf(&b, "        %3d. %s\n", i+1, item.Text)
			}
		}
		if more := o.Found - int64(len(o.Violations)); more > 0 {
			fmt.Fprintf(&b, "      and %d more\n", more)
		}
	}
	if v.Passed {
		b.WriteString("all that was judged holds\n")
	} else {
		fmt.Fprintf(&b, "broken: %s\n", strings.Join(v.Failed(), ", "))
	}
	return b.String()
}
