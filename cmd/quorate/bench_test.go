package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quorate/quorate/bench/capacity"
)

// Shows that what bench and capacity cannot do is refused with status 2, before anything is asked, by a line that
// says what to give.
func TestBenchUsage(t *testing.T) {
	planned := func(more ...string) []string {
		return append([]string{"capacity", "--rps", "1", "--principals", "1", "--limit", "1", "--window", "60s"}, more...)
	}
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"bench", "more"}, "unknown command"},
		{[]string{"bench", "--clients", "0"}, "0 clients: give 1 to"},
		{[]string{"bench", "--keys", "0", "--zipf", "-1"}, "0 keys: give 1 to"},
		{[]string{"bench", "--rate", "0"}, "--rate is 0"},
		{[]string{"bench", "--rate", "NaN"}, "a rate of NaN/s"},
		{[]string{"bench", "--rate", "5", "--sweep", "1,2,3"}, "give one"},
		{[]string{"bench", "--sweep", "1,2"}, "is not FROM,TO,STEPS"},
		{[]string{"bench", "--sweep", "1,x,3"}, "in numbers"},
		{[]string{"bench", "--sweep", "2,1,3"}, "give growing rates"},
		{[]string{"bench", "--svg", "x.svg"}, "give --sweep"},
		{[]string{"bench", "--connections", "65"}, "use 1 to 64"},
		{[]string{"bench", "--class", ""}, "--class is empty"},
		{[]string{"bench", "--exhausted", "1.5"}, "an exhausted share of 1.5: give 0 to 1"},
		{[]string{"bench", "--duration", "0s"}, "a duration of 0s"},
		{[]string{"capacity", "--rps", "1"}, "--principals is missing"},
		{planned("--window", "1"), "--window"},
		{planned("--denied", "2"), "give 0 to 1"},
		{planned("--cores", "0"), "0 cores per node"},
	} {
		r := runWith(t, "", row.args...)
		if r.status != exitUsage || r.stdout != "" || !strings.Contains(r.stderr, row.want) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%q: %+v, want %q", row.args, r, row.want)
		}
	}
}

// Shows that bench says what to do when no cluster answers, with status 4.
func TestBenchWithoutCluster(t *testing.T) {
	r := runWith(t, "", "bench", "--addr", "127.0.0.1:1", "--timeout", "200ms", "--duration", "1ms")
	if r.status != exitUnavailable || !strings.Contains(r.stderr, "start a cluster with `quorate dev`") {
		t.Errorf("%+v", r)
	}
}

