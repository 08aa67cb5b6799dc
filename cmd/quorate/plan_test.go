package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// aPlan is plan 7, which splits p0.
func aPlan(phase, progress, message string) *quoratev1.Plan {
	at := time.Unix(1_700_000_000, 0)
	p := &quoratev1.Plan{
		Id: 7, Kind: quoratev1.PlanKind_PLAN_KIND_SPLIT, Source: "p0", Destination: "p2", Phase: phase, Progress: progress,
		Ranges:  []*quoratev1.SlotRange{{FirstSlot: 4096, LastSlot: 8191, Epoch: 1}},
		Started: timestamppb.New(at), Author: "admin/ops", Comment: "hot", Message: message,
	}
	if phase == planDone || phase == planUndone {
		p.Ended = timestamppb.New(at.Add(1200 * time.Millisecond))
	}
	return p
}

// planned are the plans as a node lists them.
func planned(plans ...*quoratev1.Plan) *quoratev1.ListPlansResponse {
	return &quoratev1.ListPlansResponse{Plans: plans}
}

// planning is a node that begins plan 7, and then tells of it so.
func planning(told ...any) *adminScript {
	return &adminScript{answers: map[string][]any{
		"StartPlanRequest": {&quoratev1.StartPlanResponse{Plan: aPlan("open", "", "")}}, "ListPlansRequest": told,
		"ClusterStatusRequest": {statusMade}, "AbortPlanRequest": {&quoratev1.AbortPlanResponse{}},
	}}
}

// Shows what each command that moves slots asks for, and what it prints where it does not wait.
func TestPartitionPlanCommands(t *testing.T) {
	s := planning()
	mustServeAdmin(t, s)
	slots := func(bounds ...uint32) (out []*quoratev1.SlotRange) {
		for i := 0; i < len(bounds); i += 2 {
			out = append(out, &quoratev1.SlotRange{FirstSlot: bounds[i], LastSlot: bounds[i+1]})
		}
		return out
	}
	for _, c := range []struct {
		args string
		want *quoratev1.StartPlanRequest
	}{
		{"split p0", &quoratev1.StartPlanRequest{Kind: quoratev1.PlanKind_PLAN_KIND_SPLIT, Source: "p0"}},
		{"split p0 --comment hot", &quoratev1.StartPlanRequest{
			Kind: quoratev1.PlanKind_PLAN_KIND_SPLIT, Source: "p0", Comment: "hot"}},
		{"merge p1 p0", &quoratev1.StartPlanRequest{
			Kind: quoratev1.PlanKind_PLAN_KIND_MERGE, Source: "p1", Destination: "p0"}},
		{"move p0 5,7-9 p1", &quoratev1.StartPlanRequest{
			Kind: quoratev1.PlanKind_PLAN_KIND_MOVE, Source: "p0", Destination: "p1", Ranges: slots(5, 5, 7, 9)}},
		{"recover p0 --from n2 --accept-loss", &quoratev1.StartPlanRequest{
			Kind: quoratev1.PlanKind_PLAN_KIND_RECOVER, Source: "p0", Node: "n2", AcceptLoss: true}},
	} {
		r := mustRun(t, append([]string{"partition"}, strings.Fields(c.args)...)...)
		const want = "plan 7: begun: split, slots 4096-8191 from p0 to p2\nnext: quorate partition list shows how it stands; " +
			"quorate partition abort 7 undoes it while it is open\n"
		if r.stdout != want || r.stderr != "" {
			t.Errorf("%s: %+v", c.args, r)
		}
		s.mustHaveAsked(t, c.want)
	}
	for at, want := range map[string][]*quoratev1.SlotRange{
		"4096": slots(4096, 8191), "0": slots(0, 8191), "9000": slots(9000, fsm.NumSlots-1),
	} {
		mustRun(t, "partition", "split", "p0", "--at", at)
		s.mustHaveAsked(t, &quoratev1.ClusterStatusRequest{},
			&quoratev1.StartPlanRequest{Kind: quoratev1.PlanKind_PLAN_KIND_SPLIT, Source: "p0", Ranges: want})
	}
	var v planView
	mustJSON(t, &v, "partition", "split", "p0")
	if v.ID != 7 || v.Kind != "split" || v.Phase != "open" || v.Ended != nil || v.Ranges[0].LastSlot != 8191 || v.Author != "admin/ops" {
		t.Errorf("%+v", v)
	}
	s.mustHaveAsked(t, &quoratev1.StartPlanRequest{Kind: quoratev1.PlanKind_PLAN_KIND_SPLIT, Source: "p0"})
	if out := mustRun(t, "partition", "abort", "7", "--comment", "wrong one").stdout; out !=
		"plan 7: aborted; quorate partition list shows when it is undone\n" {
		t.Error(out)
	}
	s.mustHaveAsked(t, &quoratev1.AbortPlanRequest{Plan: 7, Comment: "wrong one"})

	mustFail(t, exitUsage, []string{`"x" is no plan`, "partition list"}, "partition", "abort", "x")
	mustFail(t, exitUsage, []string{`"0" is no plan`}, "partition", "abort", "0")
	mustFail(t, exitUsage, []string{"--from is required"}, "partition", "recover", "p0")
	mustFail(t, exitUsage, []string{`"5-x" is no range of slots`}, "partition", "move", "p0", "1-2,5-x", "p1")
	mustFail(t, exitUsage, []string{"name the partition that gets them"}, "partition", "move", "p0", "p1")
	for _, at := range []string{"-1", "16384", "99999"} {
		mustFail(t, exitUsage, []string{"--at is " + at + ": slots are 0 to 16383"}, "partition", "split", "p0", "--at", at)
	}
	s.answers["StartPlanRequest"] = []any{quotaerr.New(quotaerr.InvalidArgument, "p0 is in plan 6: wait")}
	mustFail(t, exitError, []string{"p0 is in plan 6: wait"}, "partition", "split", "p0")
	s.answers["StartPlanRequest"] = []any{quotaerr.New(quotaerr.OutcomeUnknown, "no answer")}
	r := runWith(t, "", "partition", "split", "p0", "--timeout", "300ms")
	const unknown = "quorate: outcome_unknown: no answer came: `quorate partition list` shows whether the plan has begun; " +
		"ask again if it has not\n"
	if r.status != exitUnavailable || r.stderr != unknown {
		t.Errorf("%+v", r)
	}
}

