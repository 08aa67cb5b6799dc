package admin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// shortly is a context that ends soon.
func shortly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// forgetting counts what the partition is asked to forgive, and answers as the test says.
type forgetting struct {
	asked  []fsm.Forgive
	answer fsm.Forgiven
	err    error
}

func (f *forgetting) forgive(q fsm.Forgive) (fsm.Forgiven, error) {
	f.asked = append(f.asked, q)
	return f.answer, f.err
}

func newForgetting(c *cluster) *forgetting {
	f := &forgetting{answer: fsm.Forgiven{
		Reason: fsm.ReasonAllowed, Amounts: []fsm.ClassAmount{{Class: "convert", Amount: 3}, {Class: "e \"x\"", Amount: 1 << 60}},
	}}
	c.forgive = f.forgive
	return f
}

var forgiven = &quoratev1.ForgiveUsageResponse{Forgiven: []*quoratev1.ForgivenUsage{
	{ApiClass: "convert", Amount: 3}, {ApiClass: "e \"x\"", Amount: 1 << 60},
}}

// Shows that usage is dropped by the partition's leader under the slot's epoch, after the trail has it with the
// reason; that the trail then has what was dropped; and that the same act again, there or on another node, drops
// nothing and gets the same answer, but another act of the same name does not.
func TestForgive(t *testing.T) {
	c := newCluster(t, 3)
	c.leader(t)
	a, b := c.nodes[0], c.nodes[1]
	f := newForgetting(c)
	req := &quoratev1.ForgiveUsageRequest{Principal: "acme", ApiClass: "convert", Reason: "a mistake", ForgiveId: "id-1"}
	_, err := b.ForgiveUsage(t.Context(), ops, req)
	wantReason(t, err, quotaerr.NotLeader, "on another node")
	c.forgive = func(q fsm.Forgive) (fsm.Forgiven, error) {
		if got := c.leader(t).trail(t, 1)[0]; got != "admin/ops usage.forgive principal acme: done" {
			t.Errorf("when it is done, the trail has %s", got)
		}
		return f.forgive(q)
	}
	got, err := a.ForgiveUsage(t.Context(), ops, req)
	must(t, err)
	if diff := cmp.Diff(forgiven, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	want := []fsm.Forgive{{Principal: "acme", Class: "convert", RouteEpoch: fsm.NewEpoch(1, 1)}}
	if diff := cmp.Diff(want, f.asked); diff != "" {
		t.Fatal(diff)
	}
	c.leaders["p0"] = "b"
	for range 2 {
		again, err := b.ForgiveUsage(t.Context(), ops, req)
		must(t, err)
		if diff := cmp.Diff(forgiven, again, protocmp.Transform()); diff != "" || len(f.asked) != 1 {
			t.Fatalf("again: asked %v: %s", f.asked, diff)
		}
	}
	other := &quoratev1.ForgiveUsageRequest{Principal: "acme", Reason: "a mistake", ForgiveId: "id-1"}
	must(t, second(b.ForgiveUsage(t.Context(), ops, other)))
	if len(f.asked) != 2 || f.asked[1].Class != "" {
		t.Errorf("another act: asked %v", f.asked)
	}
	found, err := c.leader(t).SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Object: "acme"})
	must(t, err)
	var says []string
	for _, r := range found.GetRecords() {
		message, _, _ := strings.Cut(r.GetMessage(), ", call ")
		says = append(says, message+" ("+r.GetComment()+")")
	}
	wantSays := []string{
		"done id-1/0: all classes (a mistake)", "begin id-1/0: all classes (a mistake)",
		"done id-1/0: class \"convert\" (a mistake)", "begin id-1/0: class \"convert\" (a mistake)",
	}
	if diff := cmp.Diff(wantSays, says); diff != "" {
		t.Error(diff)
	}
}

// Shows that an act which certainly was not done is done when it is asked for again, and one whose fate is unknown
// is not; each told by the trail.
func TestForgiveAgain(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	f := newForgetting(c)
	forgive := func(id string) error {
		return second(n.ForgiveUsage(t.Context(), ops, &quoratev1.ForgiveUsageRequest{Principal: "acme", Reason: "r", ForgiveId: id}))
	}
	done := f.answer
	f.err = quotaerr.New(quotaerr.NotLeader, "it moved")
	wantReason(t, forgive("x"), quotaerr.NotLeader, "not done")
	f.err, f.answer = nil, fsm.Forgiven{Reason: fsm.ReasonWrongEpoch, Epoch: 7}
	err := forgive("x")
	wantReason(t, err, quotaerr.WrongEpoch, "refused")
	if quotaerr.As(err).Epoch != 7 {
		t.Errorf("the epoch is not told: %v", err)
	}
	f.answer = done
	must(t, forgive("x"))
	must(t, forgive("x"))
	if len(f.asked) != 3 {
		t.Errorf("asked %d times", len(f.asked))
	}
	f.err = quotaerr.New(quotaerr.OutcomeUnknown, "no answer")
	wantReason(t, forgive("y"), quotaerr.OutcomeUnknown, "unknown")
	f.err = nil
	wantReason(t, forgive("y"), quotaerr.OutcomeUnknown, "unknown, again")
	f.err = errors.New("a defect")
	wantReason(t, forgive("z"), quotaerr.Internal, "a defect")
	f.err = nil
	wantReason(t, forgive("z"), quotaerr.OutcomeUnknown, "after a defect")
	if len(f.asked) != 5 {
		t.Errorf("asked %d times", len(f.asked))
	}
}

