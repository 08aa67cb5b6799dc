package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/disk"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
	"github.com/quorate/quorate/jepsen/report"
	"github.com/quorate/quorate/jepsen/workload"
)

// Options are what a run is asked for.
type Options struct {
	Mix       string
	Seed      uint64
	Duration  time.Duration // of the faults; 0: what the mix says
	Nodes     int
	Faults    []string // kinds; none: the mix's
	Workloads []string // none: the mix's
	Require   []string // what the machine must have: namespaces, disks
	Program   string   // an absolute path; built with the tag chaos
	Release   string   // another build of it, for mixed-versions; an absolute path, or empty
	Mutant    string   // the guard that is switched off in the program, where one is
	Dir       string   // which must not hold a run
	Out       io.Writer
}

const (
	// settleFor is how long the cluster is asked after everything was healed, and again after the core is alone.
	settleFor = 15 * time.Second
	// beginWithin is how long it may take until the first checks are decided.
	beginWithin = 60 * time.Second
	// firstDecisions are waited for before the first fault.
	firstDecisions = 50
	// partitions are there at first.
	partitions = 3
	// snapshotLogMiB is after how much log a snapshot is taken: so little that there are many, and that who is away for
	// long has to be sent one.
	snapshotLogMiB = 1
	// replicas are those of a partition.
	replicas = 3
	// identity is the gateway that all clients show a certificate of.
	identity = "edge"
	// clusterDir holds the nodes' files while the run goes on.
	clusterDir = "cluster"
	// logsDir holds the nodes' logs in the end.
	logsDir = "logs"
)

// Errors of a run that shows nothing, apart from what the verdict says.
var errHarness = errors.New("the run itself failed, which says nothing of the cluster")

// Do makes a run and judges it. An error means that there is no verdict that could be relied on; the verdict may be
// there all the same.
func Do(ctx context.Context, o Options) (*check.Verdict, error) {
	r, err := prepare(ctx, o)
	if err != nil {
		return nil, err
	}
	err = r.play(ctx)
	if err != nil {
		r.say("%v", err)
		err = fmt.Errorf("%w: %w", errHarness, err)
	}
	v, judging := r.judge()
	return v, errors.Join(err, judging, r.tidyUp(err == nil && judging == nil && v.Passed))
}

// run is one run.
type run struct {
	Options
	config   *history.Config
	kinds    []workload.Kind
	recorder *history.Recorder
	begun    time.Time
	cluster  *cluster.Cluster
	images   map[string]*disk.Image // by node; none where the machine has none
	policies *publisher
	crowd    *workload.Crowd
	doors    *doors
	faults   faults
}

func (r *run) now() time.Duration { return time.Since(r.begun) }

// say tells whoever looks on.
func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.Out, "%8.1fs  %s\n", r.now().Seconds(), fmt.Sprintf(format, args...))
}

// asOne is how long two clocks may take to be read as if at one instant: the judges allow for no difference.
const asOne = 20 * time.Microsecond

// beginning is the instant from which the history counts, and CLOCK_MONOTONIC then.
func beginning() (begun time.Time, monotonicNanos int64, err error) {
	for range 1000 {
		var now unix.Timespec
		begun = time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return begun, 0, err
		}
		if time.Since(begun) < asOne {
			return begun, now.Nano(), nil
		}
	}
	return begun, 0, fmt.Errorf("this machine does not read two clocks within %v", asOne)
}

