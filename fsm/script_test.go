package fsm_test

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// Shows how the state machine answers, entry by entry: each file under testdata/scripts is a script of
// entries with the answers that they get. Run with -rewrite to accept changed answers, and read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := newScript()
		datadriven.RunTest(t, path, s.run)
	})
}

// script drives a machine, and another one there, with which swap exchanges it. Times are in milliseconds after the
// birth unless they have a unit.
type script struct {
	m, there *fsm.Machine
	term     uint64
	now      fsm.Time
	rev      fsm.Revision
	bodies   map[fsm.Revision]*policy.Policy
	manifest fsm.Manifest // of the last freeze
}

func newScript() *script {
	return &script{m: fsm.New(), there: fsm.New(), term: 1, bodies: map[fsm.Revision]*policy.Policy{}}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	if d.HasArg("at") {
		var at string
		d.ScanArgs(t, "at", &at)
		s.now = mustTime(t, at)
	}
	var out strings.Builder
	switch d.Cmd {
	case "birth":
		s.birth(t, d)
	case "install":
		s.rev = s.m.Revision() + 1
		d.MaybeScanArgs(t, "revision", (*uint64)(&s.rev))
		if s.bodies[s.rev] == nil {
			s.bodies[s.rev] = mustPolicy(t, d.Input)
		}
		install := fsm.NewInstall(s.rev, s.bodies[s.rev])
		if a := s.step(t, &fsm.Entry{Kind: fsm.KindInstall, Install: &install}); a.Refused != fsm.ReasonUnspecified {
			fmt.Fprintf(&out, "%v (%s)\n", a.Refused, a.Detail)
		}
	case "carried":
		for _, c := range s.m.Carried() {
			fmt.Fprintf(&out, "%s: revision %d (%s) until %s\n", c.Class, c.Revision, c.Version, ms(c.Until))
		}
	case "forgive":
		s.forgive(t, d, &out)
	case "check", "peek":
		s.batch(t, d, &out)
	case "tick":
		s.step(t, &fsm.Entry{Kind: fsm.KindBatch})
	case "freeze", "pull", "open", "seal", "activate", "release", "abort", "end":
		s.plan(t, d, &out)
	case "swap":
		s.m, s.there = s.there, s.m
	case "new":
		*s = *newScript()
	case "stale":
		e := &fsm.Entry{Kind: fsm.KindBatch, Term: s.term + 1, Stamp: s.now}
		fmt.Fprintln(&out, s.m.Step(s.term, e).Refused)
	case "restore":
		before := s.m.Digest()
		s.m = mustRestore(t, s.m)
		fmt.Fprintln(&out, "same digest:", before == s.m.Digest())
	case "status":
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	if d.Cmd == "status" || d.HasArg("status") {
		st := s.m.Status()
		fmt.Fprintf(&out, "time %s, keys %d, allows %d, denials %d, revision %d\n",
			ms(st.Time), st.Keys, st.Allows, st.Denials, st.Revision)
	}
	return out.String()
}

func (s *script) step(t *testing.T, e *fsm.Entry) *fsm.Answers {
	t.Helper()
	e.Term, e.Stamp = s.term, s.now
	return s.m.Step(s.term, mustRecode(t, e))
}

// mustRecode passes an entry through its encoding, and sets the policy that it names as a replica does.
func mustRecode(t *testing.T, e *fsm.Entry) *fsm.Entry {
	t.Helper()
	decoded, err := fsm.DecodeEntry(fsm.AppendEntry(nil, e))
	if err != nil {
		t.Fatalf("the entry does not decode: %v", err)
	}
	switch e.Kind {
	case fsm.KindBirth:
		decoded.Birth.Policy = e.Birth.Policy
	case fsm.KindInstall:
		decoded.Install.Policy = e.Install.Policy
	case fsm.KindSeal:
		for i := range e.Policies {
			decoded.Policies[i].Policy = e.Policies[i].Policy
		}
	}
	return decoded
}

// forgive reads a principal and perhaps a class per line.
func (s *script) forgive(t *testing.T, d *datadriven.TestData, out *strings.Builder) {
	t.Helper()
	epoch := uint64(5)
	d.MaybeScanArgs(t, "epoch", &epoch)
	for line := range strings.Lines(d.Input) {
		principal, class, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		f := s.step(t, &fsm.Entry{Kind: fsm.KindForgive, Forgive: &fsm.Forgive{
			Principal: principal, Class: class, RouteEpoch: fsm.NewEpoch(1, epoch),
		}}).Forgiven
		fmt.Fprint(out, f.Reason)
		if f.Reason == fsm.ReasonWrongEpoch {
			fmt.Fprintf(out, " owned under %d", f.Epoch.Counter())
		}
		if f.Detail != "" {
			fmt.Fprintf(out, " (%s)", f.Detail)
		}
		for _, a := range f.Amounts {
			fmt.Fprintf(out, " [%s %d]", a.Class, a.Amount)
		}
		fmt.Fprintln(out)
	}
}

func (s *script) birth(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	bounds := fsm.DefaultBounds()
	d.MaybeScanArgs(t, "max-keys", &bounds.MaxKeys)
	d.MaybeScanArgs(t, "max-replay-records", &bounds.MaxReplayRecords)
	s.rev = 1
	d.MaybeScanArgs(t, "revision", (*uint64)(&s.rev))
	if s.bodies[s.rev] == nil {
		s.bodies[s.rev] = mustPolicy(t, d.Input)
	}
	var owned []fsm.OwnedRange
	if first, last := uint64(0), uint64(fsm.NumSlots-1); !d.HasArg("vacant") {
		d.MaybeScanArgs(t, "slots", &first, &last)
		owned = []fsm.OwnedRange{{
			SlotRange: fsm.SlotRange{First: fsm.Slot(first), Last: fsm.Slot(last)}, Epoch: fsm.NewEpoch(1, 5),
		}}
	}
	s.step(t, &fsm.Entry{Kind: fsm.KindBirth, Birth: &fsm.Birth{
		Cluster: "c", Partition: "p0", Seed: [16]byte{1, 2, 3}, Bounds: bounds,
		Owned: owned, Install: fsm.NewInstall(s.rev, s.bodies[s.rev]),
	}})
}

// batch reads a check or a peek per line: principal class id key=value…
func (s *script) batch(t *testing.T, d *datadriven.TestData, out *strings.Builder) {
	t.Helper()
	e := &fsm.Entry{Kind: fsm.KindBatch}
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		epoch := fsm.NewEpoch(1, 5)
		if d.Cmd == "peek" {
			for _, kv := range f[2:] {
				var c fsm.Check
				option(t, &c, kv)
				epoch = c.RouteEpoch
			}
			e.Peeks = append(e.Peeks, fsm.Peek{Principal: f[0], Class: f[1], RouteEpoch: epoch})
			continue
		}
		c := fsm.Check{
			Principal: f[0], DecisionID: f[2], Gateway: "g1", RouteEpoch: epoch,
			Charge: fsm.Charge{Class: f[1], Cost: 1},
		}
		for _, kv := range f[3:] {
			option(t, &c, kv)
		}
		e.Checks = append(e.Checks, c)
	}
	a := s.step(t, e)
	for i, dec := range a.Decisions {
		fmt.Fprintf(out, "%s: %s\n", e.Checks[i].DecisionID, decisionText(&dec))
	}
	for _, u := range a.Usages {
		fmt.Fprintf(out, "%s: class %s, remaining %d%s\n", u.Reason, u.Class, u.Remaining, limitsText(u.Limits))
	}
}

