package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// SaveSnapshot sends the script's answers one after another, each a piece, until one is an error or there is no more.
func (s *adminScript) SaveSnapshot(
	req *quoratev1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[quoratev1.SaveSnapshotResponse],
) error {
	for i := 0; ; i++ {
		piece, err := answer[*quoratev1.SaveSnapshotResponse](stream.Context(), s, req)
		if err != nil && status.Code(err) != codes.OK {
			return err
		}
		if len(piece.GetChunk()) == 0 {
			return nil
		}
		if err := stream.Send(piece); err != nil {
			return err
		}
	}
}

// RestoreSnapshot takes what comes and answers by the script. What was said of it is noted as the request.
func (s *adminScript) RestoreSnapshot(
	stream grpc.ClientStreamingServer[quoratev1.RestoreSnapshotRequest, quoratev1.RestoreSnapshotResponse],
) error {
	var first *quoratev1.RestoreSnapshotRequest
	var body []byte
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		body = append(body, piece.GetChunk()...)
		if first == nil {
			first = &quoratev1.RestoreSnapshotRequest{AcceptLoss: piece.GetAcceptLoss(), Comment: piece.GetComment()}
		}
	}
	s.mu.Lock()
	s.body = body
	s.mu.Unlock()
	resp, err := answer[*quoratev1.RestoreSnapshotResponse](stream.Context(), s, first)
	if err != nil {
		return err
	}
	return stream.SendAndClose(resp)
}