// Shows that however often an act was certainly not done, each time the caller is told why, and that it is done once it
// can be, and then no more; and that the same id for a principal of a like name is another act.
func TestForgiveAfterManyNoes(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	f := newForgetting(c)
	forgive := func(principal string) error {
		return second(n.ForgiveUsage(t.Context(), ops, &quoratev1.ForgiveUsageRequest{
			Principal: principal, Reason: "r", ForgiveId: "x",
		}))
	}
	const noes = maxForgiveTries + 5
	for i := range noes {
		want := []quotaerr.Reason{quotaerr.NotLeader, quotaerr.NoQuorum}[i%2]
		f.err = quotaerr.New(want, "not now")
		wantReason(t, forgive("acme"), want, "a no")
	}
	wantReason(t, forgive("principal acme"), quotaerr.NotLeader, "a no")
	f.err = nil
	must(t, forgive("acme"))
	must(t, forgive("acme"))
	must(t, forgive("principal acme"))
	if want := noes + 3; len(f.asked) != want {
		t.Errorf("asked %d times, want %d", len(f.asked), want)
	}
}

// Shows that a beginning whose answer was lost is this call's own, so that it is done, once; that nothing is dropped
// while the trail cannot have it; and that what is malformed is refused before, and in the trail.
func TestForgiveNeedsTheTrail(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	f := newForgetting(c)
	lost := 0
	c.lose = func(cmd *state.Command) bool {
		lost++
		return cmd.Kind == state.KindNote && lost == 1
	}
	req := &quoratev1.ForgiveUsageRequest{Principal: "acme", Reason: "r", ForgiveId: "x"}
	must(t, second(n.ForgiveUsage(t.Context(), ops, req)))
	if len(f.asked) != 1 || lost < 2 {
		t.Fatalf("asked %v after %d proposals", f.asked, lost)
	}
	c.lose = func(*state.Command) bool { return true }
	req.ForgiveId = ""
	_, err := n.ForgiveUsage(shortly(t), ops, req)
	wantReason(t, err, quotaerr.OutcomeUnknown, "without the trail")
	c.lose = nil
	for what, req := range map[string]*quoratev1.ForgiveUsageRequest{
		"no principal": {Reason: "r"}, "no reason": {Principal: "acme", Reason: " "},
		"long reason": {Principal: "acme", Reason: strings.Repeat("r", state.MaxCommentBytes+1)},
		"bad id":      {Principal: "acme", Reason: "r", ForgiveId: "x y"},
	} {
		before := n.control.State().AuditCount
		wantReason(t, second(n.ForgiveUsage(t.Context(), ops, req)), quotaerr.InvalidArgument, what)
		if n.control.State().AuditCount != before+1 {
			t.Errorf("%s: not in the trail", what)
		}
	}
	if len(f.asked) != 1 {
		t.Errorf("asked %v", f.asked)
	}
}

// Shows that what was dropped is read from the trail as it was written, for any names, and that no list is too long
// for the trail.
func TestAmountsAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []fsm.ClassAmount
		for range rapid.IntRange(0, 300).Draw(t, "classes") {
			list = append(list, fsm.ClassAmount{
				Class: rapid.StringN(0, 40, 128).Draw(t, "class"), Amount: rapid.Int64Range(0, 1<<62).Draw(t, "amount"),
			})
		}
		text := amounts(list)
		if len(text) > state.MaxDifferenceBytes {
			t.Fatalf("%d bytes", len(text))
		}
		got := amountsOf(text)
		if len(got) < len(list) && len(text) < state.MaxDifferenceBytes-600 {
			t.Fatalf("%d of %d in %d bytes", len(got), len(list), len(text))
		}
		if diff := cmp.Diff(list[:len(got)], got); len(got) > 0 && diff != "" {
			t.Fatal(diff)
		}
	})
}
