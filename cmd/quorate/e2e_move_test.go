package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// mover is somebody who uses a cluster while it is changed: what he was told must stay so.
type mover struct {
	p    *processes
	made map[string][]decision // by principal
}

// mustUse has some principals use so much of convert each.
func (m *mover) mustUse(t *testing.T, prefix string, principals, times int) {
	t.Helper()
	c := mustClient(t, m.p.rotated(0)...)
	for i := range principals {
		who := fmt.Sprint(prefix, i)
		for k := range times {
			d := mustDecide(t, c, who, "convert", fmt.Sprintf("%s-%d", who, k))
			if !d.Allowed {
				t.Fatalf("%s: %+v", who, d)
			}
			m.made[who] = append(m.made[who], d)
		}
	}
}

// mustBeSame checks that decisions are told as they were and usage is what it was.
func (m *mover) mustBeSame(t *testing.T, when string) {
	t.Helper()
	c := mustClient(t, m.p.rotated(1)...)
	for who, made := range m.made {
		for _, was := range made {
			if d := mustDecide(t, c, who, "convert", was.DecisionID); !d.Replayed || d.lasting() != was.lasting() {
				t.Errorf("%s: %s is told %+v, was %+v", when, was.DecisionID, d, was)
			}
		}
		d := mustDecide(t, c, who, "convert", "more-"+when+who)
		if room := 3 - len(made); d.Allowed != (room > 0) {
			t.Errorf("%s: %s with room for %d: %+v", when, who, room, d)
		} else if d.Allowed {
			m.made[who] = append(m.made[who], d)
		}
	}
}

// asking asks without a pause for principals that nobody else asks for, four times each, until it is ended, and checks
// that each answer is right and comes soon: three are allowed, and nothing is refused.
func (p *processes) asking(t *testing.T, prefix string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for k := range p.nodes {
		c := mustClient(t, p.rotated(k)...)
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				who := fmt.Sprintf("%s-%d-%d", prefix, k, i)
				for n := range 4 {
					begin := time.Now()
					d, err := decide(context.WithoutCancel(ctx), c, who, "convert", fmt.Sprint(who, "-", n))
					took := time.Since(begin)
					if err != nil || d.Allowed != (n < 3) || took > 3*time.Second {
						t.Errorf("%s, check %d: %+v %v after %s", who, n, d, err, took)
						return
					}
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// mustPlan runs a command that begins a plan, and waits for its end.
func (p *processes) mustPlan(t *testing.T, args ...string) (v planView) {
	t.Helper()
	r := p.ask(t, append(append([]string{"partition"}, args...), "--wait", "-o", "json")...)
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || r.status != exitDone || v.Phase != planDone {
		t.Fatalf("partition %v: %+v", args, r)
	}
	p.routing = nil
	return v
}

// owned are how many slots each partition has.
func (p *processes) owned(t *testing.T) map[string]int {
	t.Helper()
	var v partitionsView
	r := p.ask(t, "partition", "list", "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("%+v", r)
	}
	out := map[string]int{}
	for _, part := range v.Partitions {
		for _, s := range part.Ranges {
			out[part.ID] += int(s.LastSlot) - int(s.FirstSlot) + 1
		}
	}
	return out
}

// mustFailPlan checks that a command is refused in one line.
func (p *processes) mustFailPlan(t *testing.T, want string, args ...string) {
	t.Helper()
	r := p.ask(t, append([]string{"partition"}, args...)...)
	if r.status != exitError || r.stdout != "" || !strings.Contains(r.stderr, want) || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("partition %v: %+v, want %q", args, r, want)
	}
}

// blankCluster starts nodes with a cluster's id and blank data directories, which wait to be made one.
func blankCluster(t *testing.T, clusterID string) *processes {
	t.Helper()
	p := &processes{dir: t.TempDir(), base: mustFreePorts(t, 3), stderr: &lockedBuffer{}, own: map[string]*exec.Cmd{}}
	c, err := layDevCluster(p.dir, &devFlags{nodes: 3, basePort: p.base})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.stop(t, syscall.SIGTERM) })
	for i, n := range c.nodes {
		src, err := os.ReadFile(c.files[i])
		if err != nil {
			t.Fatal(err)
		}
		mustPut(t, c.files[i], strings.ReplaceAll(string(src), n.ClusterID, clusterID))
		mustPut(t, c.logs[i], "")
		p.nodes = append(p.nodes, devNode{ID: n.ID, GRPC: n.GRPC, HTTP: n.HTTP, DataDir: n.DataDir})
		p.launch(t, n.ID)
	}
	return p
}

