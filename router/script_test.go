package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/router"
)

// Shows where one decision is sent after each error: each file under testdata/scripts is a course of errors
// with the steps that follow. Run with -rewrite to accept changed steps, and read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var table router.Table
		table.Update(mustMap(t, parts(1)))
		name, _ := ownedBy(t, &table, "p0")
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "decision" {
				t.Fatalf("unknown command %q", d.Cmd)
			}
			return course(t, &table, name, d)
		})
	})
}

// course follows one decision through the errors in the input, one a line: reason leader=… epoch=… after=…
func course(t *testing.T, table *router.Table, name string, d *datadriven.TestData) string {
	t.Helper()
	left := int64(100)
	d.MaybeScanArgs(t, "left", &left)
	route, _ := table.Lookup(name)
	a := router.Attempts{Route: route, Asked: []string{route.Node.ID}, LeftNanos: left * 1e6, HorizonNanos: 30e9}
	var out strings.Builder
	fmt.Fprintf(&out, "send to %s\n", route.Node.ID)
	for line := range strings.Lines(d.Input) {
		fields := strings.Fields(line)
		f := router.Failure{Reason: strings.TrimSuffix(fields[0], "-")}
		for _, kv := range fields[1:] {
			k, v, _ := strings.Cut(kv, "=")
			var n int64
			_, _ = fmt.Sscan(v, &n)
			switch k {
			case "leader":
				f.Leader, f.LeaderAddr = v, v+":1"
			case "epoch":
				f.Epoch = uint64(n)
			case "after":
				f.RetryAfterNanos = n * 1e6
			case "unsent":
				f.Unsent = true
			}
		}
		table.Learn(a.Route, a.Asked[len(a.Asked)-1], f)
		s := router.Next(a, f)
		fmt.Fprintf(&out, "%s: %s", strings.TrimSpace(line), s.Action)
		if s.Node.ID != "" {
			fmt.Fprintf(&out, " to %s", s.Node.ID)
		}
		if s.WaitNanos > 0 {
			fmt.Fprintf(&out, " after %d ms", s.WaitNanos/1e6)
		}
		if s.Action == router.GiveUp && s.FailureMode {
			out.WriteString(" to the failure mode")
		}
		if s.MaybeConsumed {
			out.WriteString(", may have consumed")
		}
		out.WriteByte('\n')
		a.MaybeConsumed, a.Planned, a.Unsent = s.MaybeConsumed, s.Planned, s.Unsent
		a.LeftNanos -= s.WaitNanos
		node := s.Node.ID
		if s.Action == router.Refresh {
			a.Route, _ = table.Lookup(name)
			node = a.Route.Node.ID
		}
		a.Asked = append(a.Asked, node)
	}
	now, _ := table.Lookup(name)
	fmt.Fprintf(&out, "next decision: %s, behind %t\n", now.Node.ID, now.Behind)
	return out.String()
}
