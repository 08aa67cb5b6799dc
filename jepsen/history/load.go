package history

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// maxAttempts bounds a run that is read into memory: about 400 bytes each.
const maxAttempts = 4_000_000

// Run is what a run's directory holds, the applied files aside, which ReadApplied goes through.
type Run struct {
	Dir     string
	Config  Config
	History History
	Events  []Event // in the order of At
	Asked   int     // attempts
	Torn    int     // files whose last line was not whole
}

// Load reads a run's directory.
func Load(dir string) (*Run, error) {
	r := &Run{Dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, ConfigFile))
	if err != nil {
		return nil, fmt.Errorf("no run can be read from %s: %w", dir, err)
	}
	if err := json.Unmarshal(text, &r.Config); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, ConfigFile), err)
	}
	if err := r.loadRevisions(); err != nil {
		return nil, err
	}
	if err := r.loadAttempts(); err != nil {
		return nil, err
	}
	err = r.read(Read(filepath.Join(dir, EventsFile), func(e *Event) error {
		r.Events = append(r.Events, *e)
		return nil
	}))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	slices.SortStableFunc(r.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return r, nil
}

func (r *Run) read(torn bool, err error) error {
	if torn {
		r.Torn++
	}
	return err
}

// loadRevisions reads the policies. Of several lines with one number the last counts.
func (r *Run) loadRevisions() error {
	by := map[uint64]Revision{}
	err := r.read(Read(filepath.Join(r.Dir, PolicyFile), func(v *Revision) error {
		if v.Number == 0 || v.Active < v.Began {
			return fmt.Errorf("revision %d, which began at %v and was active at %v, cannot be: revisions count from 1, "+
				"and active_ns is %d where it is not known", v.Number, v.Began, v.Active, int64(Never))
		}
		by[v.Number] = *v
		return nil
	}))
	for _, v := range by {
		r.History.Revisions = append(r.History.Revisions, v)
	}
	slices.SortFunc(r.History.Revisions, func(a, b Revision) int { return cmp.Compare(a.Number, b.Number) })
	return err
}

// loadAttempts reads what was asked, and puts the attempts at one check together.
func (r *Run) loadAttempts() error {
	type key struct {
		id, principal, class, gateway string
		cost                          int64
		peek                          bool
	}
	by, same := map[key]*Check{}, Texts{}
	return r.read(Read(filepath.Join(r.Dir, AttemptsFile), func(a *Asked) error {
		if r.Asked++; r.Asked > maxAttempts {
			return fmt.Errorf("more than %d attempts, which no judge holds: judge a shorter run", maxAttempts)
		}
		if a.Received < a.Sent {
			return fmt.Errorf("attempt at %q was answered at %d ns and sent at %d ns", a.ID, a.Received, a.Sent)
		}
		k := key{a.ID, same.Of(a.Principal), same.Of(a.Class), same.Of(a.Gateway), a.Cost, a.Peek}
		c := by[k]
		if c == nil {
			c = &Check{
				ID: a.ID, Principal: k.principal, Class: k.class, Cost: a.Cost,
				Gateway: k.gateway, Workload: same.Of(a.Workload),
			}
			by[k] = c
			if a.Peek {
				r.History.Peeks = append(r.History.Peeks, c)
			} else {
				r.History.Checks = append(r.History.Checks, c)
			}
		}
		w := a.Answer
		w.Reason, w.Version, w.Limit, w.Detail = same.Of(w.Reason), same.Of(w.Version), same.Of(w.Limit), same.Of(w.Detail)
		for i := range w.Limits {
			w.Limits[i].Name = same.Of(w.Limits[i].Name)
		}
		w.Limits = slices.Clip(w.Limits)
		c.Attempts = append(c.Attempts, Attempt{
			Client: same.Of(a.Client), Node: same.Of(a.Node), Sent: a.Sent, Received: a.Received, Answer: w,
		})
		return nil
	}))
}

// AppliedPaths are the files of what the nodes applied, in the order of their names. A program without the trace
// leaves none.
func AppliedPaths(dir string) ([]string, error) {
	return filepath.Glob(filepath.Join(dir, AppliedFiles))
}

// maxTexts bounds how many different texts are kept once.
const maxTexts = 1 << 16

// Texts keeps one copy of texts that come again and again.
type Texts map[string]string

// Of is the copy of a text.
func (t Texts) Of(s string) string {
	kept, ok := t[s]
	if !ok {
		kept = s
		if len(t) < maxTexts {
			t[s] = s
		}
	}
	return kept
}
