package state_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
)

// Shows what the control state answers, command by command: each file under testdata/scripts is a script of
// commands with their results. Run with -rewrite to accept changed results, and read the diff.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{m: state.New()}
		datadriven.RunTest(t, path, s.run)
	})
}

// script drives one machine.
type script struct {
	m     *state.Machine
	index uint64
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var out strings.Builder
	switch d.Cmd {
	case "apply":
		for line := range strings.Lines(d.Input) {
			s.apply(t, &out, strings.Fields(line))
		}
	case "show":
		show(&out, s.m.State())
	case "restore":
		before := s.m.State().Digest()
		s.m = mustRestore(t, s.m.State())
		fmt.Fprintln(&out, "same digest:", before == s.m.State().Digest())
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	return out.String()
}

func (s *script) apply(t *testing.T, out *strings.Builder, f []string) {
	t.Helper()
	c := mustCommand(t, f)
	c.Actor = "op"
	s.index++
	r, rec := s.m.Apply(s.index, mustRoundTrip(t, c))
	fmt.Fprintf(out, "%s: ", strings.Join(f, " "))
	if r.Refused != nil {
		fmt.Fprintf(out, "%s: %s", r.Refused.Code, r.Refused)
		if r.Refused.Current != 0 {
			fmt.Fprintf(out, " (current %d)", r.Refused.Current)
		}
	} else {
		fmt.Fprintf(out, "done, map %d, revision %d", r.Map, r.Revision)
	}
	if r.Plan != 0 {
		fmt.Fprintf(out, ", plan %d", r.Plan)
	}
	if c.Kind == state.KindCreate && r.Refused == nil || c.Start != nil && len(c.Start.New) > 0 && r.Refused == nil {
		fmt.Fprintf(out, ", made %s", r.Partition)
	}
	if r.Repeated {
		out.WriteString(", repeated")
	}
	if rec != nil {
		fmt.Fprintf(out, " [%s %s, %s]", rec.Action, rec.Object, rec.Result)
		if r.Refused == nil && rec.Message != "" {
			fmt.Fprintf(out, " (%s)", rec.Message)
		}
		if rec.Difference != "" {
			fmt.Fprintf(out, "\n  %s", rec.Difference)
		}
	}
	out.WriteByte('\n')
}

func show(out *strings.Builder, s *state.State) {
	fmt.Fprintf(out, "cluster %q version %d map %d audit %d\n", s.Cluster, s.Version, s.MapVersion, s.AuditCount)
	for _, n := range s.Nodes {
		fmt.Fprintf(out, "node %s@%s %s %s former %v\n", n.ID, n.Instance, n.Raft, n.State, n.Former)
	}
	for _, p := range s.Partitions {
		fmt.Fprintf(out, "%s %v by %s conf %d plan %d installed %d:",
			p.ID, p.Replicas, p.Founder, p.ConfVersion, p.Plan, p.Installed)
		for _, r := range p.Ranges {
			fmt.Fprintf(out, " %d-%d/%d.%d", r.First, r.Last, r.Epoch.Incarnation(), r.Epoch.Counter())
		}
		out.WriteByte('\n')
	}
	for _, k := range s.Tokens {
		fmt.Fprintf(out, "token %s %s %s %d-%d revoked %t\n", k.ID, k.Name, k.Role, k.CreatedNanos, k.ExpiresNanos, k.Revoked)
	}
	for _, p := range append(append([]*state.Plan(nil), s.Plans...), s.Ended...) {
		fmt.Fprintf(out, "plan %d %s %s to %s, %s, %d to %d, by %s (%s)\n", p.ID, p.Kind, p.SourceName(), p.Destination,
			p.Standing(), p.StartedWallNanos, p.EndedWallNanos, p.Author, p.Message)
	}
	for _, r := range s.Revisions {
		fmt.Fprintf(out, "revision %d %s %s body %.4s switches %v of %d\n", r.Number, r.Label, r.Kind, r.Body, r.Switches, r.Of)
	}
}

// mustCommand reads a command in words; a trailing id=N makes it one that may be sent again.
func mustCommand(t *testing.T, f []string) *state.Command {
	t.Helper()
	c := &state.Command{}
	if last, ok := strings.CutPrefix(f[len(f)-1], "id="); ok {
		c.ID[0], f = byte(mustInt(t, last)), f[:len(f)-1]
	}
	arg := func(i int) string {
		if i >= len(f) {
			t.Fatalf("%v: argument %d is missing", f, i)
		}
		return f[i]
	}
	n := func(i int) uint64 { return mustInt(t, arg(i)) }
	switch f[0] {
	case "confirm":
		c.Kind = state.KindConfirm
	case "init":
		c.Kind, c.Init = state.KindInit, &state.Init{Cluster: arg(1), Incarnation: uint32(n(2)), Seed: [16]byte{byte(n(3))}}
	case "takeover": // cluster, incarnation, then of the backup: incarnation, digest, next partition, last plan, revisions
		c.Kind, c.Init = state.KindInit, &state.Init{Cluster: arg(1), Incarnation: uint32(n(2)), Restored: &state.Restored{
			Cluster: "c1", Incarnation: uint32(n(3)), Seed: [16]byte{9}, Backup: state.Digest{byte(n(4))},
			NextPartition: state.PartitionID(n(5)), LastPlan: fsm.PlanID(n(6)), Revisions: someRevisions(7, n(7)),
		}}
	case "node":
		c.Kind = state.KindPutNode
		c.Node = &state.PutNode{ID: arg(1), Instance: arg(2), GRPC: "g-" + arg(3), Raft: arg(3), Zone: "z"}
	case "lose":
		c.Kind, c.NodeID, c.Instance = state.KindLoseNode, arg(1), arg(2)
	case "drain", "activate", "remove":
		c.Kind, c.NodeID = state.KindNodeState, arg(1)
		c.State = map[string]state.NodeState{"activate": 1, "drain": 2, "remove": 3}[f[0]]
	case "create":
		c.Kind, c.Create = state.KindCreate, &state.Create{Map: n(1), Replicas: list(arg(2)), Ranges: mustRanges(t, f[3:])}
	case "retire":
		c.Kind, c.Partition = state.KindRetire, state.PartitionID(n(1))
	case "replicas":
		c.Kind, c.Partition = state.KindReplicas, state.PartitionID(n(1))
		c.Replicas = &state.Replicas{ConfVersion: n(2), Nodes: list(arg(3))}
	case "split", "merge", "move", "recover", "restore":
		c.Kind, c.Start, c.WallNanos = state.KindStartPlan, mustPlan(t, f), 70
	case "decide":
		c.Kind, c.Plan = state.KindDecidePlan, fsm.PlanID(n(1))
		c.Decide = &state.Decide{Exported: [16]byte{byte(n(2))}, Imported: [16]byte{byte(n(3))}}
	case "abort":
		c.Kind, c.Plan, c.Comment = state.KindAbortPlan, fsm.PlanID(n(1)), strings.Join(f[2:], " ")
	case "close":
		c.Kind, c.Plan, c.WallNanos = state.KindClosePlan, fsm.PlanID(n(1)), 90
	case "publish":
		c.Kind = state.KindPublish
		c.Publish = &state.Publish{Base: fsm.Revision(n(1)), Label: arg(2), Body: state.Digest{byte(n(3))}, Bytes: 9, BodyEpoch: n(4), Held: len(f) < 6}
	case "disable", "enable":
		c.Kind = state.KindSwitchClass
		c.Switch = &state.SwitchClass{Base: fsm.Revision(n(1)), Class: arg(2), Disabled: f[0] == "disable"}
	case "rollback":
		c.Kind, c.Rollback = state.KindRollback, &state.Rollback{Base: fsm.Revision(n(1)), To: fsm.Revision(n(2)), BodyEpoch: n(3), Held: true}
	case "installed":
		c.Kind = state.KindInstalled
		c.Installed = []state.Note{{Partition: state.PartitionID(n(1)), Revision: fsm.Revision(n(2))}}
	case "sweep":
		c.Kind, c.Epoch = state.KindSweep, n(1)
	case "attempt":
		c.Kind, c.Attempt = state.KindAttempt, &state.Attempt{Action: arg(1), Object: arg(2), Reason: arg(3)}
	case "raise":
		c.Kind, c.Level = state.KindRaise, state.Level(n(1))
	case "token": // id, name, role, made at, valid until
		c.Kind, c.WallNanos = state.KindPutToken, int64(n(4))
		c.Token = &state.Token{
			ID: arg(1), Name: arg(2), Role: arg(3), Hash: [32]byte{7}, CreatedNanos: int64(n(4)), ExpiresNanos: int64(n(5)),
		}
	case "revoke":
		c.Kind, c.TokenID = state.KindRevokeToken, arg(1)
	case "note":
		c.Kind, c.Act = state.KindNote, &state.Act{Action: arg(1), Object: arg(2), Message: strings.Join(f[3:], " ")}
	default:
		t.Fatalf("unknown command %q", f[0])
	}
	return c
}

// mustPlan reads a plan in words: its kind and source, and then in any order its slots, to=DESTINATION, new=NODES,
// from=NODE, accept-loss.
func mustPlan(t *testing.T, f []string) *state.StartPlan {
	t.Helper()
	kinds := map[string]state.PlanKind{"split": 1, "merge": 2, "move": 3, "recover": 4, "restore": 5}
	s := &state.StartPlan{Kind: kinds[f[0]], Source: state.PartitionID(mustInt(t, f[1]))}
	for _, w := range f[2:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "to":
			s.Destination = state.PartitionID(mustInt(t, value))
		case "new":
			s.New = list(value)
		case "from":
			s.From = value
		case "accept-loss":
			s.AcceptLoss = true
		default:
			s.Ranges = append(s.Ranges, mustRanges(t, []string{w})...)
		}
	}
	return s
}

// someRevisions are n revisions from a number on.
func someRevisions(from fsm.Revision, n uint64) (out []*state.Revision) {
	for i := range fsm.Revision(n) {
		out = append(out, &state.Revision{
			Number: from + i, Base: from + i - 1, Label: fmt.Sprint("v", from+i), Kind: state.RevisionPublish,
			Body: state.Digest{byte(i) + 1, 1}, Bytes: 9, Author: "kim",
		})
	}
	return out
}

func mustInt(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func list(s string) []string { return strings.Split(s, ",") }

func mustRanges(t *testing.T, words []string) (out []fsm.SlotRange) {
	t.Helper()
	for _, w := range words {
		first, last, _ := strings.Cut(w, "-")
		out = append(out, fsm.SlotRange{First: fsm.Slot(mustInt(t, first)), Last: fsm.Slot(mustInt(t, last))})
	}
	return out
}
