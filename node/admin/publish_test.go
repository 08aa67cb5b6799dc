package admin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// mustDownload reads a revision.
func (n *node) mustDownload(t *testing.T, number uint64) (*quoratev1.Revision, *policy.Policy) {
	t.Helper()
	r, chunks, err := n.DownloadPolicy(t.Context(), ops, &quoratev1.DownloadPolicyRequest{Revision: number})
	must(t, err)
	var b bytes.Buffer
	for chunk, err := range chunks {
		must(t, err)
		if len(chunk) > rpc.MaxChunkBytes {
			t.Fatalf("a piece of %d bytes", len(chunk))
		}
		b.Write(chunk)
	}
	p, err := policy.Decode(b.Bytes())
	must(t, err)
	return r, p
}

// Shows that a dry run tells what would change and changes nothing, not even the audit trail; that a publish puts
// exactly the uploaded policy in force, with author, comment and difference in answer, history and trail; and
// that history, differences and bodies of all revisions can be read.
func TestPublish(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	one, two := source(t, "p1", 3), source(t, "p2", 4)
	d := n.mustUpload(t, one)
	before := n.control.State().AuditCount
	dry, err := n.ApplyPolicy(t.Context(), ops, &quoratev1.ApplyPolicyRequest{Digest: d, DryRun: true})
	must(t, err)
	if dry.GetRevision().GetNumber() != 1 || dry.GetRevision().GetVersion() != "p1" || n.control.State().AuditCount != before ||
		n.control.State().InForce() != nil {
		t.Errorf("dry run: %v", dry)
	}
	first := n.mustApply(t, one, 0)
	if diff := cmp.Diff(dry.GetChanges(), first.GetChanges()); diff != "" {
		t.Error(diff)
	}
	want := []string{
		"+ version: p1", "+ default.limits.d: 5 per 1m", "+ classes.convert: m 3 per 1m", "+ classes.export: m 3 per 1m",
	}
	if diff := cmp.Diff(want, first.GetChanges()); diff != "" {
		t.Error(diff)
	}
	second := n.mustApply(t, two, 1)
	want = []string{"~ version: p1 -> p2", "~ classes.convert.limits.m.limit: 3 -> 4"}
	if diff := cmp.Diff(want, second.GetChanges()); diff != "" {
		t.Error(diff)
	}
	r := second.GetRevision()
	if r.GetNumber() != 2 || r.GetBase() != 1 || r.GetKind() != "publish" || r.GetAuthor() != "admin/ops" ||
		r.GetComment() != "why" || !bytes.Equal(r.GetDigest(), n.mustUpload(t, two)) || r.GetSize() == 0 {
		t.Errorf("revision: %v", r)
	}
	for number, want := range map[uint64]*policy.Policy{0: two, 1: one, 2: two} {
		if r, p := n.mustDownload(t, number); p.Digest() != want.Digest() || r.GetVersion() != want.Version {
			t.Errorf("revision %d is %v", number, r)
		}
	}
	list, err := n.ListPolicies(t.Context(), ops, &quoratev1.ListPoliciesRequest{Limit: 1})
	must(t, err)
	rest, err := n.ListPolicies(t.Context(), ops, &quoratev1.ListPoliciesRequest{Before: list.GetRevisions()[0].GetNumber()})
	must(t, err)
	if len(list.GetRevisions()) != 1 || len(rest.GetRevisions()) != 1 || rest.GetRevisions()[0].GetVersion() != "p1" {
		t.Errorf("listed: %v, then %v", list, rest)
	}
	for from, lines := range map[uint64]int{0: 2, 1: 2, 2: 0} {
		got, err := n.DiffPolicies(t.Context(), ops, &quoratev1.DiffPoliciesRequest{From: from})
		must(t, err)
		if len(got.GetChanges()) != lines {
			t.Errorf("from %d: %v", from, got.GetChanges())
		}
	}
	if got, err := n.DiffPolicies(t.Context(), ops, &quoratev1.DiffPoliciesRequest{To: 1}); err != nil ||
		cmp.Diff(first.GetChanges(), got.GetChanges()) != "" || got.GetFrom() != nil {
		t.Errorf("the first: %v %v", got, err)
	}
	found, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Action: "policy", Object: "p2"})
	must(t, err)
	if len(found.GetRecords()) != 1 || found.GetRecords()[0].GetDifference() != strings.Join(want, "\n")+"\n" {
		t.Errorf("the trail has %v", found)
	}
}

