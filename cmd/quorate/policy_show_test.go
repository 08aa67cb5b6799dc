package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// showing is a node whose revision 4 is goodPolicy.
func showing(t *testing.T) *adminScript {
	return &adminScript{
		policy:  mustPolicy(t, goodPolicy).AppendBinary(nil),
		answers: map[string][]any{"DownloadPolicyRequest": {&quoratev1.DownloadPolicyResponse{Revision: aRevision(4, "p7")}}},
	}
}

// Shows that show prints the policy as a file that validates and is the same, in YAML and in JSON, and as a table
// with who made it; and that a body that is no policy is an error.
func TestPolicyShow(t *testing.T) {
	s := showing(t)
	mustServeAdmin(t, s)
	for _, format := range []string{"yaml", "json"} {
		p, err := policy.Parse(format, []byte(mustRun(t, "policy", "show", "-o", format).stdout))
		if err != nil || p.Digest() != mustPolicy(t, goodPolicy).Digest() {
			t.Errorf("-o %s: %v", format, err)
		}
		s.mustHaveAsked(t, &quoratev1.DownloadPolicyRequest{})
	}
	out := mustRun(t, "policy", "show", "4").stdout
	s.mustHaveAsked(t, &quoratev1.DownloadPolicyRequest{Revision: 4})
	const want = `revision 4 (p7): publish by admin/ops at 2023-11-14T22:13:20Z
comment: why

FOR       CLASS    LIMITS                SETTINGS
all       default  default 100 per 1m    -
all       convert  per-minute 3 per 1m   -
all       export   per-minute 3 per 1m   -
tier pro  convert  per-minute 30 per 1m  -
`
	if diff := cmp.Diff(want, out); diff != "" {
		t.Error(diff)
	}
	s.policy = s.policy[:len(s.policy)-1]
	mustFail(t, exitError, []string{"revision 4 as the node sent it", "check that versions agree"}, "policy", "show")
}

// Shows that a table leaves out overrides beyond a bound, and says how many.
func TestPolicyShowIsBounded(t *testing.T) {
	text := goodPolicy + "principals:\n" // one override it has under tiers
	for i := range maxShownRules {
		text += fmt.Sprintf("  u%d: {convert: {limits: [{name: a, limit: 1, window: 1s}]}}\n", i)
	}
	s := showing(t)
	s.policy = mustPolicy(t, text).AppendBinary(nil)
	mustServeAdmin(t, s)
	out := mustRun(t, "policy", "show").stdout
	if n := strings.Count(out, "\nprincipal "); n != maxShownRules-1 || !strings.HasSuffix(out, "\nand 1 more override: -o yaml has them\n") {
		t.Errorf("%d principals, ending in %q", n, out[len(out)-60:])
	}
}

// Shows the history as a table and for scripts, and what it asks for.
func TestPolicyList(t *testing.T) {
	s := &adminScript{answers: map[string][]any{"ListPoliciesRequest": {history(aRevision(5, "p7"), aRevision(4, "p6"))}}}
	mustServeAdmin(t, s)
	const want = `REVISION  VERSION  KIND     ON  AUTHOR     AT                    COMMENT
       5  p7       publish   4  admin/ops  2023-11-14T22:13:20Z  why
       4  p6       publish   3  admin/ops  2023-11-14T22:13:20Z  why
`
	if diff := cmp.Diff(want, mustRun(t, "policy", "list", "--limit", "2", "--before", "6").stdout); diff != "" {
		t.Error(diff)
	}
	s.mustHaveAsked(t, &quoratev1.ListPoliciesRequest{Limit: 2, Before: 6})
	const one = `{"number":4,"version":"p6","kind":"publish","base":3,"author":"admin/ops","at":"2023-11-14T22:13:20Z",` +
		`"comment":"why","digest":"0102","size":7}`
	if out := mustRun(t, "policy", "list", "-o", "json").stdout; !strings.HasSuffix(out, ","+one+"]}\n") {
		t.Error(out)
	}
}