// Shows that --wait says how a plan goes on, a line for each change, and returns when it is done; that it fails when it
// is undone, with why and whose the slots are, also for scripts; and that it says what goes on when nobody answers.
func TestPartitionPlanWait(t *testing.T) {
	open := aPlan("open", "pulling, 3 MiB so far", "")
	s := planning(planned(open), planned(open), planned(aPlan("open", "frozen", "")), planned(aPlan("decided", "releasing", "")),
		planned(aPlan(planDone, "", "")))
	mustServeAdmin(t, s)
	r := mustRun(t, "partition", "split", "p0", "--wait")
	const lines = `plan 7: split, slots 4096-8191 from p0 to p2
plan 7: open: pulling, 3 MiB so far
plan 7: open: frozen
plan 7: decided: releasing
`
	if diff := cmp.Diff(lines, r.stderr); diff != "" || r.stdout != "plan 7: done in 1.2s: p2 owns slots 4096-8191\n" {
		t.Errorf("%q %s", r.stdout, diff)
	}
	recovered := aPlan(planDone, "", "")
	recovered.Kind, recovered.Node = quoratev1.PlanKind_PLAN_KIND_RECOVER, "n2"
	s.answers["ListPlansRequest"] = []any{planned(recovered)}
	r = mustRun(t, "partition", "recover", "p0", "--from", "n2", "--wait")
	if !strings.HasSuffix(r.stdout, "\neach of their principals is denied until its longest window has passed since, as admissions may be missing\n") {
		t.Errorf("%+v", r)
	}
	recovered.AcceptLoss = true
	r = mustRun(t, "partition", "recover", "p0", "--from", "n2", "--accept-loss", "--wait")
	if !strings.HasSuffix(r.stdout, "\nthe loss was accepted: what p0 on n2 does not have is given up, and the audit trail says so\n") {
		t.Errorf("%+v", r)
	}

	s.answers["ListPlansRequest"] = []any{
		planned(aPlan("aborted", "thawing p0", "p2 holds as many keys as it may")),
		planned(aPlan(planUndone, "", "p2 holds as many keys as it may")),
	}
	r = runWith(t, "", "partition", "split", "p0", "--wait")
	const undone = "plan 7: split, slots 4096-8191 from p0 to p2\nplan 7: aborted: p2 holds as many keys as it may; thawing p0\n" +
		"quorate: plan 7 is undone, its slots are p0's as before: p2 holds as many keys as it may\n"
	if r.status != exitError || r.stdout != "" || r.stderr != undone {
		t.Errorf("%+v", r)
	}
	r = runWith(t, "", "partition", "split", "p0", "--wait", "-o", "json")
	if r.status != exitError || !strings.Contains(r.stdout, `"phase":"undone"`) {
		t.Errorf("%+v", r)
	}
	s.answers["ListPlansRequest"] = []any{planned(open), quotaerr.New(quotaerr.NoQuorum, "nobody leads")}
	r = runWith(t, "", "partition", "split", "p0", "--wait", "--timeout", "300ms")
	if r.status != exitUnavailable || !strings.Contains(r.stderr, "plan 7 goes on, but is not known to have ended") {
		t.Errorf("%+v", r)
	}
}

