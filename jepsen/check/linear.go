package check

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/quorate/quorate/jepsen/history"
)

const (
	// linearWithin bounds the search for one principal. It has no branches, so that more means that it went wrong.
	linearWithin = 20 * time.Second
	// linearAround is how many operations before and after the one that does not fit are shown.
	linearAround = 200
	// linearMost bounds the operations that are searched at a time; a longer history is cut.
	linearMost = 4000
	// LinearFile is where the search is shown for the first principal that failed.
	LinearFile = "porcupine.html"
)

// linearInput is a decision of its own with its rank in the order of the logs, or a repetition of that with this rank.
type linearInput struct {
	*decision
	rank   int
	replay bool
	under  *known
}

// linearState is what a principal has used when so many of its decisions have been made.
type linearState struct {
	next int
	at   time.Duration // the earliest instant of the last
	used []linearUse   // what may still count, oldest first; shared, and never changed
}

type linearUse struct {
	at, from time.Duration
	class    string
	cost     int64
}

// judgeLinear is the cap and the replay of ids once more, by a search for an order of all decisions of a principal,
// each between its being asked for and its being answered, that is the order of the logs. It shares with the others how
// a run is read, and not how it is judged. What it cannot decide in time it says is broken.
func judgeLinear(r *run, o *outcome) error {
	longest := time.Duration(0)
	for _, v := range r.known.revisions {
		for _, class := range append(sortedKeys(v.Policy.Classes), history.DefaultClass) {
			for _, l := range v.rule(class) {
				longest = max(longest, time.Duration(l.Window))
			}
		}
	}
	model := linearModel(r.known, longest)
	for _, of := range r.log.lineages() {
		operations := r.operations(of)
		for part := range slices.Chunk(operations, linearMost) {
			o.Counts["operations"] += int64(len(part))
			model.Init = beginAt(part)
			result, info := porcupine.CheckOperationsVerbose(model, part, linearWithin)
			if result == porcupine.Ok {
				continue
			}
			if o.Found == 0 {
				if err := r.show(model, part, info, result); err != nil {
					return err
				}
			}
			o.violated(nil, "principal %s: %s, of %d decisions: %s shows how far it fits", of.principal, linearWords[result],
				len(part), LinearFile)
			break
		}
		o.Counts["principals"]++
	}
	return nil
}

var linearWords = map[porcupine.CheckResult]string{
	porcupine.Illegal: "there is no instant for each decision in the order of the logs",
	porcupine.Unknown: "whether there is an instant for each decision was not found out in time",
}

// beginAt is the state before the first decision of a part.
func beginAt(part []porcupine.Operation) func() any {
	first := math.MaxInt
	for i := range part {
		if in := part[i].Input.(linearInput); !in.replay {
			first = min(first, in.rank)
		}
	}
	return func() any { return &linearState{next: first, at: always} }
}

// operations are the decisions of a principal and their repetitions, in the order of the logs.
func (r *run) operations(of *lineage) (out []porcupine.Operation) {
	clients := map[string]int{}
	client := func(name string) int {
		if _, ok := clients[name]; !ok {
			clients[name] = len(clients)
		}
		return clients[name]
	}
	decided := map[*history.Check]int{} // how often, since a record ends
	for _, d := range of.decisions {
		if d.check != nil {
			decided[d.check]++
		}
	}
	rank := 0
	for _, d := range of.decisions {
		under := r.known.under(d.Revision)
		if under == nil {
			continue // which the policy checker tells of
		}
		from, to := d.between()
		to = max(from, to) // one that was applied before it was asked for, which the other checkers tell of
		name := ""
		if a := d.answer(); a != nil {
			name = a.Client
		} else if d.check != nil {
			name = d.check.Attempts[0].Client
		}
		out = append(out, porcupine.Operation{
			ClientId: client(name), Input: linearInput{decision: d, rank: rank, under: under}, Call: int64(from),
			Return: int64(to), Output: d.Reason,
		})
		// Of an id that was decided more than once an answer does not tell which of them it repeats.
		if d.check != nil && (d.Recorded || d.allowed()) && decided[d.check] == 1 {
			for i := range d.check.Attempts {
				a := &d.check.Attempts[i]
				if a.Answer.Replayed && a.Answer.Decided() {
					out = append(out, porcupine.Operation{
						ClientId: client(a.Client), Input: linearInput{decision: d, rank: rank, replay: true, under: under},
						Call: int64(a.Sent), Return: int64(a.Received), Output: a.Answer.Reason,
					})
				}
			}
		}
		rank++
	}
	return out
}

