package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorate/quorate/jepsen/gateways/talk"
	"github.com/quorate/quorate/sdk"
)

func main() {
	if err := run(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "gateway:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

const (
	// maxCommandBytes bounds a line of the input.
	maxCommandBytes = 1 << 20
	// flushEvery is how long an event may wait to be written.
	flushEvery = 5 * time.Millisecond
	// lookEvery is between two looks at the policy revision.
	lookEvery = time.Millisecond
)

// gateway is the process.
type gateway struct {
	client *sdk.Client
	events *events
	load   *load // nil while there is none

	skipped atomic.Uint64 // times at which a worker should have asked, and still waited
}

func run(args []string, in io.Reader, out io.Writer) error {
	flags := flag.NewFlagSet("gateway", flag.ContinueOnError)
	addrs := flags.String("addr", "", "gRPC addresses of nodes, with commas between")
	ca, cert, key := flags.String("ca", "", "CA"), flags.String("cert", "", "certificate"), flags.String("key", "", "key")
	policy := flags.String("policy", "", "policy file")
	hints := flags.Int("hints", sdk.DefaultHintCapacity, "deny hints kept")
	if err := flags.Parse(args); err != nil {
		return err
	}
	options := []sdk.Option{sdk.WithHintCapacity(*hints)}
	if *ca != "" {
		options = append(options, sdk.WithTLSFiles(*ca, *cert, *key))
	}
	if *policy != "" {
		options = append(options, sdk.WithPolicyFile(*policy))
	}
	client, err := sdk.New(strings.Split(*addrs, ","), options...)
	if err != nil {
		return err
	}
	ctx, end := context.WithCancel(context.Background())
	g := &gateway{client: client, events: &events{out: bufio.NewWriterSize(out, 1<<18)}}
	var beside sync.WaitGroup
	beside.Go(func() { g.events.flushAll(ctx) })
	beside.Go(func() { g.watch(ctx) })
	g.events.tell(talk.Event{Kind: talk.KindReady})
	err = g.obey(ctx, in)
	g.stop()
	end()
	beside.Wait()
	return errors.Join(err, client.Close())
}

// obey does what the commands say until there are no more.
func (g *gateway) obey(ctx context.Context, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxCommandBytes)
	for lines.Scan() {
		var c talk.Command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return fmt.Errorf("command %q: %w", lines.Text(), err)
		}
		switch {
		case c.Do == talk.KindLoaded && c.Load != nil && g.load == nil:
			g.load = startLoad(ctx, g, *c.Load)
			g.events.tell(talk.Event{Kind: talk.KindLoaded})
		case c.Do == talk.KindStopped:
			g.stop()
			g.events.tell(talk.Event{Kind: talk.KindStopped, Stats: g.stats()})
		case c.Do == talk.KindStats:
			g.events.tell(talk.Event{Kind: talk.KindStats, Stats: g.stats()})
		default:
			g.events.tell(talk.Event{Kind: talk.KindFailed, Text: "no such command, or not now: " + lines.Text()})
		}
	}
	return lines.Err()
}

func (g *gateway) stop() {
	if g.load != nil {
		g.load.stop()
		g.load = nil
	}
}

// watch tells when another policy revision has arrived.
func (g *gateway) watch(ctx context.Context) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	last := uint64(0)
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
		if now := g.client.Stats().PolicyRevision; now != last {
			last = now
			g.events.tell(talk.Event{Kind: talk.KindRevision, Revision: now})
		}
	}
}

// stats are the client's counters, and what the process takes.
func (g *gateway) stats() *talk.Stats {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s := g.client.Stats()
	out := &talk.Stats{
		Classes: map[string]talk.ClassCounts{}, Sends: s.Sends, Retries: s.Retries, RetriesWithheld: s.RetriesWithheld,
		Frames: s.Frames, NodesGivenUp: s.NodesGivenUp, InFlight: s.InFlight, Hints: s.Hints, LocalHeld: s.LocalHeld,
		WatchLive: s.WatchLive, MapVersion: s.MapVersion, PolicyRevision: s.PolicyRevision,
		Goroutines: runtime.NumGoroutine(), HeapBytes: m.HeapAlloc, Skipped: g.skipped.Load(),
	}
	var cpu unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &cpu) == nil {
		out.CPUNanos = cpu.Nano()
	}
	for name, c := range s.Classes {
		out.Classes[name] = talk.ClassCounts(c)
	}
	return out
}

// events writes to the test.
type events struct {
	mu  sync.Mutex // guards out
	out *bufio.Writer
	err error
}

func (e *events) tell(event talk.Event) {
	event.At = talk.Now()
	line, err := json.Marshal(event)
	if err != nil {
		panic(err) // it has only what can be written
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		_, e.err = e.out.Write(append(line, '\n'))
	}
	if event.Kind != talk.KindCheck {
		e.flush()
	}
}

func (e *events) flush() {
	if e.err == nil {
		e.err = e.out.Flush()
	}
}

// flushAll writes what waits, every now and then and in the end.
func (e *events) flushAll(ctx context.Context) {
	every := time.NewTicker(flushEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
		}
		e.mu.Lock()
		e.flush()
		e.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
	}
}
