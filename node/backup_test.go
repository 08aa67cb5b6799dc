package node

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/node/admin"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// longest is the window of mustCluster's limits: longer than any test.
const longest = time.Hour

// mustCluster makes a cluster of so many nodes and partitions that admits three conversions an hour, and repeats
// what it has decided for as long as a test runs.
func mustCluster(t *testing.T, count, partitions int) (nodes []*running) {
	t.Helper()
	nodes = mustBlank(t, count)
	if _, _, err := nodes[0].makeCluster(t.Context(), partitions, "test"); err != nil {
		t.Fatal(err)
	}
	convert := policy.Class{
		Limits:             []policy.Limit{{Name: "per-hour", Max: 3, WindowNanos: int64(longest)}},
		ReplayHorizonNanos: int64(10 * time.Minute),
	}
	mustPublishPolicy(t, nodes[0], 0, policy.Policy{
		Version: "v1", Classes: map[string]*policy.Class{"convert": &convert},
		Default: policy.Class{Limits: []policy.Limit{{Name: "default", Max: 100, WindowNanos: int64(time.Minute)}}},
	})
	untilReady(t, nodes...)
	return nodes
}

// mustBlank starts nodes with nothing.
func mustBlank(t *testing.T, count int) (nodes []*running) {
	t.Helper()
	for _, cfg := range mustConfigs(t, count) {
		nodes = append(nodes, mustRun(t, cfg))
	}
	return nodes
}

// check has one check decided by whoever leads, once; ok is false when nobody did.
func check(ctx context.Context, nodes []*running, principal, id string) (a rpc.Answer, ok bool) {
	for _, n := range nodes {
		lead := (*backend)(n.Node).Leader(principal)
		if !lead.Local {
			continue
		}
		a, err := (*backend)(n.Node).Check(ctx, fsm.Check{
			Principal: principal, Gateway: "g", DecisionID: id, RouteEpoch: lead.Epoch,
			Charge: fsm.Charge{Class: "convert", Cost: 1},
		})
		if err == nil {
			return a, true
		}
	}
	return a, false
}

// mustAnswer is check until somebody decides it.
func mustAnswer(t *testing.T, nodes []*running, principal, id string) (a rpc.Answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	eventually(t, "a decision for "+principal, func() (ok bool) {
		a, ok = check(ctx, nodes, principal, id)
		return ok
	}, func() any { return standings(nodes[0]) })
	return a
}

func mustSave(t *testing.T, n *running) []byte {
	t.Helper()
	var out bytes.Buffer
	digest, err := (*cluster)(n.Node).Save(t.Context(), &out)
	if err != nil {
		t.Fatal(err)
	}
	if _, is, err := backup.Verify(bytes.NewReader(out.Bytes())); err != nil || state.Digest(is) != digest {
		t.Fatalf("the backup is said to have digest %s, it has %s: %v", digest, is, err)
	}
	return out.Bytes()
}

// restore restores a backup.
func restore(ctx context.Context, n *running, src []byte, acceptLoss bool) (admin.Restored, error) {
	return (*cluster)(n.Node).Restore(ctx, admin.Restore{
		Actor: "test", Comment: "the rack burned", AcceptLoss: acceptLoss, Backup: bytes.NewReader(src),
	})
}

func mustRestore(t *testing.T, n *running, src []byte, acceptLoss bool) admin.Restored {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	out, err := restore(ctx, n, src, acceptLoss)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// load makes checks of so many principals at once until it is told to stop. What was allowed is counted.
type load struct {
	stop    chan struct{}
	working sync.WaitGroup
	allowed [12]atomic.Int64
}

func (l *load) principal(k int) string { return fmt.Sprint("u", k) }

func startLoad(t *testing.T, nodes []*running) *load {
	t.Helper()
	l := &load{stop: make(chan struct{})}
	for k := range l.allowed {
		if k%3 == 2 {
			continue // it comes only after the backup
		}
		l.working.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-l.stop:
					return
				default:
				}
				a, ok := check(t.Context(), nodes, l.principal(k), fmt.Sprint("load-", i))
				if ok && a.Reason == fsm.ReasonAllowed && !a.Replayed {
					l.allowed[k].Add(1)
				}
			}
		})
	}
	return l
}

func (l *load) end() {
	close(l.stop)
	l.working.Wait()
}