func option(t *testing.T, c *fsm.Check, kv string) {
	t.Helper()
	k, v, _ := strings.Cut(kv, "=")
	n, _ := strconv.ParseInt(v, 10, 64)
	switch k {
	case "cost":
		c.Cost = n
	case "tier":
		c.Tier = v
	case "gateway":
		c.Gateway = v
	case "revision":
		c.PolicyRevision = fsm.Revision(n)
	case "epoch":
		c.RouteEpoch = fsm.NewEpoch(1, uint64(n))
	case "also": // class:cost
		class, cost, _ := strings.Cut(v, ":")
		n, _ = strconv.ParseInt(cost, 10, 64)
		c.Also = append(c.Also, fsm.Charge{Class: class, Cost: n})
	default:
		t.Fatalf("unknown option %q", kv)
	}
}

func decisionText(d *fsm.Decision) string {
	var b strings.Builder
	b.WriteString(d.Reason.String())
	switch d.Reason {
	case fsm.ReasonAllowed:
		fmt.Fprintf(&b, " remaining %d", d.Remaining)
	case fsm.ReasonQuotaExhausted:
		fmt.Fprintf(&b, " by %s remaining %d retry at %s", d.Limit, d.Remaining, ms(d.RetryAt))
	case fsm.ReasonWrongEpoch:
		fmt.Fprintf(&b, " owned under %d", d.Epoch.Counter())
	}
	if d.Replayed {
		b.WriteString(" replayed")
	}
	if (d.Allowed() || d.Reason == fsm.ReasonQuotaExhausted) && !d.Recorded {
		b.WriteString(" unrecorded")
	}
	if d.Detail != "" {
		fmt.Fprintf(&b, " (%s)", d.Detail)
	}
	return b.String() + limitsText(d.Limits)
}

func limitsText(limits []fsm.LimitState) string {
	var b strings.Builder
	for _, l := range limits {
		carried := ""
		if l.Carried {
			carried = " carried"
		}
		fmt.Fprintf(&b, " [%s%s %d/%d reset %s]", l.Name, carried, l.Remaining, l.Max, ms(l.ResetAt))
	}
	return b.String()
}

// ms prints a time in milliseconds, with what is left of a nanosecond precision.
func ms(t fsm.Time) string {
	if rest := t % 1e6; rest != 0 {
		return fmt.Sprintf("%dms+%dns", t/1e6, rest)
	}
	return fmt.Sprintf("%dms", t/1e6)
}

func mustTime(t *testing.T, s string) fsm.Time {
	t.Helper()
	whole, nanos, _ := strings.Cut(s, "+")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		t.Fatalf("time %q: %v", s, err)
	}
	rest := int64(0)
	if nanos != "" {
		if rest, err = strconv.ParseInt(nanos, 10, 64); err != nil {
			t.Fatalf("time %q: %v", s, err)
		}
	}
	return fsm.Time(n*1e6 + rest)
}

func mustPolicy(t testing.TB, src string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse("script", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustRestore(t testing.TB, m *fsm.Machine) *fsm.Machine {
	t.Helper()
	restored, err := fsm.Restore(bytes.NewReader(snapshotOf(m)))
	if err != nil {
		t.Fatalf("the snapshot is not read back: %v", err)
	}
	return restored
}

func snapshotOf(m *fsm.Machine) []byte {
	s := m.BeginSnapshot()
	defer s.Release()
	var b []byte
	for more := true; more; {
		b, more = s.Next(b)
	}
	return b
}
