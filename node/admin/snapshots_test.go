package admin

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/control/state"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// messages are what the newest records say, oldest first.
func (n *node) messages(t *testing.T, count uint32) (out []string) {
	t.Helper()
	found, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Limit: count})
	must(t, err)
	for _, r := range found.GetRecords() {
		out = append([]string{strings.TrimSpace(fmt.Sprintf("%s %s %s %s: %s, %s %s", r.GetActor(), r.GetAction(), r.GetObject(),
			r.GetComment(), r.GetResult(), r.GetMessage(), r.GetDifference()))}, out...)
	}
	return out
}

// Shows that a backup is in the audit trail before its first byte and after its last, with who, why and which; that one
// that fails is, too; and that without the trail nothing is read, nor with a comment that it does not take.
func TestSaveSnapshot(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	saves := 0
	c.save = func(w io.Writer) error {
		saves++
		if got := n.messages(t, 1); len(got) != 1 || !strings.HasSuffix(got[0], "begun on node a") {
			t.Errorf("before the first byte the trail has %v", got)
		}
		_, err := w.Write([]byte("backup"))
		return err
	}
	var to bytes.Buffer
	req := &quoratev1.SaveSnapshotRequest{Comment: "nightly"}
	must(t, n.SaveSnapshot(t.Context(), ops, req, &to))
	c.save = func(io.Writer) error { return quotaerr.New(quotaerr.NoQuorum, "p0 has no leader") }
	wantReason(t, n.SaveSnapshot(t.Context(), ops, req, &to), quotaerr.NoQuorum, "without a leader")
	wantReason(t, n.SaveSnapshot(t.Context(), ops, &quoratev1.SaveSnapshotRequest{Comment: "\x00"}, &to),
		quotaerr.InvalidArgument, "a comment that is none")
	want := []string{
		"admin/ops snapshot.save cluster c1 nightly: done, begun on node a",
		"admin/ops snapshot.save cluster c1 nightly: done, sent backup ab" + strings.Repeat("0", 62) + ": 6 bytes",
		"admin/ops snapshot.save cluster c1 nightly: done, begun on node a",
		"admin/ops snapshot.save cluster c1 nightly: refused, p0 has no leader",
		"admin/ops snapshot.save cluster c1 \uFFFD: refused, comment: use at most 1024 bytes of UTF-8",
	}
	if diff := cmp.Diff(want, n.messages(t, 5)); diff != "" || to.String() != "backup" {
		t.Error(diff, to.String())
	}
	c.lose = func(*state.Command) bool { return true }
	wantReason(t, n.SaveSnapshot(shortly(t), ops, req, &to), quotaerr.NoQuorum, "without the trail")
	if saves != 1 {
		t.Errorf("read %d times", saves)
	}
}

// Shows that a restore is made with what was said of it, and what it makes is told; that a refusal is in the audit trail
// where there is one; and that with a comment that the trail does not take nothing is read.
func TestRestoreSnapshot(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	c.unmade = quotaerr.New(quotaerr.NoQuorum, "not made yet")
	c.restore = func(r Restore) (Restored, error) {
		body, err := io.ReadAll(r.Backup)
		if err != nil || string(body) != "backup" || r.Actor != ops.Name || r.Comment != "fire" || !r.AcceptLoss {
			t.Errorf("asked to restore %q, %v: %+v", body, err, r)
		}
		return Restored{Cluster: "c1", Incarnation: 7, Nodes: []string{"a"}, Partitions: []string{"p4"}}, nil
	}
	first := &quoratev1.RestoreSnapshotRequest{Comment: "fire", AcceptLoss: true}
	made, err := n.RestoreSnapshot(t.Context(), ops, first, strings.NewReader("backup"))
	if err != nil || made.GetClusterId() != "c1" || made.GetIncarnation() != 7 || len(made.GetNodes()) != 1 ||
		made.GetPartitions()[0] != "p4" {
		t.Errorf("%v, %v", made, err)
	}
	c.restore = func(Restore) (Restored, error) {
		return Restored{}, quotaerr.New(quotaerr.InvalidArgument, "cluster c1 is made already")
	}
	_, err = n.RestoreSnapshot(t.Context(), ops, first, strings.NewReader("backup"))
	wantReason(t, err, quotaerr.InvalidArgument, "no trail")
	c.unmade = nil
	_, err = n.RestoreSnapshot(t.Context(), ops, first, strings.NewReader("backup"))
	wantReason(t, err, quotaerr.InvalidArgument, "made already")
	c.restore = nil
	_, err = n.RestoreSnapshot(t.Context(), ops, &quoratev1.RestoreSnapshotRequest{Comment: "\xff"}, nil)
	wantReason(t, err, quotaerr.InvalidArgument, "a comment that is none")
	want := []string{
		"admin/ops cluster.restore cluster c1 fire: refused, cluster c1 is made already --accept-loss",
		"admin/ops cluster.restore cluster c1 \uFFFD: refused, comment: use at most 1024 bytes of UTF-8",
	}
	if diff := cmp.Diff(want, n.messages(t, 2)); diff != "" {
		t.Error(diff)
	}
}