// prepare finds out what the run will be, and begins its directory.
func prepare(ctx context.Context, o Options) (*run, error) {
	mix, err := FindMix(o.Mix)
	if err != nil {
		return nil, err
	}
	if len(o.Workloads) == 0 {
		o.Workloads = mix.Workloads
	}
	if len(o.Faults) == 0 {
		o.Faults = mix.Faults
	}
	if len(o.Faults) == 0 {
		o.Faults = Kinds()
	}
	if o.Duration == 0 {
		o.Duration = mix.Duration
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	r := &run{Options: o}
	if r.kinds, err = workload.Pick(o.Workloads); err != nil {
		return nil, err
	}
	if o.Nodes < replicas {
		return nil, fmt.Errorf("%d nodes: a partition has %d replicas, so give at least as many", o.Nodes, replicas)
	}
	has, why := Machine(ctx)
	for _, need := range o.Require {
		if !has[need] {
			return nil, fmt.Errorf("the run requires %s, and this machine has none: %s", need, why[need])
		}
	}
	version, err := process.Run(ctx, o.Program, "version", "-o", "json")
	if err != nil {
		return nil, err
	}
	begun, monotonicNanos, err := beginning()
	if err != nil {
		return nil, err
	}
	r.begun = begun
	r.config = &history.Config{
		Name: mix.Name, Seed: o.Seed, Program: strings.Join(strings.Fields(string(version)), " "), Mutant: o.Mutant,
		Nodes: o.Nodes, Duration: o.Duration, Began: r.begun.UTC(), BeganMonotonic: monotonicNanos,
		Available: has, Skipped: map[string]string{}, Workloads: workload.Names(r.kinds), Faults: o.Faults,
	}
	if err := r.chooseFaults(has, why); err != nil {
		return nil, err
	}
	r.recorder, err = history.Record(o.Dir, r.config)
	return r, err
}

// play makes the run, until nothing runs any more.
func (r *run) play(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, r.recorder.Close()) }()
	dir := filepath.Join(r.Dir, clusterDir)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if err := r.start(ctx, dir); err != nil {
		return err
	}
	watching, unwatch := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		r.watch(watching)
	}()
	err = r.phases(ctx)
	unwatch()
	<-watched
	return errors.Join(err, r.end(context.WithoutCancel(ctx)))
}

// start makes the cluster and begins to ask it.
func (r *run) start(ctx context.Context, dir string) (err error) {
	starting, cancel := context.WithTimeout(ctx, beginWithin)
	defer cancel()
	policy := workload.PolicyOf(r.kinds)
	if r.cluster, err = r.makeCluster(starting, dir, policy); err != nil {
		return err
	}
	r.policies = newPublisher(r, cluster.NewPolicies(r.cluster, r.now))
	if r.doors, err = r.openDoors(); err != nil {
		return err
	}
	var publisher workload.Publisher
	if !slices.Contains(r.Options.Faults, "tighten") && !slices.Contains(r.Options.Faults, "loosen") {
		publisher = r.policies
	}
	// Over gRPC they are behind the faults of the network; over HTTP beside them, where relays make these.
	var nodes []workload.Node
	for _, n := range r.cluster.Nodes[:r.Nodes] {
		nodes = append(nodes, workload.Node{ID: n.ID, GRPC: n.Dialled.GRPC, HTTP: n.HTTP})
	}
	// It asks until it is stopped, whatever else ends.
	r.crowd, err = workload.Start(context.WithoutCancel(ctx), workload.Options{
		Seed: r.Seed, Kinds: r.kinds, Nodes: nodes, Doors: r.doors.all, Gateway: r.doors.gateway, Identity: identity,
		Recorder: r.recorder, Now: r.now, Publisher: publisher,
	})
	if err != nil {
		return err
	}
	return process.Await(starting, "the first checks are decided", func() bool {
		decided := int64(0)
		for _, c := range r.crowd.Counts() {
			decided += c.Allowed + c.Denied
		}
		return decided >= firstDecisions
	})
}

// end stops what runs.
func (r *run) end(ctx context.Context) error {
	var errs []error
	if r.crowd != nil {
		errs = append(errs, r.crowd.Stop())
	}
	if r.doors != nil {
		errs = append(errs, r.doors.close())
	}
	if r.policies != nil {
		errs = append(errs, r.policies.record())
	}
	if r.cluster != nil {
		errs = append(errs, r.stopNodes(ctx))
	}
	return errors.Join(errs...)
}

// judge judges the run by its directory, and leaves the verdict there.
func (r *run) judge() (*check.Verdict, error) {
	r.say("nothing runs any more: judging")
	v, err := check.Run(r.Dir)
	if err != nil {
		return nil, err
	}
	if err := v.Write(r.Dir); err != nil {
		return v, err
	}
	return v, report.Write(r.Dir)
}

// tidyUp leaves the logs, and the data directories of a run that failed.
func (r *run) tidyUp(passed bool) error {
	from := filepath.Join(r.Dir, clusterDir)
	logs := filepath.Join(r.Dir, logsDir)
	if err := os.MkdirAll(logs, 0o750); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(from, "*.log"))
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Rename(f, filepath.Join(logs, filepath.Base(f))); err != nil {
			return err
		}
	}
	if passed {
		return os.RemoveAll(from)
	}
	return os.Rename(from, filepath.Join(r.Dir, history.DataDir))
}
