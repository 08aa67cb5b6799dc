package node

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that without --accept-loss every principal of a restored cluster, also one that nothing is known of, is
// denied, with a time at which to come back that is its longest window away.
func TestRestoreDenies(t *testing.T) {
	nodes := mustCluster(t, 1, 2)
	for k := range 4 {
		mustAnswer(t, nodes, fmt.Sprint("u", k), "one")
	}
	src := mustSave(t, nodes[0])
	mustEnd(t, nodes...)
	nodes = mustBlank(t, 3)
	begun := time.Now()
	mustRestore(t, nodes[2], src, false)
	untilReady(t, nodes...)
	for k := range 8 { // half of them are new
		a := mustAnswer(t, nodes, fmt.Sprint("u", k), "two")
		wait := a.RetryAfterNanos
		if a.Reason != fsm.ReasonQuotaExhausted || time.Duration(wait) > longest+longest/1000 ||
			time.Duration(wait) < longest-time.Since(begun) {
			t.Errorf("u%d: %s, to come back in %s", k, a.Reason, time.Duration(wait))
		}
	}
	mustAudit(t, nodes[0], "denied until its longest window has passed")
	mustEnd(t, nodes...)
}

// Shows that a backup which is cut short, damaged, foreign, of a newer format or of another cluster is refused in one
// line, and that the nodes are as blank as before: a cluster can still be made of the whole one.
func TestRestoreRefuses(t *testing.T) {
	nodes := mustCluster(t, 1, 1)
	mustAnswer(t, nodes, "u0", "one")
	src := mustSave(t, nodes[0])
	mustRefuse(t, nodes[0], src, false, "is made already: a backup is restored on nodes with empty data directories")
	mustEnd(t, nodes...)

	nodes = mustBlank(t, 2)
	n := nodes[0]
	mustRefuse(t, n, nil, false, "this is no backup: it is empty")
	mustRefuse(t, n, []byte("hello"), false, "this is no backup")
	mustRefuse(t, n, src[:len(src)-1024], false, "cut short")
	mustRefuse(t, n, src[:len(src)/2], false, "cut short")
	bad := bytes.Clone(src)
	bad[bytes.Index(src, []byte(backup.PartitionDir+"p0"))+600] ^= 1
	mustRefuse(t, n, bad, false, "damaged: partitions/p0 is not what was saved")
	mustRefuse(t, n, bytes.Replace(src, []byte("quorate backup 1"), []byte("quorate backup 2"), 1), false, "newer format")
	mustRefuse(t, n, rewritten(t, src, func(m *backup.Manifest) { m.Cluster = "another" }), false, "it is of cluster \"another\"")
	mustRefuse(t, n, rewritten(t, src, func(m *backup.Manifest) { m.Incarnation++ }), false, "of different clusters")
	mustRefuse(t, n, rewritten(t, src, func(m *backup.Manifest) { m.Partitions[0].Ranges[0].Epoch++ }), false,
		"partitions/p0 is not what the manifest says")
	mustRefuse(t, n, rewritten(t, src, func(m *backup.Manifest) { m.PolicyRevision++ }), false, "of different clusters")
	if n.control() != nil || n.hasCluster() || n.forming.Load() {
		t.Error("a refused backup leaves something behind")
	}
	mustRestore(t, n, src, false)
	untilReady(t, nodes...)
	mustEnd(t, nodes...)
}

