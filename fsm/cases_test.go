package fsm_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/trace"
)

const casesDir = "../testdata/cases"

// Shows that the machine answers every recorded trace as recorded, line for line, also when each entry
// goes through its encoding and the machine is replaced by its restored snapshot every few entries.
func TestRecordedCases(t *testing.T) {
	eachCase(t, func(t *testing.T, c *recorded) {
		for n := range c.lines {
			if n%50 == 49 && c.m.Born() {
				c.m = mustRestore(t, c.m)
			}
			c.step(t, n)
		}
	})
}

// Shows that a partition which is moved before any one line of a trace gives the recorded answers to the rest of
// it, shifted into the time of the machine that it came to; and that the machine which it would have left gives
// them when the plan is undone.
func TestRecordedCasesMovedBeforeAnyLine(t *testing.T) {
	eachCase(t, func(t *testing.T, c *recorded) {
		unmoved := *c
		unmoved.m = fsm.New()
		for n := range c.lines {
			unmoved.step(t, n)
		}
		for n := range c.lines {
			if c.m.Born() {
				h := c.handoff(t, fsm.PlanID(n+1), fsm.Time(n*n*1e6+n))
				h.pull()
				h.freeze()
				h.open()
				h.seal()
				h.activate(c.epoch + 1)
				moved := *c
				moved.m, moved.epoch, moved.ahead = h.dst, c.epoch+1, c.ahead+h.dst.Now()-h.src.Now()
				for later := n; later < len(c.lines) && later < n+movedLines; later++ {
					moved.step(t, later)
				}
				h.abort(h.src)
			}
			c.step(t, n)
		}
	})
}

// movedLines is how much of a long trace is looked at after a move: more than the windows of the long ones hold.
const movedLines = 120

// Shows that a partition which is moved before each line of a trace anew, with all steps of a plan, gives the
// recorded answers.
func TestRecordedCasesMovedBeforeEachLine(t *testing.T) {
	eachCase(t, func(t *testing.T, c *recorded) {
		for n := range c.lines {
			if c.m.Born() {
				h := c.handoff(t, fsm.PlanID(n+1), fsm.Time(n*n*1e6+n)*fsm.Time(1-n%2*2))
				h.move(c.epoch + 1)
				c.epoch, c.ahead = c.epoch+1, c.ahead+h.dst.Now()-h.src.Now()
				c.m = h.dst
			}
			c.step(t, n)
		}
	})
}

// recorded is a trace on its way through a machine.
type recorded struct {
	m        *fsm.Machine
	epoch    fsm.Epoch
	ahead    fsm.Time // of the trace's time
	policies []*policy.Policy
	lines    []*trace.Line
	want     []map[string]any     // by line; nil where none is
	right    map[int]trace.Answer // that are as wanted
}

func eachCase(t *testing.T, f func(t *testing.T, c *recorded)) {
	t.Helper()
	dirs, err := os.ReadDir(casesDir)
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) < 33 {
		t.Fatalf("%d cases in %s, want at least 33", len(dirs), casesDir)
	}
	for _, d := range dirs {
		t.Run(d.Name(), func(t *testing.T) { f(t, mustReadCase(t, filepath.Join(casesDir, d.Name()))) })
	}
}

func mustReadCase(t *testing.T, dir string) *recorded {
	t.Helper()
	first, err := policy.Parse("policy.yaml", mustRead(t, filepath.Join(dir, "policy.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	c := &recorded{m: fsm.New(), epoch: 1, policies: []*policy.Policy{first}, right: map[int]trace.Answer{}}
	want := bytes.Split(bytes.TrimSpace(mustRead(t, filepath.Join(dir, "want.jsonl"))), []byte("\n"))
	lines := trace.NewReader("trace.jsonl", bytes.NewReader(mustRead(t, filepath.Join(dir, "trace.jsonl"))))
	for {
		line, err := lines.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		c.lines, c.want = append(c.lines, line), append(c.want, nil)
		if line.Policy == nil {
			if len(want) == 0 {
				t.Fatal("fewer answers than checks")
			}
			c.want[len(c.want)-1] = mustFields(t, want[0])
			want = want[1:]
		}
	}
	if len(want) > 0 {
		t.Fatalf("%d answers more than checks", len(want))
	}
	return c
}

// step applies a line, and wants its recorded answer.
func (c *recorded) step(t *testing.T, n int) {
	t.Helper()
	line := c.lines[n]
	var answer trace.Answer
	switch {
	case line.Malformed != nil:
		answer = trace.MalformedAnswer(line.Check.DecisionID)
	case line.Policy != nil:
		c.bear(t, line)
		next, err := policy.Parse("trace.jsonl", line.Policy)
		if err != nil {
			t.Fatal(err)
		}
		c.policies = append(c.policies[:len(c.policies):len(c.policies)], next)
		install := fsm.NewInstall(fsm.Revision(len(c.policies)), next)
		c.apply(t, &fsm.Entry{Kind: fsm.KindInstall, Install: &install}, line)
		return
	default:
		c.bear(t, line)
		check := *line.Check
		check.RouteEpoch = c.epoch
		d := c.apply(t, &fsm.Entry{Kind: fsm.KindBatch, Checks: []fsm.Check{check}}, line).Decisions[0]
		d.AsOf -= c.ahead
		if d.Reason == fsm.ReasonQuotaExhausted {
			d.RetryAt -= c.ahead
		}
		answer = trace.NewAnswer(check.DecisionID, &d)
	}
	if known, ok := c.right[n]; ok && reflect.DeepEqual(known, answer) {
		return
	}
	if diff := cmp.Diff(c.want[n], mustFields(t, mustJSON(t, answer))); diff != "" {
		t.Fatalf("line %d (-want +got):\n%s", n+1, diff)
	}
	c.right[n] = answer
}

// bear makes the partition at the first line that is an entry.
func (c *recorded) bear(t *testing.T, line *trace.Line) {
	t.Helper()
	if c.m.Born() {
		return
	}
	c.apply(t, &fsm.Entry{Kind: fsm.KindBirth, Birth: &fsm.Birth{
		Owned:  []fsm.OwnedRange{{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: c.epoch}},
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(1, c.policies[0]),
	}}, line)
}

func (c *recorded) apply(t *testing.T, e *fsm.Entry, line *trace.Line) *fsm.Answers {
	t.Helper()
	e.Term, e.Stamp = 1, line.At+c.ahead
	return c.m.Step(1, mustRecode(t, e))
}

// handoff begins a plan that moves all slots to a new machine, whose time is ahead by so much more.
func (c *recorded) handoff(t *testing.T, plan fsm.PlanID, ahead fsm.Time) *handoff {
	t.Helper()
	h := &handoff{t: t, plan: plan, src: c.m, dst: fsm.New(), ranges: allSlots, bodies: bodies(c.policies)}
	h.dst.Step(1, &fsm.Entry{Kind: fsm.KindBirth, Term: 1, Stamp: c.m.Now() + ahead, Birth: &fsm.Birth{
		Bounds: fsm.DefaultBounds(), Install: fsm.NewInstall(c.m.Revision(), c.policies[len(c.policies)-1]),
	}})
	return h
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func mustFields(t *testing.T, line []byte) map[string]any {
	t.Helper()
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return fields
}