// Shows the list of partitions with the plans under way and the last that have ended, for people and for scripts; that
// without plans there is no table of them; and that partitions are shown although the plans are not known.
func TestPartitionList(t *testing.T) {
	done := func(id uint64) *quoratev1.Plan {
		p := aPlan(planDone, "", "")
		p.Id, p.Kind, p.Comment = id, quoratev1.PlanKind_PLAN_KIND_MERGE, ""
		return p
	}
	restore := aPlan(planUndone, "", "the disk\nis full")
	restore.Id, restore.Kind, restore.Source, restore.Node = 5, quoratev1.PlanKind_PLAN_KIND_RESTORE, "", "n1"
	s := planning(planned(done(8), aPlan("open", "frozen", ""), done(6), restore, done(4), done(3), done(2)))
	mustServeAdmin(t, s)
	_, plans, _ := strings.Cut(mustRun(t, "partition", "list").stdout, "\n\n")
	lines := strings.Split(plans, "\n")
	for i, want := range []string{
		"PLAN KIND FROM TO SLOTS PHASE STARTED FOR BY COMMENT NOTE",
		"8 merge p0 p2 4096-8191 done 2023-11-14T22:13:20Z 1.2s admin/ops - -",
		"7 split p0 p2 4096-8191 open 2023-11-14T22:13:20Z * admin/ops hot frozen",
		"6 merge p0 p2 4096-8191 done 2023-11-14T22:13:20Z 1.2s admin/ops - -",
		"5 restore backup on n1 p2 4096-8191 undone 2023-11-14T22:13:20Z 1.2s admin/ops hot the disk (and 1 more line)",
		"4 merge p0 p2 4096-8191 done 2023-11-14T22:13:20Z 1.2s admin/ops - -",
		"3 merge p0 p2 4096-8191 done 2023-11-14T22:13:20Z 1.2s admin/ops - -",
		"",
	} {
		got := strings.Fields(lines[i])
		if strings.Contains(want, "*") && len(got) > 7 {
			got[7] = "*" // for how long
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("line %d: %s, want %s", i, text, want)
		}
	}
	var v partitionsView
	mustJSON(t, &v, "partition", "list")
	if len(v.Plans) != 7 || v.Plans[1].Progress != "frozen" || len(v.Partitions) != 2 || v.Control == nil {
		t.Errorf("%+v", v)
	}
	s.answers["ListPlansRequest"] = []any{planned()}
	if out := mustRun(t, "partition", "list").stdout; strings.Contains(out, "PLAN") || !strings.Contains(out, "0-8191@0") {
		t.Error(out)
	}
	if out := mustRun(t, "partition", "list", "-o", "json").stdout; !strings.Contains(out, `"plans":[]`) {
		t.Error(out)
	}
	s.answers["ListPlansRequest"] = []any{quotaerr.New(quotaerr.PermissionDenied, "it takes viewer")}
	r := mustRun(t, "partition", "list", "-o", "json")
	if !strings.Contains(r.stdout, `"plans":null`) || !strings.Contains(r.stderr, "the plans are not known: ") {
		t.Errorf("%+v", r)
	}
}