// rewritten is a backup that is whole, with another manifest.
func rewritten(t *testing.T, src []byte, change func(*backup.Manifest)) []byte {
	t.Helper()
	b, err := backup.Open(bytes.NewReader(src), int64(len(src)))
	if err != nil {
		t.Fatal(err)
	}
	m := *b.Manifest()
	m.Partitions = slices.Clone(m.Partitions)
	for i := range m.Partitions {
		m.Partitions[i].Ranges = slices.Clone(m.Partitions[i].Ranges)
	}
	change(&m)
	var out bytes.Buffer
	w := backup.NewWriter(&out, m.TakenAt)
	for _, f := range b.Manifest().Files[1:] {
		from, size, err := b.File(f.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Add(f.Name, size, from); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(&m); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Shows that a restore which is cut short, with its node, after its first partition goes on when it is asked for
// again with the same backup and in the same way, and with no other; that no cluster is made in its place meanwhile.
func TestRestoreGoesOn(t *testing.T) {
	nodes := mustCluster(t, 1, 4)
	for k := range 4 {
		mustAnswer(t, nodes, fmt.Sprint("u", k), "one")
	}
	other := mustSave(t, nodes[0])
	mustAnswer(t, nodes, "u9", "one")
	src := mustSave(t, nodes[0])
	mustEnd(t, nodes...)

	configs := mustConfigs(t, 2)
	nodes = []*running{mustRun(t, configs[0]), mustRun(t, configs[1])}
	n := nodes[0]
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := restore(ctx, n, src, true)
		failed <- err
	}()
	eventually(t, "a partition is restored", func() bool {
		return n.control() != nil && slices.ContainsFunc(n.control().State().Ended, func(p *state.Plan) bool {
			return p.Kind == state.PlanRestore && p.Phase == state.PlanDecided
		})
	}, func() any { return nil })
	mustRefuseNow(t, n, src)
	cancel()
	if err := <-failed; err == nil {
		t.Fatal("the restore has ended too soon for this test")
	}
	mustEnd(t, n)
	n = mustRun(t, configs[0])
	nodes[0] = n
	eventually(t, "the control group has a leader", func() bool {
		return n.control() != nil && n.control().State().Born && n.hosted.of(controlID).leader() != ""
	}, func() any { return n.ready() })
	if allOwned(n.control().State()) {
		t.Fatal("all slots have an owner already")
	}
	if _, _, err := n.makeCluster(t.Context(), 0, "test"); err == nil || !strings.Contains(err.Error(), "snapshot restore") {
		t.Errorf("a cluster is made in its place: %v", err)
	}
	mustRefuse(t, n, other, true, "is being made of the backup with digest")
	mustRefuse(t, n, src, false, "was begun with --accept-loss")
	out := mustRestore(t, n, src, true)
	if len(out.Partitions) != 4 {
		t.Errorf("restored: %+v", out)
	}
	untilReady(t, nodes...)
	for _, name := range []string{"u0", "u1", "u2", "u3", "u9"} {
		for i := range 3 {
			if a := mustAnswer(t, nodes, name, fmt.Sprint("more-", i)); (a.Reason == fsm.ReasonAllowed) != (i < 2) {
				t.Errorf("%s had one of three: the check %d after the restore is %s", name, i, a.Reason)
			}
		}
	}
	mustEnd(t, nodes...)
}

// Shows that a restore which is cut short goes on at another node too, which is given the leadership of the control group
// for it: what the first node had begun, and that waits for a file which that has not got any more, is undone.
func TestRestoreGoesOnElsewhere(t *testing.T) {
	nodes := mustCluster(t, 1, 2)
	mustAnswer(t, nodes, "u0", "one")
	src := mustSave(t, nodes[0])
	mustEnd(t, nodes...)

	nodes = mustBlank(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := restore(ctx, nodes[0], src, false)
		failed <- err
	}()
	eventually(t, "a plan is begun", func() bool {
		return nodes[0].control() != nil && len(openRestores(nodes[0].control().State())) > 0
	}, func() any { return nil })
	cancel()
	if err := <-failed; err == nil {
		t.Fatal("the restore has ended too soon for this test")
	}
	eventually(t, "the other node knows", func() bool {
		return nodes[1].control() != nil && nodes[1].control().State().RestoredFrom != (state.Digest{})
	}, func() any { return nodes[1].ready() })
	mustRestore(t, nodes[1], src, false)
	untilReady(t, nodes...)
	undone, done := 0, 0
	for _, p := range nodes[1].control().State().Ended {
		switch {
		case p.From == "n0" && p.Phase == state.PlanAborted:
			undone++
		case p.From == "n1" && p.Phase == state.PlanDecided:
			done++
		default:
			t.Errorf("plan %d of %s has ended as %s", p.ID, p.From, p.Standing())
		}
	}
	if undone == 0 || done != 2 {
		t.Errorf("%d plans are undone and %d done", undone, done)
	}
	if a := mustAnswer(t, nodes, "u0", "two"); a.Reason != fsm.ReasonQuotaExhausted {
		t.Errorf("u0: %s", a.Reason)
	}
	mustEnd(t, nodes...)
}

// mustRefuseNow checks that a second restore at the same time is sent away.
func mustRefuseNow(t *testing.T, n *running, src []byte) {
	t.Helper()
	if _, err := restore(t.Context(), n, src, true); quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
		t.Errorf("a second restore at the same time: %v", err)
	}
}

// Shows that a rule which is carried, because the limit that is in force is not exact yet, is carried in the restored
// cluster too, in which the policy that has it is in the history; and that each partition goes on to a policy that is put in
// force later.
func TestRestoreCarries(t *testing.T) {
	draft := func(version string, limit int64, window time.Duration) policy.Policy {
		class := policy.Class{Limits: []policy.Limit{{Name: "only", Max: limit, WindowNanos: int64(window)}}}
		convert := class
		return policy.Policy{Version: version, Default: class, Classes: map[string]*policy.Class{"convert": &convert}}
	}
	nodes := mustBlank(t, 1)
	if _, _, err := nodes[0].makeCluster(t.Context(), 2, "test"); err != nil {
		t.Fatal(err)
	}
	mustPublishPolicy(t, nodes[0], 0, draft("v1", 3, time.Millisecond))
	untilReady(t, nodes...)
	for k := range 4 {
		mustAnswer(t, nodes, fmt.Sprint("u", k), "one")
	}
	mustPublishPolicy(t, nodes[0], 1, draft("v2", 10, time.Hour))
	src := mustSave(t, nodes[0]) // waits until it is installed
	before := carriedBy(nodes[0])
	if len(before) != 4 || !strings.Contains(before[0], "revision 1, v1") {
		t.Fatalf("carried are %q: this test shows nothing", before)
	}
	mustEnd(t, nodes...)

	nodes = mustBlank(t, 2)
	mustRestore(t, nodes[1], src, true)
	untilReady(t, nodes...)
	for _, n := range nodes {
		eventually(t, "the same is carried", func() bool { return slices.Equal(carriedBy(n), before) },
			func() any { return carriedBy(n) })
	}
	s := nodes[1].control().State()
	if len(s.Revisions) != 2 || s.Revisions[0].Label != "v1" {
		t.Errorf("the history has %d revisions", len(s.Revisions))
	}
	mustPublish(t, nodes[1], 2, "v3", 5)
	for _, p := range s.Partitions {
		eventually(t, p.ID.String()+" installs the next policy", func() bool {
			return nodes[0].hosted.of(p.ID.String()).partition.Load().Revision() == 3
		}, func() any { return nil })
	}
	mustEnd(t, nodes...)
}

// carriedBy are the rules that a node's partitions carry.
func carriedBy(n *running) (out []string) {
	for _, p := range n.hosted.partitions() {
		for _, c := range p.Carried() {
			out = append(out, fmt.Sprintf("%s: revision %d, %s", c.Class, c.Revision, c.Version))
		}
	}
	return out
}