// mustBackup is a backup of a cluster with one partition, and its digest.
func mustBackup(t *testing.T) ([]byte, string) {
	t.Helper()
	var out bytes.Buffer
	w := backup.NewWriter(&out, time.Unix(1_700_000_000, 0))
	for _, f := range []struct{ name, content string }{
		{backup.ControlName, "control"}, {backup.AuditName, "{}\n"}, {backup.PartitionDir + "p3", strings.Repeat("s", 3000)},
	} {
		if err := w.Add(f.name, int64(len(f.content)), strings.NewReader(f.content)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := w.Close(&backup.Manifest{
		Program: "v1", Cluster: "c1", Incarnation: 4, MapVersion: 9, PolicyRevision: 2, PolicyVersion: "p7",
		Partitions: []backup.Partition{{
			ID: "p3", Ranges: []backup.Range{{First: 0, Last: fsm.NumSlots - 1, Epoch: 5}}, Keys: 12, Records: 3, Index: 77,
			Digest: strings.Repeat("ab", 16), TimeNanos: 1,
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), d.String()
}

// inPieces is a backup as a script sends it.
func inPieces(src []byte) []any {
	return []any{
		&quoratev1.SaveSnapshotResponse{Chunk: src[:700]}, &quoratev1.SaveSnapshotResponse{Chunk: src[700:]},
		&quoratev1.SaveSnapshotResponse{},
	}
}

// namesIn are the names in a directory.
func namesIn(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Shows that a backup is written whole under its name, for its owner alone, and told in a few lines and for scripts;
// that a file that is there is replaced with --force only, and asked nothing of the cluster for; and that nothing is
// left, and what was there stays, when the cluster breaks off or sends what is no whole backup.
func TestSnapshotSave(t *testing.T) {
	src, digest := mustBackup(t)
	s := &adminScript{answers: map[string][]any{"SaveSnapshotRequest": inPieces(src)}}
	mustServeAdmin(t, s)
	dir := t.TempDir()
	file := filepath.Join(dir, "b")
	r := mustRun(t, "snapshot", "save", file, "--comment", "nightly")
	want := fmt.Sprintf("%s is written and verified: backup %s\nof cluster c1 at 2023-11-14T22:13:20Z: 1 partition, 12 keys, "+
		"policy p7 (2), %s\n", file, digest, sizeText(int64(len(src))))
	if diff := cmp.Diff(want, r.stdout); diff != "" || r.stderr != "" {
		t.Errorf("%q %s", r.stderr, diff)
	}
	kept := func() {
		t.Helper()
		got, err := os.ReadFile(file)
		if err != nil || !bytes.Equal(got, src) {
			t.Errorf("the file has %d bytes: %v", len(got), err)
		}
		if names := namesIn(t, dir); len(names) != 1 {
			t.Errorf("there is %v", names)
		}
	}
	kept()
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	asked := &quoratev1.SaveSnapshotRequest{Comment: "nightly"}
	s.mustHaveAsked(t, asked, asked, asked)
	mustFail(t, exitError, []string{"is there already", "--force"}, "snapshot", "save", file)
	mustFail(t, exitError, []string{"is a directory: name a file in it"}, "snapshot", "save", dir)
	mustFail(t, exitError, []string{"directory " + filepath.Join(dir, "none") + " is not there"}, "snapshot", "save",
		filepath.Join(dir, "none", "b"))
	mustFail(t, exitError, []string{os.DevNull + " is no regular file"}, "snapshot", "save", os.DevNull, "--force")
	s.mustHaveAsked(t)

	s.answers["SaveSnapshotRequest"] = inPieces(src)
	var v backupView
	mustJSON(t, &v, "snapshot", "save", file, "--force")
	if v.Digest != digest || v.Bytes != int64(len(src)) || v.Partitions[0].Keys != 12 || v.File != file {
		t.Errorf("%+v", v)
	}
	kept()
	broken := bytes.Clone(src)
	broken[1800]++
	for what, script := range map[string][]any{
		"the leader of p3 is gone; no backup was kept": {
			&quoratev1.SaveSnapshotResponse{Chunk: src[:700]}, quotaerr.New(quotaerr.NoQuorum, "the leader of p3 is gone"),
		},
		"what came is not kept: " + file + ": the backup is cut short": {
			&quoratev1.SaveSnapshotResponse{Chunk: src[:700]}, &quoratev1.SaveSnapshotResponse{},
		},
		"what came is not kept: " + file + ": the backup is damaged": inPieces(broken),
	} {
		s.answers["SaveSnapshotRequest"] = script
		r := runWith(t, "", "snapshot", "save", file, "--force")
		if r.status == exitDone || r.stdout != "" || !strings.Contains(r.stderr, what) || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: %+v", what, r)
		}
		kept()
	}
}

// Shows that a link is followed with --force, to a file alone, and stays a link.
func TestSnapshotSaveOverLink(t *testing.T) {
	src, _ := mustBackup(t)
	s := &adminScript{answers: map[string][]any{"SaveSnapshotRequest": inPieces(src)}}
	mustServeAdmin(t, s)
	dir, aside := t.TempDir(), t.TempDir()
	link, to := filepath.Join(dir, "b"), filepath.Join(aside, "b")
	mustPut(t, to, "old")
	mustLink := func(to string) {
		t.Helper()
		if err := errors.Join(removeIfThere(link), os.Symlink(to, link)); err != nil {
			t.Fatal(err)
		}
	}
	mustLink(to)
	mustFail(t, exitError, []string{"is there already"}, "snapshot", "save", link)
	mustRun(t, "snapshot", "save", link, "--force")
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, src) {
		t.Errorf("the link's file has %d bytes: %v", len(got), err)
	}
	if now, err := os.Readlink(link); err != nil || now != to || len(namesIn(t, aside)) != 1 {
		t.Errorf("the link leads to %q, %v, beside %v", now, err, namesIn(t, aside))
	}
	s.mustHaveAsked(t, &quoratev1.SaveSnapshotRequest{}, &quoratev1.SaveSnapshotRequest{}, &quoratev1.SaveSnapshotRequest{})
	mustLink(os.DevNull)
	mustFail(t, exitError, []string{os.DevNull + " is no regular file"}, "snapshot", "save", link, "--force")
	mustLink(filepath.Join(aside, "none"))
	mustFail(t, exitError, []string{"is a link that cannot be followed"}, "snapshot", "save", link, "--force")
	s.mustHaveAsked(t)
}

// Shows that a file that cannot be written is no fault of the cluster's: an error that says it once.
func TestSnapshotSaveUnwritten(t *testing.T) {
	fails := &telling{to: writerFunc(func([]byte) (int, error) {
		return 0, &os.PathError{Op: "write", Path: "/b/.b.1.partial", Err: syscall.ENOSPC}
	}), tell: io.Discard, told: time.Now()}
	if _, err := fails.Write([]byte("x")); err == nil {
		t.Fatal("the write does not fail")
	}
	const want = "the backup cannot be written to /b: no space left on device: mend that, or name a file elsewhere"
	if err := errUnwritten("/b/b", fails.failed); err.Error() != want || retryable(err) {
		t.Errorf("%v", err)
	}
}

// Shows that a save that is interrupted leaves nothing.
func TestSnapshotSaveInterrupted(t *testing.T) {
	src, _ := mustBackup(t)
	ctx, cancel := context.WithCancel(t.Context())
	s := &adminScript{answers: map[string][]any{"SaveSnapshotRequest": inPieces(src)}}
	mustServeAdmin(t, s)
	dir := t.TempDir()
	cancel()
	var stdout, stderr bytes.Buffer
	status := run(ctx, []string{"snapshot", "save", filepath.Join(dir, "b")}, strings.NewReader(""), &stdout, &stderr)
	if status != exitError || stderr.String() != "quorate: interrupted: no backup was kept\n" || len(namesIn(t, dir)) != 0 {
		t.Errorf("status %d, %q, %v", status, &stderr, namesIn(t, dir))
	}
}

// Shows that a file that has appeared meanwhile is not replaced without --force.
func TestGive(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	mustPut(t, from, "new")
	mustPut(t, to, "old")
	if err := give(from, to, false); err == nil || !strings.Contains(err.Error(), "is there already") {
		t.Errorf("%v", err)
	}
	if err := give(from, to, true); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || string(got) != "new" || len(namesIn(t, dir)) != 1 {
		t.Errorf("%q %v, %v", got, err, namesIn(t, dir))
	}
}

// Shows what inspect prints of a backup, without a cluster, and its one line for what is none, or not whole.
func TestSnapshotInspect(t *testing.T) {
	src, digest := mustBackup(t)
	t.Setenv(addrEnv, "127.0.0.1:1")
	file := filepath.Join(t.TempDir(), "b")
	mustPut(t, file, string(src))
	want := fmt.Sprintf(`%s is whole: backup %s
of cluster c1 at 2023-11-14T22:13:20Z: 1 partition, 12 keys, policy p7 (2), %s
by program v1, incarnation 4, map version 9

PARTITION  SLOTS        KEYS  RECORDS  APPLIED  DIGEST                            SIZE
p3         0-16383@0.5    12        3       77  abababababababababababababababab  2.9 KiB
`, file, digest, sizeText(int64(len(src))))
	if diff := cmp.Diff(want, mustRun(t, "snapshot", "inspect", file).stdout); diff != "" {
		t.Error(diff)
	}
	var v backupView
	mustJSON(t, &v, "snapshot", "inspect", file)
	if v.Digest != digest || v.ClusterID != "c1" || v.Incarnation != 4 || len(v.Files) != 4 || v.Partitions[0].Bytes != 3000 {
		t.Errorf("%+v", v)
	}
	for what, bad := range map[string]string{
		": the backup is cut short: ": string(src[:len(src)-1000]), ": the backup is damaged: ": string(src) + "more",
		": this is no backup: ": "#!/bin/sh\n",
	} {
		mustPut(t, file, bad)
		mustFail(t, exitError, []string{file + what}, "snapshot", "inspect", file)
		mustFail(t, exitError, []string{file + what}, "snapshot", "restore", file)
	}
	mustFail(t, exitError, []string{"cannot be read", "snapshot save"}, "snapshot", "inspect", file+"x")
	mustFail(t, exitError, []string{"is no file"}, "snapshot", "inspect", filepath.Dir(file))
}

// Shows that a restore sends the whole backup to the first node alone, with what is said of it; what it prints, with and
// without the loss accepted; and that after a failure that may be over soon it says that the same command goes on.
func TestSnapshotRestore(t *testing.T) {
	src, digest := mustBackup(t)
	file := filepath.Join(t.TempDir(), "b")
	mustPut(t, file, string(src))
	s := &adminScript{answers: map[string][]any{
		"RestoreSnapshotRequest": {&quoratev1.RestoreSnapshotResponse{
			ClusterId: "c1", Incarnation: 77, Nodes: []string{"n0", "n1"}, Partitions: []string{"p4"},
		}},
		"ListPlansRequest": {quotaerr.New(quotaerr.NoQuorum, "not made yet")},
	}}
	mustServeAdmin(t, s)
	first := os.Getenv(addrEnv)
	t.Setenv(addrEnv, first+",127.0.0.1:1")
	out := mustRun(t, "snapshot", "restore", file, "--comment", "fire").stdout
	want := "cluster c1 is restored from backup " + digest + ", as incarnation 77\nnodes: n0 n1\npartitions: p4\n" +
		"each principal is denied until its longest window has passed from now, as admissions may be missing\n"
	s.mu.Lock()
	sent := s.body
	s.mu.Unlock()
	if diff := cmp.Diff(want, out); diff != "" || !bytes.Equal(sent, src) {
		t.Error(diff, len(sent))
	}
	s.mustHaveAsked(t, &quoratev1.RestoreSnapshotRequest{Comment: "fire"})
	out = mustRun(t, "snapshot", "restore", file, "--accept-loss").stdout
	if !strings.HasSuffix(out, "\nthe loss was accepted: what was admitted after the backup is given up, and the audit trail says so\n") {
		t.Error(out)
	}
	s.mustHaveAsked(t, &quoratev1.RestoreSnapshotRequest{AcceptLoss: true})
	var v restoredView
	mustJSON(t, &v, "snapshot", "restore", file)
	if v.Backup != digest || v.Incarnation != 77 || v.AcceptLoss || len(v.Nodes) != 2 {
		t.Errorf("%+v", v)
	}
	s.answers["RestoreSnapshotRequest"] = []any{quotaerr.New(quotaerr.NoQuorum, "n1 does not answer")}
	s.answers["ClusterStatusRequest"] = []any{statusUnmade, statusMade}
	if r := runWith(t, "", "snapshot", "restore", file); r.stderr != "quorate: no_quorum: n1 does not answer\n" {
		t.Errorf("nothing has begun: %+v", r)
	}
	mustFail(t, exitUnavailable, []string{"n1 does not answer", "repeat it with the same file, it goes on where it was"},
		"snapshot", "restore", file)
	s.answers["RestoreSnapshotRequest"] = []any{quotaerr.New(quotaerr.InvalidArgument, "cluster c1 is made already")}
	r := runWith(t, "", "snapshot", "restore", file)
	if r.status != exitError || strings.Contains(r.stderr, "repeat") {
		t.Errorf("%+v", r)
	}
	s.answers["RestoreSnapshotRequest"] = []any{quotaerr.New(quotaerr.OutcomeUnknown, "it broke off")}
	r = runWith(t, "", "snapshot", "restore", file)
	const unknown = "quorate: outcome_unknown: no answer came: see that the node at --addr runs, then repeat it with the same " +
		"file; if it has begun it goes on where it was\n"
	if r.status != exitUnavailable || r.stderr != unknown {
		t.Errorf("%+v", r)
	}
	t.Setenv(addrEnv, "127.0.0.1:1")
	r = runWith(t, "", "snapshot", "restore", file)
	if r.status != exitUnavailable || !strings.Contains(r.stderr, "no node is reached") || strings.Contains(r.stderr, "goes on") {
		t.Errorf("nobody is there: %+v", r)
	}
}

// Shows that a restore tells how its plans go on, a line for each change, the oldest first, and nothing of others.
func TestRestoreTellsItsPlans(t *testing.T) {
	restoring := func(id uint64, phase, progress string) *quoratev1.Plan {
		p := aPlan(phase, progress, "")
		p.Id, p.Kind, p.Destination = id, quoratev1.PlanKind_PLAN_KIND_RESTORE, fmt.Sprint("p", id)
		return p
	}
	split := aPlan("open", "pulling", "")
	s := &adminScript{answers: map[string][]any{"ListPlansRequest": {
		quotaerr.New(quotaerr.NoQuorum, "not made yet"), planned(split, restoring(6, "open", "opening"), restoring(5, "open", "pulling")),
		planned(split, restoring(6, "open", "opening"), restoring(5, planDone, "")),
	}}}
	mustServeAdmin(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var told bytes.Buffer
	const want = "plan 5: p5 open: pulling\nplan 6: p6 open: opening\nplan 5: p5 done\n"
	until := writerFunc(func(b []byte) (int, error) {
		if n, err := told.Write(b); told.Len() < len(want) {
			return n, err
		}
		cancel()
		return len(b), nil
	})
	o := &options{timeout: 250 * time.Millisecond}
	if err := o.withSession(newRoot(), func(_ context.Context, c *session) error {
		c.progress = until
		watchRestore(ctx, c)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, told.String()); diff != "" {
		t.Error(diff)
	}
}

// writerFunc is a writer made of a function.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
