package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The load that all peers get. The limit is one that a principal does not reach: allows are what costs.
const (
	keys   = 100_000
	limit  = 100
	window = 10 * time.Second
)

// config is what the flags say.
type config struct {
	quorate          string
	dir              string
	basePort         int
	rounds           int
	outstanding      []int
	warmUp, duration time.Duration
	only             string
	doc, svg, raw    string
	most             time.Duration
}

// The kernel ends what this program starts when the thread that started it ends, and that is the main one.
func init() { runtime.LockOSThread() }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var err error
	if len(os.Args) > 1 && os.Args[1] == gubernatorNode {
		err = serveGubernator(ctx, os.Args[2:])
	} else {
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "peers: %v\n", err)
		os.Exit(1) //nolint:forbidigo // the one exit
	}
}

func parse(args []string, stderr io.Writer) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	f.SetOutput(stderr)
	var outstanding string
	f.StringVar(&c.quorate, "quorate", "", "program of Quorate")
	f.StringVar(&c.dir, "dir", "", "where the peers keep their files, on the disk that is meant (default: temporary)")
	f.IntVar(&c.basePort, "base-port", 21070, "first port; 100 are used")
	f.IntVar(&c.rounds, "rounds", 5, "rounds")
	f.StringVar(&outstanding, "outstanding", "2048,256", "checks under way, n[,…]")
	f.DurationVar(&c.warmUp, "warm-up", time.Second, "load before each measurement")
	f.DurationVar(&c.duration, "duration", 4*time.Second, "length of each measurement")
	f.StringVar(&c.only, "only", "", "names of the peers to measure, a[,…], Quorate aside (default: all)")
	f.StringVar(&c.doc, "doc", "", "Markdown file whose part between the markers is replaced by the result")
	f.StringVar(&c.svg, "svg", "", "file for the picture")
	f.StringVar(&c.raw, "json", "", "file for all measurements")
	f.DurationVar(&c.most, "most", 40*time.Minute, "how long it may take in all")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	for _, s := range strings.Split(outstanding, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > 65_536 {
			return nil, fmt.Errorf("-outstanding %q: give numbers from 1 to 65536", outstanding)
		}
		c.outstanding = append(c.outstanding, n)
	}
	switch {
	case c.quorate == "":
		return nil, errors.New("-quorate is missing: name the program, as bin/quorate")
	case c.rounds < 1 || c.rounds > 100:
		return nil, fmt.Errorf("-rounds is %d: give 1 to 100", c.rounds)
	case c.duration <= 0 || c.warmUp < 0 || c.duration+c.warmUp >= window:
		return nil, fmt.Errorf("-warm-up and -duration are %s: keep them below %s in all", c.warmUp+c.duration, window)
	}
	return c, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, c.most)
	defer cancel()
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "quorate-peers-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()
	}
	m, err := aboutMachine(c.dir)
	if err != nil {
		return err
	}
	res := &result{Machine: m, Rounds: c.rounds, WarmUp: c.warmUp, Duration: c.duration, Outstanding: c.outstanding}
	found := c.peers(res)
	if err := c.measure(ctx, found, res, stderr); err != nil {
		return err
	}
	res.Machine.LoadAfter = loadAverage()
	return c.write(res, stdout)
}

// write prints the result, and puts it into the files that were named.
func (c *config) write(res *result, stdout io.Writer) error {
	text := res.markdown()
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	if c.svg != "" {
		if err := os.WriteFile(c.svg, res.picture(), 0o644); err != nil { //nolint:gosec // G306: for everybody
			return err
		}
	}
	if c.raw != "" {
		raw, err := json.MarshalIndent(res, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.raw, append(raw, '\n'), 0o644); err != nil { //nolint:gosec // G306: for everybody
			return err
		}
	}
	if c.doc == "" {
		return nil
	}
	doc, err := os.ReadFile(c.doc)
	if err != nil {
		return err
	}
	changed, err := between(string(doc), text)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(c.doc), err)
	}
	return os.WriteFile(c.doc, []byte(changed), 0o644) //nolint:gosec // G306: for everybody
}