// Shows what capacity prints: a plan in each format, a warning where the limit caps the rate, and the figures with
// those marked that were not measured.
func TestCapacity(t *testing.T) {
	args := []string{"capacity", "--rps", "50000", "--principals", "1000000", "--limit", "100", "--window", "1d"}
	var plan capacity.Plan
	mustJSON(t, &plan, args...)
	if plan.Owners < 1 || plan.Nodes < 3 || plan.OwnersFor == "" || plan.NodeMemoryBytes <= 0 {
		t.Errorf("%+v", plan)
	}
	r := mustRun(t, args...)
	for _, want := range []string{"owners", "nodes", "memory of a node", "network of a node"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	if !strings.Contains(r.stderr, "say so with --denied") {
		t.Errorf("a limit of 100 a day at 50,000/s: %q", r.stderr)
	}
	if r := mustRun(t, "capacity", "--figures"); !strings.Contains(r.stdout, "not measured: ") {
		t.Errorf("%s", r.stdout)
	}
}

// benchReport are the fields of the contract, and some more.
type benchReport struct {
	DecisionsPerS *float64 `json:"decisions_per_s"`
	P50           *int64   `json:"p50_us"`
	P99           *int64   `json:"p99_us"`
	P999          *int64   `json:"p999_us"`
	Allowed       *uint64  `json:"allowed"`
	Denied        *uint64  `json:"denied"`
	Unavailable   *uint64  `json:"unavailable"`
	Errors        *uint64  `json:"errors"`

	Mode        string        `json:"mode"`
	Hinted      uint64        `json:"hinted"`
	Refilled    uint64        `json:"refilled"`
	Interrupted bool          `json:"interrupted"`
	FirstError  string        `json:"first_error"`
	Points      []benchReport `json:"points"`
}

// bench runs the load generator against all nodes, and checks that what it says fits together.
func (p *processes) bench(t *testing.T, args ...string) (v benchReport) {
	t.Helper()
	r := p.ask(t, append([]string{"bench", "-o", "json", "--warm-up", "50ms", "--duration", "300ms"}, args...)...)
	if r.status != exitDone {
		t.Fatalf("%q: %+v", args, r)
	}
	return mustReport(t, r.stdout)
}

func mustReport(t *testing.T, text string) (v benchReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if v.DecisionsPerS == nil || v.P50 == nil || v.P99 == nil || v.P999 == nil || v.Allowed == nil || v.Denied == nil ||
		v.Unavailable == nil || v.Errors == nil {
		t.Fatalf("a field is missing: %s", text)
	}
	if *v.DecisionsPerS <= 0 || *v.P50 <= 0 || *v.P50 > *v.P99 || *v.P99 > *v.P999 || *v.Errors != 0 {
		t.Errorf("%s", text)
	}
	return v
}

// Shows the load generator against a real cluster: both loops; a limit that holds under it, so that no more is
// allowed than keys and limit admit; exhausted keys, which are denied by the owner, or by hints if they are asked
// for; a sweep with its picture; and an interruption, after which it prints what was measured and ends with status
// 0.
func TestBenchOnACluster(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	const keys = 5
	v := p.bench(t, "--clients", "8", "--class", "convert", "--keys", "5", "--prefix", "a-")
	if v.Mode != "closed" || *v.Allowed > 3*keys || *v.Denied == 0 || v.Hinted != 0 {
		t.Errorf("%+v", v)
	}
	for i := range keys {
		p.mustUsed(t, "a-"+string(rune('0'+i)), "convert", 3)
	}
	if v := p.bench(t, "--rate", "200", "--keys", "1000", "--prefix", "b-"); v.Mode != "open" || *v.Allowed == 0 || *v.Denied != 0 {
		t.Errorf("%+v", v)
	}
	exhausted := []string{"--clients", "4", "--class", "convert", "--keys", "50", "--exhausted", "1", "--prefix", "c-"}
	if v := p.bench(t, exhausted...); *v.Allowed != 0 || *v.Denied == 0 || v.Refilled != 0 || v.Hinted != 0 {
		t.Errorf("%+v", v)
	}
	if v := p.bench(t, append(exhausted, "--hints")...); *v.Allowed != 0 || v.Hinted == 0 {
		t.Errorf("with hints: %+v", v)
	}
	svg := filepath.Join(t.TempDir(), "latency.svg")
	if v := p.bench(t, "--sweep", "50,150,2", "--keys", "1000", "--prefix", "d-", "--svg", svg); len(v.Points) != 2 {
		t.Errorf("%+v", v)
	}
	if b, err := os.ReadFile(svg); err != nil || !strings.HasSuffix(string(b), "</svg>\n") {
		t.Errorf("%v: %.100s", err, b)
	}
	p.mustInterrupt(t)
}

// mustInterrupt breaks off a load that has begun to be decided.
func (p *processes) mustInterrupt(t *testing.T) {
	t.Helper()
	cmd := exec.Command(mustBinary(t), "bench", "-o", "json", "--addr", p.addrs(), "--clients", "4", "--class", "convert",
		"--keys", "1", "--prefix", "interrupted-", "--warm-up", "0s", "--duration", "10m")
	var out, errOut lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	mustSpawn(t, cmd)
	until(t, "it has used up what one principal may", func() bool {
		r := p.ask(t, "peek", "interrupted-0", "convert", "-o", "json")
		return strings.Contains(r.stdout, `"used":3`)
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, &errOut)
	}
	if v := mustReport(t, out.String()); !v.Interrupted || *v.Allowed != 3 || !strings.Contains(errOut.String(), "interrupted: ") {
		t.Errorf("%+v %s", v, &errOut)
	}
}
