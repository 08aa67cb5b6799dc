package admin

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// Shows that pages of large records stay far below a message's bound and have every record once, that limits
// beyond the bound are refused, and that times bound a search.
func TestAuditPages(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	const records = 100
	for range records {
		must(t, second(n.control.Propose(t.Context(), &state.Command{
			Kind: state.KindNote, Difference: strings.Repeat("x", state.MaxDifferenceBytes), WallNanos: n.wall.UnixNano(),
			Act: &state.Act{Action: "test.note", Object: "page"},
		})))
	}
	seen, pages := map[uint64]bool{}, 0
	for before := uint64(0); pages == 0 || before != 0; pages++ {
		page, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Action: "test", Limit: 1000, Before: before})
		must(t, err)
		if size := proto.Size(page); size > rpc.MaxAnswerBytes*3/4 {
			t.Fatalf("a page of %d bytes", size)
		}
		for _, r := range page.GetRecords() {
			if seen[r.GetIndex()] {
				t.Fatalf("record %d twice", r.GetIndex())
			}
			seen[r.GetIndex()] = true
		}
		before = page.GetNext()
	}
	if len(seen) != records || pages < 3 {
		t.Errorf("%d records on %d pages", len(seen), pages)
	}
	for what, req := range map[string]*quoratev1.SearchAuditRequest{
		"too many": {Limit: 1001}, "no time": {From: &timestamppb.Timestamp{Nanos: -1}},
		"too far": {Until: timestamppb.New(time.Date(2400, 1, 1, 0, 0, 0, 0, time.UTC))},
	} {
		wantReason(t, second(n.SearchAudit(t.Context(), ops, req)), quotaerr.InvalidArgument, what)
	}
	for from, want := range map[time.Time]int{n.wall: 1, n.wall.Add(1): 0} {
		got, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{
			Action: "test", From: timestamppb.New(from), Until: timestamppb.New(n.wall.Add(2)), Limit: 1,
		})
		must(t, err)
		if len(got.GetRecords()) != want {
			t.Errorf("from %v: %d", from, len(got.GetRecords()))
		}
	}
}

// Shows that a node without a leader answers from its copy and says so, both for the trail and, as the last that it
// knows, for nodes; and that it changes nothing.
func TestWithoutALeader(t *testing.T) {
	c := newCluster(t, 3)
	leader := c.leader(t)
	leader.mustApply(t, source(t, "p1", 3), 0)
	last := c.follower(t)
	eventually(t, "the follower has the policy", func() bool { return last.control.State().InForce() != nil })
	for _, n := range c.nodes {
		if n != last {
			must(t, n.control.Close())
		}
	}
	eventually(t, "it says that its copy may be old", func() bool {
		found, err := last.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Limit: 1})
		if quotaerr.ReasonOf(err) == quotaerr.NotLeader {
			return false // it takes the old one for the leader still
		}
		must(t, err)
		r := found.GetRecords()
		if len(r) != 2 || r[0].GetIndex() != 0 || r[0].GetResult() != "incomplete" || r[1].GetAction() != "policy.publish" {
			t.Fatalf("found %v", r)
		}
		return true
	})
	list, err := last.ListPolicies(t.Context(), ops, &quoratev1.ListPoliciesRequest{})
	if err != nil || len(list.GetRevisions()) != 1 {
		t.Errorf("policies: %v %v", list, err)
	}
	_, err = last.DrainNode(t.Context(), ops, &quoratev1.DrainNodeRequest{Node: leader.id})
	wantReason(t, err, quotaerr.NoQuorum, "a change")
}

// Shows that a refusal at the door is in the trail under the action that was tried, that one with an unknown method
// is too, and that any text is cut to what the trail takes.
func TestAttempts(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	who := rpc.Actor{Name: "viewer/board", Role: identity.Viewer}
	for _, method := range []string{quoratev1.Admin_ApplyPolicy_FullMethodName, "/quorate.v1.Admin/" + strings.Repeat("X", 99)} {
		n.Attempt(t.Context(), who, method, "permission_denied\x00\xff"+strings.Repeat("y", 2000))
	}
	want := []string{
		"viewer/board policy.publish : refused",
		"viewer/board call.quorate.v1.Admin." + strings.Repeat("X", state.MaxActionBytes-22) + " : refused",
	}
	if diff := cmp.Diff(want, n.trail(t, 2)); diff != "" {
		t.Error(diff)
	}
	for method := range actions {
		if !strings.HasPrefix(method, "/quorate.v1.Admin/") {
			t.Errorf("%s is no method", method)
		}
	}
}

// Shows that a command of unknown fate is proposed again, the same, until its fate is known; that a no to the second
// proposal does not become a no to the command, but a refusal by the state machine, and success, are told; and that
// a no to the first is told at once.
func TestUnknownFateIsNotANo(t *testing.T) {
	unknown := quotaerr.New(quotaerr.OutcomeUnknown, "no answer")
	refused := quotaerr.Wrap(quotaerr.NoQuorum, &state.Refusal{Code: state.CodeNotHeld}, "not held")
	for _, c := range []struct {
		answers []error
		want    quotaerr.Reason
	}{
		{[]error{nil}, ""},
		{[]error{unknown, unknown, nil}, ""},
		{[]error{quotaerr.New(quotaerr.NotLeader, "b leads")}, quotaerr.NotLeader},
		{[]error{unknown, quotaerr.New(quotaerr.NotLeader, "b leads")}, quotaerr.OutcomeUnknown},
		{[]error{unknown, quotaerr.New(quotaerr.NoQuorum, "none leads")}, quotaerr.OutcomeUnknown},
		{[]error{unknown, refused}, quotaerr.NoQuorum},
		{[]error{unknown, quotaerr.New(quotaerr.PolicyStale, "stale")}, quotaerr.PolicyStale},
	} {
		cmd, asked := &state.Command{}, 0
		_, err := (&Admin{}).propose(t.Context(), ops, cmd, func(_ context.Context, got *state.Command) (state.Result, error) {
			if got != cmd || got.Actor != ops.Name {
				t.Errorf("another command was proposed: %+v", got)
			}
			asked++
			return state.Result{}, c.answers[asked-1]
		})
		wantReason(t, err, c.want, "the last answer")
		if asked != len(c.answers) {
			t.Errorf("proposed %d times, want %d", asked, len(c.answers))
		}
	}
}

// Shows that any list of lines becomes a text that the trail takes, which says how many lines are left out.
func TestDifferenceFits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var d difference
		for range rapid.IntRange(0, 200).Draw(t, "lines") {
			d.lines = append(d.lines, strings.Repeat("x", rapid.IntRange(0, 400).Draw(t, "bytes")))
		}
		d.more = rapid.IntRange(0, 3).Draw(t, "more")
		text := d.text()
		lines := strings.Count(text, "\n")
		var more int
		if i := strings.LastIndex(text, "and "); i >= 0 {
			lines--
			for _, r := range text[i:] {
				if r >= '0' && r <= '9' {
					more = more*10 + int(r-'0')
				}
			}
		}
		if len(text) > state.MaxDifferenceBytes || lines+more != len(d.lines)+d.more {
			t.Fatalf("%d bytes, %d lines and %d more of %d and %d", len(text), lines, more, len(d.lines), d.more)
		}
	})
}