// Shows that what must not be put in force is refused with what to do, leaves the revision in force alone, and is in
// the trail with who tried.
func TestRefusedPublishes(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	n.mustApply(t, source(t, "p1", 3), 0)
	other := n.mustUpload(t, source(t, "p1", 4))
	good := n.mustUpload(t, source(t, "p2", 4))
	unknown := sha256.Sum256([]byte("unknown"))
	for _, c := range []struct {
		what string
		req  *quoratev1.ApplyPolicyRequest
		want quotaerr.Reason
		says []string
	}{
		{"stale", &quoratev1.ApplyPolicyRequest{Digest: good}, quotaerr.PolicyStale, []string{"revision 1", "not 0"}},
		{"ahead", &quoratev1.ApplyPolicyRequest{Digest: good, Base: 7}, quotaerr.PolicyStale, []string{"revision 1", "not 7"}},
		{"label", &quoratev1.ApplyPolicyRequest{Digest: other, Base: 1}, quotaerr.InvalidArgument, []string{`"p1"`, "revision 1"}},
		{"unknown", &quoratev1.ApplyPolicyRequest{Digest: unknown[:], Base: 1}, quotaerr.InvalidArgument, []string{"upload"}},
		{"short", &quoratev1.ApplyPolicyRequest{Digest: good[1:], Base: 1}, quotaerr.InvalidArgument, []string{"31 bytes"}},
	} {
		before := n.control.State().AuditCount
		_, err := n.ApplyPolicy(t.Context(), ops, c.req)
		wantReason(t, err, c.want, c.what)
		for _, says := range c.says {
			if !strings.Contains(quotaerr.As(err).Message, says) {
				t.Errorf("%s: %v does not say %q", c.what, err, says)
			}
		}
		if got := n.trail(t, 1)[0]; n.control.State().AuditCount != before+1 ||
			!strings.HasPrefix(got, "admin/ops policy.publish ") || !strings.HasSuffix(got, ": refused") {
			t.Errorf("%s: the trail has %s", c.what, got)
		}
	}
	trash := []byte("this is no policy")
	d := sha256.Sum256(trash)
	for what, chunks := range map[string][]byte{"no policy": trash, "another body": trash[1:]} {
		_, err := n.UploadPolicy(t.Context(), ops, d[:], pieces(chunks))
		wantReason(t, err, quotaerr.InvalidArgument, what)
		if got := n.trail(t, 1)[0]; !strings.HasPrefix(got, "admin/ops policy.upload body ") {
			t.Errorf("%s: the trail has %s", what, got)
		}
	}
	if now := n.control.State().InForce(); now.Number != 1 {
		t.Errorf("revision %d is in force", now.Number)
	}
}