// Shows which revisions diff asks for, that what is no number is a file, which is compared here, and both outputs.
func TestPolicyDiff(t *testing.T) {
	s := showing(t)
	s.answers["DiffPoliciesRequest"] = []any{&quoratev1.DiffPoliciesResponse{
		Changes: []string{"~ version: p6 -> p7"}, MoreChanges: 3, From: aRevision(4, "p6"), To: aRevision(5, "p7"),
	}}
	mustServeAdmin(t, s)
	const want = "revision 4 (p6) -> revision 5 (p7): 4 changes\n  ~ version: p6 -> p7\n  and 3 more\n"
	for _, c := range []struct {
		args     []string
		from, to uint64
	}{{nil, 0, 0}, {[]string{"4"}, 4, 0}, {[]string{"4", "5"}, 4, 5}} {
		if diff := cmp.Diff(want, mustRun(t, append([]string{"policy", "diff"}, c.args...)...).stdout); diff != "" {
			t.Error(diff)
		}
		s.mustHaveAsked(t, &quoratev1.DiffPoliciesRequest{From: c.from, To: c.to})
	}
	file := mustWrite(t, "p.yaml", strings.Replace(goodPolicy, "limit: 30", "limit: 31", 1))
	var v diffView
	mustJSON(t, &v, "policy", "diff", "3", file)
	s.mustHaveAsked(t, &quoratev1.DownloadPolicyRequest{Revision: 3})
	changes := []string{"~ tiers.pro.convert.limits.per-minute.limit: 30 -> 31"}
	if diff := cmp.Diff(changes, v.Changes); diff != "" || v.File != file || v.To != nil || v.From.Number != 4 {
		t.Errorf("%+v %s", v, diff)
	}
	same := "revision 4 (p7) -> " + mustWrite(t, "same.yaml", goodPolicy)
	if out := mustRun(t, "policy", "diff", strings.TrimPrefix(same, "revision 4 (p7) -> ")).stdout; out != same+": no difference\n" {
		t.Errorf("%q, want %q", out, same)
	}
	mustFail(t, exitUsage, []string{`"x" is no revision`}, "policy", "diff", "x", file)
	mustFail(t, exitUsage, []string{`"x" is no revision`}, "policy", "diff", "x", "3")
}

// Shows how far a revision has come, in words and for scripts: partitions, what they carry, and whether another is
// in force.
func TestPolicyStatus(t *testing.T) {
	away := aStatus(5, 4, false)
	away.InForce, away.Partitions[1].Reachable, away.Partitions[1].Carried = 6, false, nil
	s := &adminScript{answers: map[string][]any{"PolicyStatusRequest": {away}}}
	mustServeAdmin(t, s)
	const want = `revision 5 (p7): not in force: revision 6 is
active everywhere in at most 10s

PARTITION  INSTALLED  LEADER ANSWERS  CARRIED
p0                 5  true            convert: revision 4 (p6) for 59s
p1                 4  false           -
`
	if diff := cmp.Diff(want, mustRun(t, "policy", "status", "5").stdout); diff != "" {
		t.Error(diff)
	}
	s.mustHaveAsked(t, &quoratev1.PolicyStatusRequest{Revision: 5})
	s.answers["PolicyStatusRequest"] = []any{aStatus(5, 5, true)}
	var v map[string]any
	if err := json.Unmarshal([]byte(mustRun(t, "policy", "status", "-o", "json").stdout), &v); err != nil {
		t.Fatal(err)
	}
	p1 := v["partitions"].([]any)[1]
	wantP1 := map[string]any{
		"partition": "p1", "installed": 5.0, "reachable": true, "carried": []any{
			map[string]any{"api_class": "convert", "revision": 4.0, "version": "p6", "ends_in": "59s"},
		},
	}
	if diff := cmp.Diff(wantP1, p1); diff != "" || v["active_everywhere"] != true || v["active_in"] != "" || v["in_force"] != 5.0 {
		t.Errorf("%v %s", v, diff)
	}
	s.answers["PolicyStatusRequest"] = []any{quotaerr.New(quotaerr.InvalidArgument, "there is no revision 9")}
	mustFail(t, exitError, []string{"there is no revision 9"}, "policy", "status", "9")
}