// mustRestore makes a blank cluster of a backup. No partition of it decided anything before begun.
func mustRestore(t *testing.T, clusterID, file string, args ...string) (_ *processes, v restoredView, begun time.Time) {
	t.Helper()
	p := blankCluster(t, clusterID)
	begun = time.Now()
	until(t, "the cluster is restored", func() bool {
		r := p.ask(t, append([]string{"snapshot", "restore", file, "-o", "json", "--comment", "fire"}, args...)...)
		if r.status != exitDone && r.status != exitUnavailable { // not all are up
			t.Fatalf("%+v", r)
		}
		return r.status == exitDone && json.Unmarshal([]byte(r.stdout), &v) == nil
	})
	return p, v, begun
}

// Shows the life of slots with real processes, while checks go on and none is refused or late: a split, a merge and a
// move, after each of which every decision is told as it was and usage is what it was; what is refused meanwhile and
// afterwards, in one line; a backup that is inspected without a cluster; and two clusters that are made of it: in the
// one every principal is denied until its window has passed, in the other, with the loss accepted, it has its usage;
// in both a gateway with the old map is refused, and the audit trail has the restore.
func TestMoveAndRestore(t *testing.T) {
	p := mustCluster(t)
	m := &mover{p, map[string][]decision{}}
	m.mustUse(t, "half", 30, 1)
	m.mustUse(t, "full", 10, 3)
	before, _ := p.status(t)

	end := p.asking(t, "split")
	v := p.mustPlan(t, "split", "p0", "--comment", "hot")
	end()
	if v.Source != "p0" || v.Destination != "p3" || v.Author == "" || v.Comment != "hot" || v.Ended == nil {
		t.Errorf("split: %+v", v)
	}
	if has := p.owned(t); has["p0"]+has["p3"] != 16384/3 && has["p0"]+has["p3"] != 16384/3+1 || has["p0"]-has["p3"] > 1 {
		t.Errorf("after the split: %v", has)
	}
	m.mustBeSame(t, "split")
	p.mustFailPlan(t, "plan 1 is done, p3 owns its slots: move them back by another plan", "abort", "1")
	p.mustFailPlan(t, "are p0's, not p1's", "move", "p1", "0-5", "p2")
	p.mustFailPlan(t, "partition p0 is led by ", "recover", "p0", "--from", "n0")

	end = p.asking(t, "merge")
	p.mustPlan(t, "merge", "p1", "p2")
	end()
	m.mustBeSame(t, "merge")
	p.mustFailPlan(t, "partition p1 is no more, plan 2 has moved its last slots to p2", "split", "p1")
	end = p.asking(t, "move")
	p.mustPlan(t, "move", "p2", "16000-16383", "p3")
	end()
	m.mustBeSame(t, "move")
	if has := p.owned(t); len(has) != 3 || has["p0"]+has["p2"]+has["p3"] != 16384 {
		t.Errorf("at last: %v", has)
	}

	file := filepath.Join(t.TempDir(), "backup")
	if r := p.ask(t, "snapshot", "save", file, "--comment", "nightly"); r.status != exitDone || !strings.Contains(r.stdout, "verified") {
		t.Fatalf("save: %+v", r)
	}
	saved := m.made
	m.made = map[string][]decision{}
	m.mustUse(t, "late", 5, 3) // not in the backup
	if r := p.ask(t, "snapshot", "save", file); r.status != exitError || !strings.Contains(r.stderr, "--force") {
		t.Errorf("over another: %+v", r)
	}
	old := p.routes(t)
	p.stop(t, syscall.SIGTERM)
	var told backupView
	r := command(t, "snapshot", "inspect", file, "-o", "json", "--addr", "127.0.0.1:1")
	if err := json.Unmarshal([]byte(r.stdout), &told); err != nil || told.ClusterID != before.ClusterID || len(told.Partitions) != 3 {
		t.Fatalf("inspect: %+v", r)
	}
	t.Run("denied", func(t *testing.T) { mustDenyAfterRestore(t, &told, file, old) })
	t.Run("loss accepted", func(t *testing.T) { mustKeepAfterRestore(t, &told, file, old, saved) })
}