// Shows, on three nodes: a policy that was uploaded to a node that does not lead, while the leader could not be
// reached, is fetched by the leader; without a majority that holds it it is not put in force; with one it is, and
// all nodes read it, the newest at once after the answer; and a call to a node that does not lead names the leader.
func TestPublishOnThreeNodes(t *testing.T) {
	c := newCluster(t, 3)
	leader, follower := c.leader(t), c.follower(t)
	c.cut[leader.id] = true
	d := follower.mustUpload(t, source(t, "p1", 3))
	delete(c.cut, leader.id)
	if has, err := leader.control.Bodies().Has(state.Digest(d), 0); has || err != nil {
		t.Fatalf("the leader has it already: %v", err)
	}
	req := &quoratev1.ApplyPolicyRequest{Digest: d}
	_, err := follower.ApplyPolicy(t.Context(), ops, req)
	wantReason(t, err, quotaerr.NotLeader, "apply on a follower")
	if e := quotaerr.As(err); e.Leader != leader.id || e.LeaderAddr != "grpc-"+leader.id {
		t.Errorf("it names %q at %q", e.Leader, e.LeaderAddr)
	}
	_, err = follower.ListNodes(t.Context(), ops, &quoratev1.ListNodesRequest{})
	wantReason(t, err, quotaerr.NotLeader, "list on a follower")
	must(t, second(leader.ApplyPolicy(t.Context(), ops, req)))

	p2 := source(t, "p2", 4)
	for _, n := range c.nodes {
		c.cut[n.id] = n != leader
	}
	_, err = leader.ApplyPolicy(t.Context(), ops, &quoratev1.ApplyPolicyRequest{Digest: leader.mustUpload(t, p2), Base: 1})
	wantReason(t, err, quotaerr.NoQuorum, "without a majority")
	if got := leader.control.State().InForce().Number; got != 1 {
		t.Fatalf("revision %d is in force", got)
	}
	clear(c.cut)
	leader.mustApply(t, p2, 1)
	for _, n := range c.nodes {
		if r, p := n.mustDownload(t, 0); r.GetNumber() != 2 || p.Digest() != p2.Digest() {
			t.Errorf("%s reads %v", n.id, r)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// Shows that a class is switched against whichever revision is in force, or the one that is named; that what is so
// already makes no revision; that a rollback brings the body and switches of its revision back; and what is refused.
func TestSwitchAndRollback(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	none := &quoratev1.SwitchClassRequest{ApiClass: "convert", Disabled: true}
	wantReason(t, second(n.SwitchClass(t.Context(), ops, none)), quotaerr.InvalidArgument, "before a policy")
	n.mustApply(t, source(t, "p1", 3), 0)
	off, err := n.SwitchClass(t.Context(), ops, &quoratev1.SwitchClassRequest{ApiClass: "convert", Disabled: true, Base: 1})
	must(t, err)
	if r := off.GetRevision(); r.GetNumber() != 2 || r.GetKind() != "switch" ||
		cmp.Diff([]string{"~ classes.convert.disabled: false -> true"}, off.GetChanges()) != "" {
		t.Errorf("switched: %v", off)
	}
	if _, p := n.mustDownload(t, 0); !p.Classes["convert"].Disabled || p.Classes["export"].Disabled {
		t.Error("convert is not off, or more is")
	}
	same, err := n.SwitchClass(t.Context(), ops, &quoratev1.SwitchClassRequest{ApiClass: "convert", Disabled: true})
	if err != nil || same.GetRevision().GetNumber() != 2 || len(same.GetChanges()) > 0 {
		t.Errorf("again: %v %v", same, err)
	}
	for what, req := range map[string]*quoratev1.SwitchClassRequest{
		"unlisted": {ApiClass: "konvert"}, "no name": {},
	} {
		wantReason(t, second(n.SwitchClass(t.Context(), ops, req)), quotaerr.InvalidArgument, what)
	}
	stale := &quoratev1.SwitchClassRequest{ApiClass: "export", Disabled: true, Base: 1}
	wantReason(t, second(n.SwitchClass(t.Context(), ops, stale)), quotaerr.PolicyStale, "stale")

	n.mustApply(t, source(t, "p2", 4), 2)
	back, err := n.RollbackPolicy(t.Context(), ops, &quoratev1.RollbackPolicyRequest{To: 2, Base: 3, Comment: "too much"})
	must(t, err)
	r, p := n.mustDownload(t, 0)
	if r.GetNumber() != 4 || r.GetKind() != "rollback" || r.GetComment() != "too much" || !p.Classes["convert"].Disabled ||
		p.Classes["convert"].Limits[0].Max != 3 || len(back.GetChanges()) != 3 {
		t.Errorf("rolled back to %v with %v", r, back.GetChanges())
	}
	for what, c := range map[string]struct {
		req  *quoratev1.RollbackPolicyRequest
		want quotaerr.Reason
	}{
		"itself":  {&quoratev1.RollbackPolicyRequest{To: 4, Base: 4}, quotaerr.InvalidArgument},
		"unknown": {&quoratev1.RollbackPolicyRequest{To: 9, Base: 4}, quotaerr.InvalidArgument},
		"none":    {&quoratev1.RollbackPolicyRequest{Base: 4}, quotaerr.InvalidArgument},
		"stale":   {&quoratev1.RollbackPolicyRequest{To: 1, Base: 3}, quotaerr.PolicyStale},
	} {
		wantReason(t, second(n.RollbackPolicy(t.Context(), ops, c.req)), c.want, what)
		if got := n.trail(t, 1)[0]; !strings.HasPrefix(got, "admin/ops policy.rollback revision ") {
			t.Errorf("%s: the trail has %s", what, got)
		}
	}
}

// Shows that a large policy is read whole in pieces that a message carries, as it was uploaded and with a class
// switched; and that a reader who has gone away is told nothing more.
func TestLargePolicyIsReadInPieces(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	parts := *source(t, "large", 3)
	parts.Principals = map[string]map[string][]policy.Limit{}
	for i := range 8000 {
		name := fmt.Sprint(strings.Repeat("x", 200), i)
		parts.Principals[name] = map[string][]policy.Limit{"convert": {{Name: "m", Max: int64(i), WindowNanos: 1e9}}}
	}
	large, err := policy.New(parts)
	must(t, err)
	if size := n.mustApply(t, large, 0).GetRevision().GetSize(); size < 3*rpc.MaxChunkBytes {
		t.Fatalf("only %d bytes", size)
	}
	if _, p := n.mustDownload(t, 0); p.Digest() != large.Digest() {
		t.Error("another policy is read")
	}
	must(t, second(n.SwitchClass(t.Context(), ops, &quoratev1.SwitchClassRequest{ApiClass: "export", Disabled: true})))
	if r, p := n.mustDownload(t, 0); p.Version != r.GetVersion() || !p.Classes["export"].Disabled || len(p.Principals) != 8000 {
		t.Error("another policy is read once a class is switched")
	}
	for number := range uint64(2) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, chunks, err := n.DownloadPolicy(ctx, ops, &quoratev1.DownloadPolicyRequest{Revision: number + 1})
		must(t, err)
		var got []error
		for _, err := range chunks {
			got = append(got, err)
			cancel()
		}
		if len(got) != 2 || got[0] != nil || !errors.Is(got[1], context.Canceled) {
			t.Errorf("revision %d: %v", number+1, got)
		}
	}
}

// Shows that classes which are switched at the same time, each against whichever revision is in force, all end
// switched, each by a revision of its own.
func TestSwitchesAtTheSameTime(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	n.mustApply(t, source(t, "p1", 3), 0)
	var wg sync.WaitGroup
	for _, class := range []string{"convert", "export", "default"} {
		wg.Go(func() {
			_, err := n.SwitchClass(t.Context(), ops, &quoratev1.SwitchClassRequest{ApiClass: class, Disabled: true})
			if err != nil {
				t.Errorf("%s: %v", class, err)
			}
		})
	}
	wg.Wait()
	if r, p := n.mustDownload(t, 0); r.GetNumber() != 4 || !p.Classes["convert"].Disabled || !p.Classes["export"].Disabled ||
		!p.Default.Disabled {
		t.Errorf("in force: %v", r)
	}
}

// Shows that the status of a revision has what each partition has installed and carries, as its leader says, each
// asked for at most a second, one that does not answer as the control group knows it; and that the revision is
// active everywhere when all have noted it, or a whole lease has passed.
func TestPolicyStatus(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	_, err := n.PolicyStatus(t.Context(), ops, &quoratev1.PolicyStatusRequest{})
	wantReason(t, err, quotaerr.InvalidArgument, "before a policy")
	n.mustApply(t, source(t, "p1", 3), 0)
	n.mustApply(t, source(t, "p2", 3), 1)
	carried := []*quoratev1.CarriedRule{{ApiClass: "convert", Revision: 1, EndsIn: durationpb.New(time.Minute)}}
	c.partition = func(ctx context.Context, id string) (*quoratev1.PartitionPolicyResponse, error) {
		if d, ok := ctx.Deadline(); !ok || time.Until(d) > time.Second || id != "p0" {
			return nil, fmt.Errorf("%s is asked until %v", id, d)
		}
		return &quoratev1.PartitionPolicyResponse{Installed: 1, Carried: carried}, nil
	}
	status := func() *quoratev1.PolicyStatusResponse {
		t.Helper()
		s, err := n.PolicyStatus(t.Context(), ops, &quoratev1.PolicyStatusRequest{Revision: 2})
		must(t, err)
		return s
	}
	s := status()
	if p := s.GetPartitions()[0]; s.GetInForce() != 2 || s.GetActiveEverywhere() || s.GetActiveIn().AsDuration() < control.PolicyLease ||
		p.GetInstalled() != 1 || !p.GetReachable() || len(p.GetCarried()) != 1 {
		t.Errorf("at first: %v", s)
	}
	n.clock.Advance(int64(9 * time.Second))
	if s = status(); s.GetActiveEverywhere() || s.GetActiveIn().AsDuration() < time.Second {
		t.Errorf("after 9 s: %v", s)
	}
	n.clock.Advance(int64(2 * time.Second))
	if s = status(); !s.GetActiveEverywhere() || s.GetActiveIn() != nil {
		t.Errorf("after 11 s: %v", s)
	}
	n.mustApply(t, source(t, "p3", 3), 2)
	c.partition = nil
	must(t, second(n.control.Propose(t.Context(), &state.Command{
		Kind: state.KindInstalled, Installed: []state.Note{{Partition: 0, Revision: fsm.Revision(3)}},
	})))
	now, err := n.PolicyStatus(t.Context(), ops, &quoratev1.PolicyStatusRequest{})
	must(t, err)
	if p := now.GetPartitions()[0]; !now.GetActiveEverywhere() || p.GetReachable() || p.GetInstalled() != 3 {
		t.Errorf("noted: %v", now)
	}
}
