package disk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

// Account is what became of the decisions of a load.
type Account struct {
	Sent         int
	Acknowledged int
	Lost         []string // acknowledged allows that are not the recorded answer any more
	Recovered    int      // decisions without an answer that had been made all the same
	Refusals     map[string]int
}

// String is one line.
func (a Account) String() string {
	var refusals []string
	for _, reason := range slices.Sorted(maps.Keys(a.Refusals)) {
		refusals = append(refusals, fmt.Sprintf("%s %d", reason, a.Refusals[reason]))
	}
	return fmt.Sprintf("sent %d, acknowledged %d, lost %d; without an answer but made %d; refused: %s",
		a.Sent, a.Acknowledged, len(a.Lost), a.Recovered, strings.Join(refusals, ", "))
}

// Audit accounts for all decisions of a stopped or paused load, on a cluster that serves. It fails when it could
// not get the answers, when less is consumed than was acknowledged, or when afterwards, with each decision asked
// for again, what is consumed is not exactly what was sent. Lost decisions are no error of it.
func (l *Load) Audit(ctx context.Context) (Account, error) {
	l.mu.Lock()
	sent := slices.Clone(l.sent)
	a := Account{Sent: len(sent), Acknowledged: l.acknowledged, Refusals: maps.Clone(l.refusals)}
	err := l.unexpected
	l.mu.Unlock()
	if err != nil {
		return a, err
	}
	used, err := l.used(ctx)
	if err != nil {
		return a, err
	}
	again, err := l.askAgain(ctx, len(sent))
	if err != nil {
		return a, err
	}
	if age := time.Since(l.begun); age > replayHorizon-time.Minute {
		return a, fmt.Errorf("the load is %v old, recorded decisions last %v: run fewer rounds", age, replayHorizon)
	}
	var acknowledged [principals]int64
	for id, d := range sent {
		switch {
		case d.acknowledged && !again[id].Replayed:
			a.Lost = append(a.Lost, fmt.Sprintf("%s d%d: %+v", l.principal(id)[:2], id, again[id]))
		case !d.acknowledged && again[id].Replayed:
			a.Recovered++
		}
		if d.acknowledged {
			acknowledged[id%principals]++
		}
	}
	for k := range used {
		if used[k] < acknowledged[k] && len(a.Lost) == 0 {
			err = errors.Join(err, fmt.Errorf("p%d: %d allows were acknowledged, %d are consumed",
				k, acknowledged[k], used[k]))
		}
	}
	return a, errors.Join(err, l.auditTotal(ctx, len(sent)))
}

// auditTotal checks that n decisions, numbered from 0, are consumed once each.
func (l *Load) auditTotal(ctx context.Context, n int) error {
	used, err := l.used(ctx)
	for k := range used {
		want := int64((n - k + principals - 1) / principals)
		if err == nil && used[k] != want {
			err = fmt.Errorf("p%d: %d decisions were made, some asked for twice; %d are consumed", k, want, used[k])
		}
	}
	return err
}

func (l *Load) used(ctx context.Context) (used [principals]int64, err error) {
	for k := range used {
		if used[k], err = l.cluster.Used(ctx, l.principal(k)); err != nil {
			return used, err
		}
	}
	return used, nil
}

// askAgain asks for n decisions again, each until there is an answer, which must be an allow.
func (l *Load) askAgain(ctx context.Context, n int) ([]answer, error) {
	answers := make([]answer, n)
	var next atomic.Int64
	var wg sync.WaitGroup
	failed := make([]error, workers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for w := range workers {
		wg.Go(func() {
			for id := int(next.Add(1)) - 1; id < n && failed[w] == nil; id = int(next.Add(1)) - 1 {
				answers[id], failed[w] = l.settle(ctx, id)
			}
			if failed[w] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return answers, errors.Join(failed...)
}

// settle asks for one decision at one node after another until there is an answer.
func (l *Load) settle(ctx context.Context, id int) (a answer, err error) {
	turn, definite := id, false
	waited := process.Await(ctx, fmt.Sprintf("an answer to decision %d", id), func() bool {
		a, err = l.ask(l.cluster.Nodes[turn%len(l.cluster.Nodes)], id)
		turn++
		definite = err == nil && a.Status != http.StatusServiceUnavailable
		return definite
	})
	if !definite {
		return a, errors.Join(waited, err)
	}
	if !a.Allowed {
		return a, fmt.Errorf("decision %d, asked for again, is no allow: %+v", id, a)
	}
	return a, nil
}