// mustRefuseOldMap checks that a gateway that routes by a map of before the restore is told so.
func (p *processes) mustRefuseOldMap(t *testing.T, old *quoratev1.RoutingMap) {
	t.Helper()
	c := mustClient(t, p.rotated(0)[:1]...)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := c.CheckAndConsume(ctx, &quoratev1.CheckRequest{
		Principal: "gateway", ApiClass: "quick", DecisionId: "old", RouteEpoch: old.GetRanges()[0].GetSlots().GetEpoch(),
	})
	if quotaerr.ReasonOf(err) != quotaerr.WrongEpoch {
		t.Errorf("by the old map: %v", err)
	}
}

// mustHaveNoted checks what the audit trail has of a restore.
func (p *processes) mustHaveNoted(t *testing.T, backup string, accepted bool) {
	t.Helper()
	var v auditView
	r := p.ask(t, "audit", "--limit", "1000", "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil {
		t.Fatalf("%+v", r)
	}
	digest, comment, loss := false, false, false
	for _, a := range v.Records {
		text := a.Difference + a.Message + a.Object
		digest = digest || strings.Contains(text, backup)
		comment = comment || strings.Contains(a.Comment, "fire")
		loss = loss || strings.Contains(text, "--accept-loss")
	}
	if !digest || !comment || loss != accepted {
		t.Errorf("the audit trail has the digest %v, the comment %v, the loss %v: %s", digest, comment, loss, r.stdout)
	}
}

func mustDenyAfterRestore(t *testing.T, told *backupView, file string, old *quoratev1.RoutingMap) {
	p, v, begun := mustRestore(t, told.ClusterID, file)
	restored := time.Now()
	if v.Backup != told.Digest || v.Incarnation <= told.Incarnation || v.AcceptLoss || len(v.Nodes) != 3 || len(v.Partitions) != 3 {
		t.Errorf("restored: %+v", v)
	}
	c := mustClient(t, p.rotated(0)...)
	if d := mustDecide(t, c, "new", "quick", "first"); d.Allowed && time.Since(begun) < quickWindow {
		t.Errorf("a new principal within its window: %+v", d)
	}
	for _, who := range []string{"full0", "half0", "late0", "new"} {
		if d := mustDecide(t, c, who, "convert", "after-"+who); d.Allowed || d.Reason != "quota_exhausted" || d.RetryAfterMs > 60_100 {
			t.Errorf("%s within its window: %+v", who, d)
		}
	}
	n := 0
	until(t, "the short window has passed", func() bool {
		n++
		return mustDecide(t, c, "new", "quick", fmt.Sprint("later", n)).Allowed
	})
	if took := time.Since(restored); took > quickWindow+5*time.Second {
		t.Errorf("denied for %s", took)
	}
	p.mustRefuseOldMap(t, old)
	p.mustHaveNoted(t, told.Digest, false)
	r := p.ask(t, "snapshot", "restore", file)
	if r.status != exitError || !strings.Contains(r.stderr, "is made already") {
		t.Errorf("again: %+v", r)
	}
	p.stop(t, syscall.SIGTERM)
}

func mustKeepAfterRestore(
	t *testing.T, told *backupView, file string, old *quoratev1.RoutingMap, saved map[string][]decision,
) {
	p, v, _ := mustRestore(t, told.ClusterID, file, "--accept-loss")
	if !v.AcceptLoss || v.Incarnation <= told.Incarnation {
		t.Errorf("restored: %+v", v)
	}
	m := &mover{p, saved}
	m.mustBeSame(t, "restored")
	if d := mustDecide(t, mustClient(t, p.rotated(0)...), "late0", "convert", "after"); !d.Allowed {
		t.Errorf("what was admitted after the backup counts: %+v", d)
	}
	p.mustRefuseOldMap(t, old)
	p.mustHaveNoted(t, told.Digest, true)
}
