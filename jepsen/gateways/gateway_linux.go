package gateways

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/jepsen/gateways/talk"
)

const (
	// maxChecks bounds what one gateway may tell of.
	maxChecks = 2_000_000
	// maxEventBytes bounds a line.
	maxEventBytes = 1 << 20
	// answerWithin is how long a gateway may take to do what it is told.
	answerWithin = 30 * time.Second
	// endWithin is how long it may take to end.
	endWithin = 10 * time.Second
	// maxWords bounds what is kept of its standard error.
	maxWords = 16 << 10
)

// Build builds the gateway's program into dir, and returns its path. It runs where this package's tests do.
func Build(dir string) (string, error) {
	binary := filepath.Join(dir, "gateway")
	cmd := exec.Command("go", "build", "-buildvcs=false", "-tags=hashicorpmetrics", "-o", binary, "./gateway")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return binary, nil
}

// Arrival is a policy revision that a gateway has, and by when it had it.
type Arrival struct {
	Revision uint64
	At       int64
}

// Gateway is one gateway's process. What it has told may be asked for by several goroutines; commands are for one.
type Gateway struct {
	Name string

	cmd   *exec.Cmd
	in    io.WriteCloser
	done  chan talk.Event // what it has done: all events but checks and revisions
	ended chan struct{}   // closed when its output has ended

	mu       sync.Mutex // guards the fields below
	checks   []talk.Check
	arrivals []Arrival
	words    bytes.Buffer // on standard error
	err      error        // of reading
}

// Start starts a gateway, whose flags are given, and waits until it runs.
func Start(ctx context.Context, binary, name string, args ...string) (*Gateway, error) {
	g := &Gateway{
		Name: name, cmd: exec.Command(binary, args...), done: make(chan talk.Event, 16), ended: make(chan struct{}),
	}
	in, err := g.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	g.in, g.cmd.Stderr = in, (*words)(g)
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("gateway %s: %w", name, err)
	}
	go g.read(out)
	if _, err := g.await(ctx, talk.KindReady); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// words keeps the beginning of what a gateway says on standard error.
type words Gateway

// Write keeps what there is room for.
func (w *words) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.words.Write(b[:min(len(b), max(0, maxWords-w.words.Len()))])
	return len(b), nil
}

// read takes the events until there are no more.
func (g *Gateway) read(out io.Reader) {
	defer close(g.ended)
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 0, 64<<10), maxEventBytes)
	for lines.Scan() {
		var e talk.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			g.fail(fmt.Errorf("event %.200q: %w", lines.Text(), err))
			continue
		}
		g.take(e)
	}
	if err := lines.Err(); err != nil {
		g.fail(err)
		_, _ = io.Copy(io.Discard, out) // so that it can end
	}
}

func (g *Gateway) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = errors.Join(g.err, err)
}

func (g *Gateway) take(e talk.Event) {
	switch {
	case e.Kind == talk.KindCheck && e.Check != nil:
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.checks) >= maxChecks {
			g.err = fmt.Errorf("it has told of more than %d checks", maxChecks)
			return
		}
		g.checks = append(g.checks, *e.Check)
	case e.Kind == talk.KindRevision:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.arrivals = append(g.arrivals, Arrival{e.Revision, e.At})
	default:
		select {
		case g.done <- e:
		default:
			g.fail(fmt.Errorf("nobody has asked for %+v", e))
		}
	}
}

// await waits for an event of a kind.
func (g *Gateway) await(ctx context.Context, kind string) (talk.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	for {
		select {
		case e := <-g.done:
			if e.Kind == talk.KindFailed {
				return e, fmt.Errorf("gateway %s: %s", g.Name, e.Text)
			}
			if e.Kind == kind {
				return e, nil
			}
		case <-g.ended:
			return talk.Event{}, fmt.Errorf("gateway %s has ended: %s", g.Name, g.said())
		case <-ctx.Done():
			return talk.Event{}, fmt.Errorf("gateway %s does not say %s: %w: %s", g.Name, kind, ctx.Err(), g.said())
		}
	}
}

func (g *Gateway) said() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.words.String()
}

func (g *Gateway) tell(c talk.Command) error {
	line, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if _, err := g.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("gateway %s: %w: %s", g.Name, err, g.said())
	}
	return nil
}

// Load has the gateway begin a load.
func (g *Gateway) Load(ctx context.Context, l talk.Load) error {
	if err := g.tell(talk.Command{Do: talk.KindLoaded, Load: &l}); err != nil {
		return err
	}
	_, err := g.await(ctx, talk.KindLoaded)
	return err
}

// Stop ends the load. Once it returns, no check is under way, Checks are all, and the counters are final.
func (g *Gateway) Stop(ctx context.Context) (*talk.Stats, error) { return g.ask(ctx, talk.KindStopped) }

// Stats are the counters as they are.
func (g *Gateway) Stats(ctx context.Context) (*talk.Stats, error) { return g.ask(ctx, talk.KindStats) }

func (g *Gateway) ask(ctx context.Context, what string) (*talk.Stats, error) {
	if err := g.tell(talk.Command{Do: what}); err != nil {
		return nil, err
	}
	e, err := g.await(ctx, what)
	if err == nil && e.Stats == nil {
		err = fmt.Errorf("gateway %s tells no counters", g.Name)
	}
	return e.Stats, err
}

// Checks are those that have ended, in the order in which they did.
func (g *Gateway) Checks() []talk.Check {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.checks)
}

// Arrivals are the revisions that it got, in order.
func (g *Gateway) Arrivals() []Arrival {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.arrivals)
}

// Close ends the gateway, which is to end by itself in good order.
func (g *Gateway) Close() error {
	_ = g.in.Close() // by which it is told; it may have ended
	errs := []error{}
	select {
	case <-g.ended:
	case <-time.After(endWithin):
		errs = append(errs, fmt.Errorf("it goes on %v after the end of its input", endWithin), g.cmd.Process.Kill())
		<-g.ended
	}
	if err := g.cmd.Wait(); err != nil {
		errs = append(errs, fmt.Errorf("%w: %s", err, g.said()))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := errors.Join(append(errs, g.err)...); err != nil {
		return fmt.Errorf("gateway %s: %w", g.Name, err)
	}
	return nil
}
