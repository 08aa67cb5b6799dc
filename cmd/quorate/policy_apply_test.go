package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// aRevision is a revision as a node tells it.
func aRevision(number uint64, version string) *quoratev1.Revision {
	return &quoratev1.Revision{
		Number: number, Version: version, Kind: "publish", Base: number - 1, Author: "admin/ops",
		At: timestamppb.New(time.Unix(1_700_000_000, 0)), Comment: "why", Digest: []byte{1, 2}, Size: 7,
	}
}

func history(revisions ...*quoratev1.Revision) *quoratev1.ListPoliciesResponse {
	return &quoratev1.ListPoliciesResponse{Revisions: revisions}
}

// aStatus is how far revision 5 has come: in p0 and p1 as said, active everywhere or in 9.2 s.
func aStatus(p0, p1 uint64, active bool) *quoratev1.PolicyStatusResponse {
	r := &quoratev1.PolicyStatusResponse{
		Revision: aRevision(5, "p7"), InForce: 5, ActiveEverywhere: active,
		Partitions: []*quoratev1.PartitionPolicy{
			{Partition: "p0", Installed: p0, Reachable: true, Carried: []*quoratev1.CarriedRule{
				{ApiClass: "convert", Revision: 4, Version: "p6", EndsIn: durationpb.New(58*time.Second + 1)},
			}},
			{Partition: "p1", Installed: p1, Reachable: true, Carried: []*quoratev1.CarriedRule{
				{ApiClass: "convert", Revision: 4, Version: "p6", EndsIn: durationpb.New(59 * time.Second)},
			}},
		},
	}
	if !active {
		r.ActiveIn = durationpb.New(9200 * time.Millisecond)
	}
	return r
}

// applying is a node with revision 4 in force, which takes goodPolicy as revision 5.
func applying() *adminScript {
	return &adminScript{answers: map[string][]any{
		"ListPoliciesRequest": {history(aRevision(4, "p6"))},
		"ApplyPolicyRequest": {&quoratev1.ApplyPolicyResponse{
			Revision: aRevision(5, "p7"), Changes: []string{"~ classes.convert.timeout: 100ms -> 50ms"}, MoreChanges: 2,
		}},
		"PolicyStatusRequest": {aStatus(4, 4, false), aStatus(5, 4, false), aStatus(5, 5, false), aStatus(5, 5, true)},
	}}
}

func digestOf(p *policy.Policy) []byte {
	d := p.Digest()
	return d[:]
}

// Shows that apply takes the revision in force first, brings the canonical encoding, applies it on that revision,
// and looks until the partitions have it, to tell what has changed and what is carried, each rule once.
func TestPolicyApply(t *testing.T) {
	s := applying()
	mustServeAdmin(t, s)
	p := mustPolicy(t, goodPolicy)
	file := mustWrite(t, "p.yaml", goodPolicy)
	r := mustRun(t, "policy", "apply", file, "--comment", "more")
	status := &quoratev1.PolicyStatusRequest{Revision: 5}
	s.mustHaveAsked(t, &quoratev1.ListPoliciesRequest{Limit: 1}, &quoratev1.UploadPolicyRequest{Digest: digestOf(p)},
		&quoratev1.ApplyPolicyRequest{Digest: digestOf(p), Base: 4, Comment: "more"}, status, status, status)
	if !bytes.Equal(s.body, p.AppendBinary(nil)) {
		t.Error("another body was brought")
	}
	out, until, ok := strings.Cut(r.stdout, "convert  4 (p6)        59s          ")
	want := "revision 5 (p7) is in force, on 4\n  ~ classes.convert.timeout: 100ms -> 50ms\n  and 2 more\n" +
		"active everywhere in at most 10s\nCLASS    CARRIED FROM  FOR ANOTHER  UNTIL\n"
	if diff := cmp.Diff(want, out); diff != "" || !ok || r.stderr != "" {
		t.Errorf("%s\n%s", r.stderr, diff)
	}
	at, err := time.Parse(time.RFC3339, strings.TrimSpace(until))
	if left := time.Until(at); err != nil || left > time.Minute || left < 50*time.Second {
		t.Errorf("until %q: %v", until, err)
	}

	s.answers["PolicyStatusRequest"] = []any{aStatus(5, 5, false)}
	var v publishedView
	mustJSON(t, &v, "policy", "apply", file, "--base", "3")
	if v.Revision.Number != 5 || v.Revision.Digest != "0102" || v.DryRun || len(v.Changes) != 1 || v.MoreChanges != 2 ||
		v.Status == nil || v.Status.ActiveIn != "9s200ms" || v.Status.Partitions[0].Carried[0].EndsIn != "58s1ns" {
		t.Errorf("%+v", v)
	}
	s.mustHaveAsked(t, &quoratev1.UploadPolicyRequest{Digest: digestOf(p)},
		&quoratev1.ApplyPolicyRequest{Digest: digestOf(p), Base: 3}, status)
}

