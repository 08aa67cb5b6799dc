package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

const (
	// progressEvery is between two lines of progress.
	progressEvery = 30 * time.Second
	// watchEvery is between two looks at who leads.
	watchEvery = 2 * time.Second
	// killWithin is how long it may take to find out who can die.
	killWithin = 30 * time.Second
)

// faults makes faults.
type faults interface {
	// Run makes them until ctx ends, and ends those that are on.
	Run(ctx context.Context) error
}

// phases goes through the run. Once ctx has ended it only heals.
func (r *run) phases(ctx context.Context) error {
	r.say("faults for %v: %s", r.Duration, strings.Join(r.Options.Faults, ", "))
	err := r.phase(ctx, "faults", func() error {
		for kind, why := range r.config.Skipped {
			note := history.Event{At: r.now(), Kind: "note", What: "skipped", Text: kind + ": " + why}
			if err := r.recorder.Event(&note); err != nil {
				return err
			}
		}
		faulty, cancel := context.WithTimeout(ctx, r.Duration)
		defer cancel()
		return r.faults.Run(faulty)
	})
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		r.say("interrupted: the run ends, and is judged by what there was")
		r.config.Duration = r.now()
		r.config.Skipped["the end of the run"] = "interrupted"
		return r.recorder.Config(r.config)
	}
	r.say("all is healed: deciding again for %v", settleFor)
	if err := r.phase(ctx, "healed", func() error { return r.settle(ctx) }); err != nil || ctx.Err() != nil {
		return err
	}
	die, err := r.kill(ctx)
	if err != nil {
		return err
	}
	r.say("%s died for good: the others decide for %v", strings.Join(die, " and "), settleFor)
	return r.phase(ctx, "core", func() error { return r.settle(ctx) }, die...)
}

// phase records what is done in it, and when.
func (r *run) phase(ctx context.Context, name string, do func() error, dead ...string) error {
	began := r.now()
	err := do()
	e := history.Event{At: began, Until: r.now(), Kind: "phase", What: name, Nodes: dead}
	if ctx.Err() != nil {
		e.Text = "interrupted"
	}
	return errors.Join(err, r.recorder.Event(&e))
}

// settle lets time pass.
func (r *run) settle(ctx context.Context) error {
	timer := time.NewTimer(settleFor)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// kill kills as many nodes as can die while every group keeps a majority.
func (r *run) kill(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, killWithin)
	defer cancel()
	s, err := r.cluster.Status(ctx)
	if err != nil {
		return nil, err
	}
	var groups []voters
	for _, g := range s.Groups() {
		v := voters{group: g.ID}
		for _, replica := range g.Replicas {
			if !replica.Learner {
				v.nodes = append(v.nodes, replica.Node)
			}
		}
		groups = append(groups, v)
	}
	var up []string
	for _, n := range r.cluster.Nodes {
		if n.Up() && !n.Paused() {
			up = append(up, n.ID)
		}
	}
	die := spare(groups, up)
	if len(die) == 0 {
		return nil, fmt.Errorf("of %v none can be spared: %+v", up, groups)
	}
	for _, id := range die {
		if err := r.cluster.Node(id).Kill(); err != nil {
			return nil, err
		}
		end := history.Event{At: r.now(), Kind: "end", What: "killed for good", Nodes: []string{id}, Injected: true}
		if err := r.recorder.Event(&end); err != nil {
			return nil, err
		}
	}
	return die, nil
}

// watch tells how the run goes, and records who leads, until ctx ends.
func (r *run) watch(ctx context.Context) {
	look, tell := time.NewTicker(watchEvery), time.NewTicker(progressEvery)
	defer look.Stop()
	defer tell.Stop()
	leaders := map[string]cluster.GroupState{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tell.C:
			r.say("%s", progress(r.crowd.Counts()))
		case <-look.C:
			r.lookWhoLeads(ctx, leaders)
		}
	}
}

// lookWhoLeads records which groups have another leader than before, or one of another term.
func (r *run) lookWhoLeads(ctx context.Context, leaders map[string]cluster.GroupState) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	s, err := r.cluster.Status(ctx)
	if err != nil {
		return // nobody can say at the moment
	}
	for _, g := range s.Groups() {
		last := leaders[g.ID]
		if g.Leader == "" || g.Term < last.Term || g.Term == last.Term && g.Leader == last.Leader {
			continue
		}
		leaders[g.ID] = *g
		// If it cannot be recorded, nothing can, and the run fails by what is.
		_ = r.recorder.Event(&history.Event{
			At: r.now(), Kind: "leader", What: g.Leader, Nodes: []string{g.Leader}, Group: g.ID, Value: g.Term,
		})
	}
}

// progress is what came of the attempts so far, in a line.
func progress(counts map[string]workload.Counts) string {
	var sum workload.Counts
	var idle []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		c := counts[name]
		sum.Asked += c.Asked
		sum.Allowed += c.Allowed
		sum.Denied += c.Denied
		sum.Replayed += c.Replayed
		sum.Refused += c.Refused
		sum.Unanswered += c.Unanswered
		if c.Allowed+c.Denied == 0 {
			idle = append(idle, name)
		}
	}
	line := fmt.Sprintf("asked %d, allowed %d, denied %d, answered from records %d, refused %d, unanswered %d",
		sum.Asked, sum.Allowed, sum.Denied, sum.Replayed, sum.Refused, sum.Unanswered)
	if len(idle) > 0 {
		line += "; nothing decided of " + strings.Join(idle, ", ")
	}
	return line
}
