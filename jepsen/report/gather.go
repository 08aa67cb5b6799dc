package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	// parts is how many parts a run is drawn in.
	parts = 240
	// maxEvents bounds the events that are read; of more, the first are shown.
	maxEvents = 100_000
)

// gathered is what the page is made of.
type gathered struct {
	config    history.Config
	events    []history.Event
	revisions []history.Revision
	span      time.Duration // of the run
	asked     [parts]rate
	applied   map[string]*lead // by partition
	asking    []asked          // until the span is known
}

// rate is what came of the attempts that were sent in a part.
type rate struct{ allowed, denied, replayed, refused, unknown int }

// asked is an attempt, as far as it is drawn.
type asked struct {
	sent time.Duration
	what uint8
}

const (
	wasAllowed = iota
	wasDenied
	wasReplayed
	wasRefused
	wasUnknown
)

// lead is which terms and plans the log of a partition has.
type lead struct {
	terms map[uint64]time.Duration // when the first entry of each was applied
	plans []time.Duration          // when slots came to it
}

// gather reads a run's directory.
func gather(dir string) (*gathered, error) {
	g := &gathered{applied: map[string]*lead{}}
	text, err := os.ReadFile(filepath.Join(dir, history.ConfigFile))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &g.config); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, history.ConfigFile), err)
	}
	g.span = time.Second
	_, err = history.Read(filepath.Join(dir, history.EventsFile), func(e *history.Event) error {
		if len(g.events) < maxEvents {
			g.events = append(g.events, *e)
			g.reach(e.At, e.Until)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, err := history.Read(filepath.Join(dir, history.PolicyFile), func(r *history.Revision) error {
		g.revisions = append(g.revisions, *r)
		return nil
	}); err != nil {
		return nil, err
	}
	if _, err := history.Read(filepath.Join(dir, history.AttemptsFile), func(a *history.Asked) error {
		if !a.Peek {
			g.asking = append(g.asking, asked{a.Sent, whatCameOf(a)})
			g.reach(a.Sent, a.Received)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	for _, a := range g.asking {
		g.asked[g.part(a.sent)].add(a.what)
	}
	g.asking = nil
	return g, g.readApplied(dir)
}

// reach has the run reach to some instants.
func (g *gathered) reach(instants ...time.Duration) {
	for _, at := range instants {
		if at != history.Never {
			g.span = max(g.span, at)
		}
	}
}

// part is that of an instant.
func (g *gathered) part(at time.Duration) int {
	return min(max(int(float64(at)/float64(g.span)*parts), 0), parts-1)
}

func whatCameOf(a *history.Asked) uint8 {
	switch {
	case a.Received == history.Never || a.Answer.Reason == "outcome_unknown":
		return wasUnknown
	case !a.Answer.Decided():
		return wasRefused
	case a.Answer.Replayed:
		return wasReplayed
	case a.Answer.Allowed:
		return wasAllowed
	}
	return wasDenied
}

func (r *rate) add(what uint8) {
	for i, n := range []*int{&r.allowed, &r.denied, &r.replayed, &r.refused, &r.unknown} {
		if i == int(what) {
			*n++
		}
	}
}

// appliedLine is what is drawn of a line of what a replica applied.
type appliedLine struct {
	Monotonic int64  `json:"mono"`
	Group     string `json:"group"`
	Term      uint64 `json:"term"`
	Kind      string `json:"kind"`
	Refused   string `json:"refused"`
	Restored  bool   `json:"restored"`
}

// maxTerms bounds the terms of a partition that are drawn.
const maxTerms = 2000

func (g *gathered) readApplied(dir string) error {
	paths, err := history.AppliedPaths(dir)
	if err != nil {
		return err
	}
	for _, path := range paths {
		if _, err := history.Read(path, func(a *appliedLine) error {
			if a.Restored {
				return nil
			}
			at := time.Duration(a.Monotonic - g.config.BeganMonotonic)
			l := g.applied[a.Group]
			if l == nil {
				l = &lead{terms: map[uint64]time.Duration{}}
				g.applied[a.Group] = l
			}
			if was, ok := l.terms[a.Term]; (!ok && len(l.terms) < maxTerms) || ok && at < was {
				l.terms[a.Term] = at
			}
			if a.Kind == "activate" && a.Refused == "" && len(l.plans) < maxTerms {
				l.plans = append(l.plans, at)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	for _, l := range g.applied {
		slices.Sort(l.plans)
	}
	return nil
}