// Shows that a policy with problems goes nowhere, and that all of them are told, with their positions.
func TestPolicyApplyChecksFirst(t *testing.T) {
	s := applying()
	mustServeAdmin(t, s)
	bad := mustWrite(t, "bad.yaml", badPolicy)
	r := runWith(t, "", "policy", "apply", bad)
	lines := strings.Split(strings.TrimSpace(r.stderr), "\n")
	if r.status != exitError || r.stdout != "" || len(lines) != 2 ||
		!strings.HasPrefix(lines[0], bad+":3:1: ") || !strings.HasPrefix(lines[1], bad+":4:") {
		t.Errorf("%+v", r)
	}
	mustFail(t, exitUsage, []string{"nothing to --wait for"}, "policy", "apply", bad, "--dry-run", "--wait")
	s.mustHaveAsked(t)
}

// Shows that a dry run asks for one, tells the changes, and looks at no status.
func TestPolicyApplyDryRun(t *testing.T) {
	s := applying()
	mustServeAdmin(t, s)
	r := runWith(t, goodPolicy, "policy", "apply", "-", "--dry-run")
	if r.status != exitDone || !strings.HasPrefix(r.stdout, "revision 5 (p7) would be put in force, on 4\n  ~ classes.") {
		t.Errorf("%+v", r)
	}
	d := digestOf(mustPolicy(t, goodPolicy))
	s.mustHaveAsked(t, &quoratev1.ListPoliciesRequest{Limit: 1}, &quoratev1.UploadPolicyRequest{Digest: d},
		&quoratev1.ApplyPolicyRequest{Digest: d, Base: 4, DryRun: true})
}

// Shows that --wait says how each partition comes on, a line for each step, and returns when the revision is active
// everywhere; and that it says what is in force when nobody can tell it any more.
func TestPolicyApplyWait(t *testing.T) {
	s := applying()
	mustServeAdmin(t, s)
	file := mustWrite(t, "p.yaml", goodPolicy)
	r := mustRun(t, "policy", "apply", file, "--wait")
	const progress = "p0: has revision 4, not yet 5\np1: has revision 4, not yet 5\np0: has revision 5\np1: has revision 5\n"
	if r.stderr != progress || !strings.Contains(r.stdout, "active everywhere: no owner can decide") {
		t.Errorf("%+v", r)
	}
	s.answers["PolicyStatusRequest"] = []any{aStatus(5, 4, false), quotaerr.New(quotaerr.NoQuorum, "nobody leads")}
	r = runWith(t, "", "policy", "apply", file, "--wait", "--timeout", "500ms")
	if r.status != exitUnavailable || !strings.Contains(r.stdout, "revision 5 (p7) is in force") ||
		!strings.Contains(r.stderr, "revision 5 is in force, but is not known to be active everywhere") ||
		!strings.Contains(r.stderr, "nobody leads") {
		t.Errorf("%+v", r)
	}
}