// linearModel makes each decision in the order of its rank, at its earliest instant.
func linearModel(known *knowledge, longest time.Duration) porcupine.Model {
	return porcupine.Model{
		Step: func(state, input, output any) (bool, any) {
			s, in := state.(*linearState), input.(linearInput)
			if in.replay {
				return s.next > in.rank && in.Reason == output.(string), s
			}
			if in.rank != s.next {
				return false, s
			}
			return s.decide(known, &in, longest)
		},
		Equal: func(a, b any) bool { // the order leaves no choice
			return a.(*linearState).next == b.(*linearState).next
		},
		Hash: func(state any) uint64 { return uint64(state.(*linearState).next) },
		DescribeOperation: func(input, output any) string {
			in := input.(linearInput)
			word := ""
			if in.replay {
				word = "again "
			}
			return fmt.Sprintf("%s%s %s for %d: %s, index %d", word, in.ID, in.Class, in.Cost, output, in.entry.index)
		},
		DescribeState: func(state any) string {
			s := state.(*linearState)
			if s.at == always {
				return "nothing"
			}
			sum := int64(0)
			for _, u := range s.used {
				if s.at-u.at < longest {
					sum += u.cost
				}
			}
			return fmt.Sprintf("%d decided by %s, %d used within %v", s.next, once(s.at), sum, longest)
		},
	}
}

// decide makes the next decision.
func (s *linearState) decide(known *knowledge, in *linearInput, longest time.Duration) (bool, *linearState) {
	from, to := in.between()
	at := max(from, s.at)
	next := &linearState{next: s.next + 1, at: at, used: s.used}
	if !in.allowed() {
		return at <= to, next
	}
	for _, l := range in.under.rule(in.Class) {
		since := known.since(in.under.Number, l.Over)
		room := l.Max - in.Cost
		if room < 0 {
			return false, s
		}
		for _, u := range slices.Backward(s.used) {
			if !slices.Contains(l.Over, u.class) || since > always && u.from <= since {
				continue
			}
			if room -= u.cost; room < 0 {
				at = max(at, u.at+time.Duration(l.Window))
				break
			}
		}
	}
	if at > to {
		return false, s
	}
	kept := s.used
	for len(kept) > 0 && at > always && kept[0].at+longest <= at {
		kept = kept[1:]
	}
	use := linearUse{at: at, from: from, class: in.under.Policy.Resolve(in.Class), cost: in.Cost}
	next.at, next.used = at, append(kept[:len(kept):len(kept)], use)
	return true, next
}

// show writes the search for people: what is around the first decision that does not fit.
func (r *run) show(
	model porcupine.Model, of []porcupine.Operation, info porcupine.LinearizationInfo, result porcupine.CheckResult,
) error {
	if result == porcupine.Illegal {
		reached := 0
		for _, orders := range info.PartialLinearizationsOperations() {
			for _, order := range orders {
				reached = max(reached, len(order))
			}
		}
		// What is left out before leaves more room, so that the part may fit: then all is shown.
		begin, end := max(0, reached-linearAround), min(len(of), reached+linearAround)
		part := of[begin:end]
		shown := model
		shown.Init = beginAt(part)
		if again, partly := porcupine.CheckOperationsVerbose(shown, part, linearWithin); again == porcupine.Illegal {
			model, info = shown, partly
		}
	}
	var notes []porcupine.Annotation
	for i := range r.Events {
		e := &r.Events[i]
		if !slices.Contains([]string{"fault", "leader", "epoch", "policy"}, e.Kind) || len(notes) >= 5*linearAround {
			continue
		}
		note := porcupine.Annotation{
			Tag: e.Kind, Start: int64(e.At), End: int64(e.Until),
			Description: strings.TrimSpace(e.What + " " + strings.Join(e.Nodes, " ") + " " + e.Group),
		}
		if note.End < note.Start || note.End == math.MaxInt64 {
			note.End = note.Start
		}
		notes = append(notes, note)
	}
	info.AddAnnotations(notes)
	return porcupine.VisualizePath(model, info, filepath.Join(r.Dir, LinearFile))
}