// Shows that a backup that is made under load, by a node that leads nothing in particular, is whole and tells what it
// has; that a cluster of another number of nodes and another incarnation is made of it, in which with --accept-loss each
// principal has at least the usage that it had when the backup was begun, and none that it never had; that its
// recorded decisions are repeated, and that whoever has the old epochs is sent away.
func TestBackup(t *testing.T) {
	nodes := mustCluster(t, 3, 3)
	first := mustAnswer(t, nodes, "u0", "before")
	l := startLoad(t, nodes)
	l.allowed[0].Add(1)
	eventually(t, "some are at their limit", func() bool { return l.allowed[0].Load() == 3 }, func() any { return nil })
	var least [len(l.allowed)]int64
	for k := range least {
		least[k] = l.allowed[k].Load()
	}
	src := mustSave(t, nodes[1])
	l.end()
	oldEpoch := (*backend)(nodes[0].Node).Leader("u0").Epoch
	old := nodes[0].control().State()
	mustEnd(t, nodes...)
	m, digest, err := backup.Verify(bytes.NewReader(src))
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Partitions) != 3 || m.Cluster != testCluster || m.PolicyVersion != "v1" || m.Incarnation != 1 {
		t.Errorf("the manifest: %+v", m)
	}

	nodes = mustBlank(t, 2)
	out := mustRestore(t, nodes[0], src, true)
	if len(out.Nodes) != 2 || len(out.Partitions) != 3 || out.Cluster != testCluster || out.Incarnation <= 1 {
		t.Errorf("restored: %+v", out)
	}
	untilReady(t, nodes...)
	if again := mustAnswer(t, nodes, "u0", "before"); !again.Replayed || again.Reason != first.Reason {
		t.Errorf("a decision before the backup is answered %+v, it was %+v", again, first)
	}
	for k := range least {
		fresh := int64(0)
		for i := range 4 {
			if a := mustAnswer(t, nodes, l.principal(k), fmt.Sprint("after-", i)); a.Reason == fsm.ReasonAllowed {
				fresh++
			}
		}
		if had := l.allowed[k].Load(); fresh > 3-least[k] || fresh < 3-had {
			t.Errorf("%s: %d of 3 were allowed before the backup began, %d before it ended; %d after the restore",
				l.principal(k), least[k], had, fresh)
		}
	}
	for _, n := range nodes {
		if lead := (*backend)(n.Node).Leader("u0"); lead.Local {
			_, err := (*backend)(n.Node).Check(t.Context(), fsm.Check{
				Principal: "u0", Gateway: "g", DecisionID: "old", RouteEpoch: oldEpoch, Charge: fsm.Charge{Class: "convert", Cost: 1},
			})
			if quotaerr.ReasonOf(err) != quotaerr.WrongEpoch {
				t.Errorf("a check under the old epoch: %v", err)
			}
		}
	}
	s := nodes[0].control().State()
	if s.MapVersion <= old.MapVersion || s.Seed != old.Seed || s.NextPartition < old.NextPartition+3 ||
		s.LastPlan < old.LastPlan+3 || s.RestoredFrom != state.Digest(digest) || s.RevisionNumber() != old.RevisionNumber() {
		t.Errorf("the new state: map %d after %d, next partition %s after %s, plan %d after %d, revision %d", s.MapVersion,
			old.MapVersion, s.NextPartition, old.NextPartition, s.LastPlan, old.LastPlan, s.RevisionNumber())
	}
	mustAudit(t, nodes[0], digest.String(), "the rack burned", "--accept-loss")
	mustRefuse(t, nodes[0], src, true, "made already, of the backup with digest "+digest.String())
	mustSaveAgain(t, nodes[1], m)
	mustEnd(t, nodes...)
}

// mustAudit checks that the audit trail has a record of the cluster's making with all of these words.
func mustAudit(t *testing.T, n *running, words ...string) {
	t.Helper()
	found, _, err := n.control().Audit(audit.Query{Action: "cluster.init"})
	if err != nil || len(found) != 1 {
		t.Fatalf("%d records of the making: %v", len(found), err)
	}
	r := found[0]
	for _, w := range words {
		if !strings.Contains(r.Comment+r.Difference+r.Message, w) || r.Actor != "test" {
			t.Errorf("the record does not say %q: %+v", w, r)
		}
	}
}

// mustRefuse checks that a backup is refused in one line with these words, and that the node changes nothing.
func mustRefuse(t *testing.T, n *running, src []byte, acceptLoss bool, words string) {
	t.Helper()
	_, err := restore(t.Context(), n, src, acceptLoss)
	message := quotaerr.As(err)
	if err == nil || message.Reason != quotaerr.InvalidArgument || !strings.Contains(message.Message, words) ||
		strings.Contains(message.Message, "\n") {
		t.Errorf("refused with %v, want %q", err, words)
	}
}

// mustSaveAgain checks that what was restored can be saved again, and has all the slots and the policy.
func mustSaveAgain(t *testing.T, n *running, before *backup.Manifest) {
	t.Helper()
	m, _, err := backup.Verify(bytes.NewReader(mustSave(t, n)))
	if err != nil {
		t.Fatal(err)
	}
	if m.Incarnation <= before.Incarnation || m.PolicyVersion != before.PolicyVersion ||
		len(m.Partitions) != len(before.Partitions) {
		t.Errorf("saved again: %+v", m)
	}
}