// Shows that a revision that came in force meanwhile is an error to look at, asked for once, and what is said, or
// found out, when the outcome of an apply is not known.
func TestPolicyApplyThatFails(t *testing.T) {
	s := applying()
	mustServeAdmin(t, s)
	file := mustWrite(t, "p.yaml", goodPolicy)
	d := digestOf(mustPolicy(t, goodPolicy))
	s.answers["ApplyPolicyRequest"] = []any{quotaerr.New(quotaerr.PolicyStale, "revision 5 is in force, not 4")}
	mustFail(t, exitError, []string{"policy_stale", "revision 5 is in force, not 4"}, "policy", "apply", file)
	s.mustHaveAsked(t, &quoratev1.ListPoliciesRequest{Limit: 1}, &quoratev1.UploadPolicyRequest{Digest: d},
		&quoratev1.ApplyPolicyRequest{Digest: d, Base: 4})

	lost := quotaerr.New(quotaerr.OutcomeUnknown, "no answer")
	s.answers["ApplyPolicyRequest"] = []any{lost}
	mustFail(t, exitUnavailable, []string{"outcome_unknown", "`quorate policy list` tells whether it is in force"},
		"policy", "apply", file, "--timeout", "300ms")

	made := aRevision(5, "p7")
	made.Digest = d
	s.answers["ListPoliciesRequest"] = []any{history(aRevision(4, "p6")), history(made)}
	s.answers["DiffPoliciesRequest"] = []any{&quoratev1.DiffPoliciesResponse{Changes: []string{"+ it"}}}
	s.answers["PolicyStatusRequest"] = []any{aStatus(5, 5, true)}
	if r := mustRun(t, "policy", "apply", file, "--timeout", "300ms"); !strings.Contains(r.stdout, "revision 5 (p7) is in force, on 4\n  + it\n") {
		t.Errorf("%+v", r)
	}
}

// Shows what rollback and the class switches ask for, and that they print and wait as apply does.
func TestPolicyRollbackAndClassSwitches(t *testing.T) {
	s := applying()
	mustServeAdmin(t, s)
	for _, name := range []string{"RollbackPolicyRequest", "SwitchClassRequest"} {
		s.answers[name] = s.answers["ApplyPolicyRequest"]
	}
	s.answers["PolicyStatusRequest"] = []any{aStatus(5, 5, true)}
	status := &quoratev1.PolicyStatusRequest{Revision: 5}
	list := &quoratev1.ListPoliciesRequest{Limit: 1}
	for _, c := range []struct {
		args []string
		want []proto.Message
	}{
		{[]string{"policy", "rollback", "2", "--comment", "back"}, []proto.Message{list, &quoratev1.RollbackPolicyRequest{To: 2, Base: 4, Comment: "back"}, status}},
		{[]string{"class", "disable", "convert", "--comment", "off"}, []proto.Message{&quoratev1.SwitchClassRequest{ApiClass: "convert", Disabled: true, Comment: "off"}, status}},
		{[]string{"class", "enable", "convert", "--wait"}, []proto.Message{&quoratev1.SwitchClassRequest{ApiClass: "convert"}, status}},
	} {
		r := mustRun(t, c.args...)
		if !strings.HasPrefix(r.stdout, "revision 5 (p7) is in force, on 4\n") {
			t.Errorf("%v: %+v", c.args, r)
		}
		s.mustHaveAsked(t, c.want...)
	}
	s.answers["SwitchClassRequest"] = []any{quotaerr.New(quotaerr.OutcomeUnknown, "no answer")}
	mustFail(t, exitUnavailable, []string{"`quorate policy list` tells"}, "class", "enable", "convert")
	mustFail(t, exitUsage, []string{`"zero" is no revision`}, "policy", "rollback", "zero")
	mustFail(t, exitUsage, []string{`"0" is no revision`}, "policy", "rollback", "0")
}
