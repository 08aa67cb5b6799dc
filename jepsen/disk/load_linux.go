package disk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

const (
	// workers make decisions at the same time, paddedWorkers those of a load that is to fill the log.
	workers       = 16
	paddedWorkers = 64
	// principals share the decisions of a load.
	principals = 8
	// maxDecisions bounds a load.
	maxDecisions = 200_000
	// answerTimeout bounds one request: above the server's own bound for it.
	answerTimeout = 7 * time.Second
	// failurePause keeps a worker from asking nodes that are down as fast as it can.
	failurePause = 20 * time.Millisecond
)

// Load has decisions made until it is stopped, and records them. All its methods may be called at any time, by
// several goroutines.
type Load struct {
	cluster *Cluster
	begun   time.Time
	padding string
	http    *http.Client

	stop    chan struct{}
	stopped sync.Once
	done    sync.WaitGroup
	busy    sync.RWMutex // held for reading while a decision is asked for, for writing in a pause

	mu           sync.Mutex // guards the fields below
	sent         []decision
	acknowledged int
	refusals     map[string]int // by reason
	unexpected   error          // an answer that no fault excuses
}

// decision is one that was asked for; its place in Load.sent is its id.
type decision struct {
	acknowledged bool
}

// answer is one of /v1/check, be it a decision or a problem.
type answer struct {
	Status   int    `json:"-"`
	Allowed  bool   `json:"allowed"`
	Replayed bool   `json:"replayed"`
	Reason   string `json:"reason"`
}

// StartLoad begins a load on all nodes. With padding, principals have names as long as they may, so that the log
// grows fast.
func (c *Cluster) StartLoad(padded bool) *Load {
	l := &Load{
		cluster: c, begun: time.Now(), stop: make(chan struct{}), refusals: map[string]int{},
		http: &http.Client{
			Timeout:   answerTimeout,
			Transport: &http.Transport{MaxIdleConnsPerHost: paddedWorkers},
		},
	}
	count := workers
	if padded {
		count = paddedWorkers
		l.padding = strings.Repeat("-", 500)
	}
	for w := range count {
		l.done.Go(func() { l.work(w) })
	}
	return l
}

// work makes one decision after another, each at the next node.
func (l *Load) work(turn int) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		l.busy.RLock()
		ok := l.decide(turn)
		l.busy.RUnlock()
		turn++
		if ok {
			continue
		}
		select {
		case <-l.stop:
			return
		case <-time.After(failurePause):
		}
	}
}

// decide asks for one new decision and records the answer.
func (l *Load) decide(turn int) bool {
	l.mu.Lock()
	id := len(l.sent)
	full := id >= maxDecisions
	if !full {
		l.sent = append(l.sent, decision{})
	}
	l.mu.Unlock()
	if full {
		return false
	}
	a, err := l.ask(l.cluster.Nodes[turn%len(l.cluster.Nodes)], id)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.refusals["unreachable"]++
	case a.Status == http.StatusOK && a.Allowed: // replayed, when the node that was asked had to ask again
		l.sent[id].acknowledged = true
		l.acknowledged++
		return true
	case a.Status == http.StatusServiceUnavailable:
		l.refusals[a.Reason]++
	default:
		l.unexpected = errors.Join(l.unexpected, fmt.Errorf("decision %d, asked for once: %+v", id, a))
	}
	return false
}

func (l *Load) principal(k int) string { return fmt.Sprint("p", k%principals, l.padding) }

// ask sends the check with an id to a node. A repeat has the same payload.
func (l *Load) ask(n *Node, id int) (answer, error) {
	body, err := json.Marshal(map[string]string{
		"principal": l.principal(id), "api_class": class, "decision_id": fmt.Sprint("d", id),
	})
	if err != nil {
		return answer{}, err
	}
	resp, err := l.http.Post("http://"+n.HTTP+"/v1/check", "application/json", bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	text, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return answer{}, err
	}
	a := answer{Status: resp.StatusCode}
	if err := json.Unmarshal(text, &a); err != nil {
		return a, fmt.Errorf("status %d: %w: %s", resp.StatusCode, err, text)
	}
	return a, nil
}

// Acknowledged is how many allows have been acknowledged so far.
func (l *Load) Acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acknowledged
}

// AwaitMore waits until n more allows have been acknowledged than there are now.
func (l *Load) AwaitMore(ctx context.Context, n int) error {
	from := l.Acknowledged()
	return process.Await(ctx, fmt.Sprintf("%d more decisions", n), func() bool { return l.Acknowledged() >= from+n })
}

// AwaitRefusals waits until n more decisions have been refused for a reason than there are now. The empty reason
// stands for any, "unreachable" for a node without an answer.
func (l *Load) AwaitRefusals(ctx context.Context, reason string, n int) error {
	refused := func() (sum int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for r, count := range l.refusals {
			if reason == "" || r == reason {
				sum += count
			}
		}
		return sum
	}
	from := refused()
	return process.Await(ctx, fmt.Sprintf("%d more refusals %s", n, reason), func() bool { return refused() >= from+n })
}

// Pause returns when nothing is asked for any more, until the function that it returns is called, once.
func (l *Load) Pause() (resume func()) {
	l.busy.Lock()
	return l.busy.Unlock
}

// Stop ends the load and waits for the answers that are still to come. It may be called again.
func (l *Load) Stop() {
	l.stopped.Do(func() { close(l.stop) })
	l.done.Wait()
	l.http.CloseIdleConnections()
}
