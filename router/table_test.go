package router_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/router"
)

var testSeed = [16]byte{9, 8, 7}

// parts is a map of two partitions, whose border and epochs move with the version.
func parts(version uint64) router.Parts {
	border := uint16(8000 + version%100)
	return router.Parts{
		Cluster: "c", Version: version, Seed: testSeed,
		Nodes: []router.Node{{ID: "a", GRPC: "a:1"}, {ID: "b", GRPC: "b:1"}, {ID: "c", GRPC: "c:1"}},
		Partitions: []router.Partition{
			{ID: "p0", Replicas: []string{"a", "b", "c"}},
			{ID: "p1", Replicas: []string{"b", "c"}},
		},
		Ranges: []router.Range{
			{First: 0, Last: border, Epoch: 100 + version, Partition: "p0"},
			{First: border + 1, Last: router.NumSlots - 1, Epoch: 200 + version, Partition: "p1"},
		},
	}
}

func mustMap(t testing.TB, p router.Parts) *router.Map {
	t.Helper()
	m, err := router.NewMap(p)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ownedBy is a principal whose slot is in the partition.
func ownedBy(t *testing.T, table *router.Table, partition string) (string, router.Route) {
	t.Helper()
	for i := range 1000 {
		name := fmt.Sprint("principal-", i)
		if r, ok := table.Lookup(name); ok && r.Partition == partition {
			return name, r
		}
	}
	t.Fatalf("no principal of %s", partition)
	return "", router.Route{}
}

// Shows that a look-up finds the range that a search through all ranges finds, for every slot, with gaps.
func TestLookupIsTheRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := parts(1)
		p.Ranges = nil
		for next := 0; next < router.NumSlots; {
			next += rapid.IntRange(0, 900).Draw(t, "gap")
			last := next + rapid.IntRange(0, 3000).Draw(t, "length")
			if last >= router.NumSlots {
				break
			}
			p.Ranges = append(p.Ranges, router.Range{
				First: uint16(next), Last: uint16(last), Epoch: uint64(len(p.Ranges) + 1),
				Partition: rapid.SampledFrom([]string{"p0", "p1"}).Draw(t, "owner"),
			})
			next = last + 1
		}
		m, err := router.NewMap(p)
		if err != nil {
			t.Fatal(err)
		}
		var table router.Table
		table.Update(m)
		for range 50 {
			name := rapid.String().Draw(t, "principal")
			got, _ := table.Lookup(name)
			var want router.Range
			for _, r := range p.Ranges {
				if slot := router.SlotOf(testSeed, name); r.First <= slot && slot <= r.Last {
					want = r
				}
			}
			if got.Partition != want.Partition || got.Epoch != want.Epoch || got.Behind != (want.Partition == "") {
				t.Fatalf("%q: %+v, want %+v", name, got, want)
			}
		}
	})
}

// Shows that a map that contradicts itself is refused, with every reason.
func TestBadMapsAreRefused(t *testing.T) {
	p := parts(1)
	p.Version = 0
	p.Ranges[1].First = 5
	p.Ranges = append(p.Ranges, router.Range{First: 9, Last: 3, Epoch: 1, Partition: "p0"})
	p.Partitions[0].Replicas, p.Partitions[1].Replicas = nil, []string{"zz"}
	_, err := router.NewMap(p)
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, want := range []string{"no version", "overlap", "no range", `"zz"`, "no replicas"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not mention %q", err, want)
		}
	}
}

// Shows that only a newer map of the same cluster takes the place of the one at hand.
func TestMapsOnlyGetNewer(t *testing.T) {
	var table router.Table
	if _, ok := table.Lookup("x"); ok || table.Map() != nil {
		t.Fatal("a table without a map has routes")
	}
	other := parts(9)
	other.Cluster = "other"
	for _, step := range []struct {
		parts router.Parts
		taken bool
	}{{parts(5), true}, {parts(5), false}, {parts(4), false}, {other, false}, {parts(6), true}} {
		if got := table.Update(mustMap(t, step.parts)); got != step.taken {
			t.Errorf("version %d of %s: taken %t", step.parts.Version, step.parts.Cluster, got)
		}
	}
	if v := table.Map().Version(); v != 6 {
		t.Errorf("version %d, want 6", v)
	}
}

// Shows that a leader is learned for the epoch of the map only, that a late answer about another node
// changes nothing, and that a newer map forgets it.
func TestLeadersAreHints(t *testing.T) {
	var table router.Table
	table.Update(mustMap(t, parts(1)))
	name, route := ownedBy(t, &table, "p0")
	leader := func() string { r, _ := table.Lookup(name); return r.Node.ID }
	notLeader := func(id string) router.Failure {
		return router.Failure{Reason: router.ReasonNotLeader, Leader: id, LeaderAddr: id + ":1"}
	}
	if leader() != "a" {
		t.Fatalf("first asked is %s, want the first replica", leader())
	}
	table.Learn(route, "a", notLeader("c"))
	if leader() != "c" {
		t.Fatalf("leader %s, want c", leader())
	}
	table.Learn(route, "a", notLeader("b")) // a late answer: a is not the one to ask any more
	if leader() != "c" {
		t.Errorf("a late answer made %s the leader", leader())
	}
	old := route
	old.Epoch--
	table.Learn(old, "c", notLeader("b"))
	if leader() != "c" {
		t.Errorf("an answer about an older epoch made %s the leader", leader())
	}
	table.Update(mustMap(t, parts(2)))
	if leader() != "a" {
		t.Errorf("leader %s after a map with other epochs, want the first replica", leader())
	}
}

// Shows that a newer epoch seen at an owner marks the route as behind until a map has it, and that an older
// one does nothing.
func TestNewerEpochsWantARefresh(t *testing.T) {
	var table router.Table
	table.Update(mustMap(t, parts(1)))
	name, route := ownedBy(t, &table, "p1")
	behind := func() bool { r, _ := table.Lookup(name); return r.Behind }
	table.Learn(route, "b", router.Failure{Reason: router.ReasonWrongEpoch, Epoch: route.Epoch - 1})
	if behind() {
		t.Fatal("an older epoch counts")
	}
	table.Learn(route, "b", router.Failure{Reason: router.ReasonWrongEpoch, Epoch: route.Epoch + 2})
	if !behind() {
		t.Fatal("a newer epoch does not count")
	}
	table.Update(mustMap(t, parts(2)))
	if !behind() {
		t.Error("a map that is still behind counts as enough")
	}
	table.Update(mustMap(t, parts(3)))
	if behind() {
		t.Error("a map with that epoch is not enough")
	}
}

// Shows, under the race detector, that look-ups beside updates see whole maps, never an older one again.
func TestConcurrentUse(t *testing.T) {
	var table router.Table
	table.Update(mustMap(t, parts(1)))
	var wg sync.WaitGroup
	var stop atomic.Bool
	for range 4 {
		wg.Go(func() {
			for last := uint64(0); !stop.Load(); {
				r, _ := table.Lookup("acme")
				base := map[string]uint64{"p0": 100, "p1": 200}[r.Partition]
				if r.MapVersion < last || r.Epoch != base+r.MapVersion {
					t.Errorf("version %d after %d, epoch %d", r.MapVersion, last, r.Epoch)
					return
				}
				last = r.MapVersion
				table.Learn(r, r.Node.ID, router.Failure{Reason: router.ReasonNotLeader, Leader: "c"})
				table.Learn(r, r.Node.ID, router.Failure{Reason: router.ReasonWrongEpoch, Epoch: r.Epoch + 1})
			}
		})
	}
	for v := uint64(2); v < 300; v++ {
		table.Update(mustMap(t, parts(v)))
		table.Update(mustMap(t, parts(v-1)))
	}
	stop.Store(true)
	wg.Wait()
}

// Shows what is done after an error of each public reason: nothing that must be fixed is sent again, what is
// known to have consumed nothing is told from what is not, and an unknown reason counts as unknown.
func TestEveryReasonHasAStep(t *testing.T) {
	var table router.Table
	table.Update(mustMap(t, parts(1)))
	_, route := ownedBy(t, &table, "p0")
	a := router.Attempts{Route: route, Asked: []string{"a"}, LeftNanos: 1e9, HorizonNanos: 30e9}
	again := map[quotaerr.Reason]router.Action{
		quotaerr.PolicyStale: router.Refresh, quotaerr.WrongEpoch: router.Refresh, quotaerr.PolicyBehind: router.Send,
		quotaerr.NotLeader: router.Send, quotaerr.Frozen: router.Send, quotaerr.OutcomeUnknown: router.Send,
	}
	maybe := map[quotaerr.Reason]bool{quotaerr.OutcomeUnknown: true, quotaerr.Internal: true, "bogus": true}
	for _, r := range append(quotaerr.All(), "bogus") {
		if r.IsDecision() {
			continue
		}
		s := router.Next(a, router.Failure{Reason: string(r)})
		if s.Action != again[r] || s.MaybeConsumed != maybe[r] {
			t.Errorf("%s: %s, maybe consumed %t", r, s.Action, s.MaybeConsumed)
		}
	}
}

// Shows that for any course of a decision the bounds hold: never more sends than allowed, of those that were sent, never one outside
// the timeout or half the horizon, never a doubt taken back, and a node to send to.
func TestStepsKeepTheBounds(t *testing.T) {
	reasons := []string{"", "not_leader", "wrong_epoch", "frozen", "policy_stale", "policy_behind", "outcome_unknown",
		"overloaded", "no_quorum", "bogus"}
	var table router.Table
	table.Update(mustMap(t, parts(1)))
	_, route := ownedBy(t, &table, "p0")
	rapid.Check(t, func(t *rapid.T) {
		a := router.Attempts{
			Route: route, Asked: []string{"a"}, HorizonNanos: rapid.Int64Range(1, 1e9).Draw(t, "horizon"),
			LeftNanos: rapid.Int64Range(-1, 1e8).Draw(t, "left"),
		}
		for sends := 0; ; {
			f := router.Failure{
				Reason: rapid.SampledFrom(reasons).Draw(t, "reason"), Leader: rapid.SampledFrom([]string{"", "b", "x"}).Draw(t, "l"),
				Epoch: rapid.Uint64Range(0, 200).Draw(t, "epoch"), RetryAfterNanos: rapid.Int64Range(0, 1e7).Draw(t, "after"),
			}
			if f.Unsent = f.Reason == "" && rapid.Bool().Draw(t, "unsent"); !f.Unsent {
				sends++
			}
			s := router.Next(a, f)
			if a.MaybeConsumed && !s.MaybeConsumed || a.Planned && !s.Planned {
				t.Fatal("what was known was taken back")
			}
			if s.FailureMode && s.Planned {
				t.Fatalf("the failure mode decides after %+v", s)
			}
			if s.Action == router.GiveUp {
				return
			}
			a.SinceFirstNanos += s.WaitNanos
			a.LeftNanos -= s.WaitNanos
			if sends == router.MaxSends || a.LeftNanos <= 0 || a.SinceFirstNanos > a.HorizonNanos/2 {
				t.Fatalf("%+v after %d sends, left %d, since %d", s, sends, a.LeftNanos, a.SinceFirstNanos)
			}
			if s.Action == router.Send && s.Node.GRPC == "" {
				t.Fatalf("nowhere to send: %+v", s)
			}
			node := s.Node.ID
			if node == "" {
				node = "a"
			}
			a.Asked, a.MaybeConsumed, a.Planned, a.Unsent = append(a.Asked, node), s.MaybeConsumed, s.Planned, s.Unsent
			a.SinceFirstNanos, a.LeftNanos = a.SinceFirstNanos+1000, a.LeftNanos-1000
		}
	})
}

// Shows that no parts, however odd, make a map that panics or routes to a partition that is not there.
func FuzzNewMap(f *testing.F) {
	f.Add(uint16(0), uint16(100), uint64(1), "p0", uint16(101), uint16(16383), "p1", "acme")
	f.Add(uint16(9), uint16(3), uint64(0), "", uint16(65535), uint16(65535), "zz", "")
	f.Fuzz(func(t *testing.T, f1, l1 uint16, epoch uint64, p1 string, f2, l2 uint16, p2, principal string) {
		p := parts(1)
		p.Ranges = []router.Range{{First: f1, Last: l1, Epoch: epoch, Partition: p1}, {First: f2, Last: l2, Epoch: 7, Partition: p2}}
		m, err := router.NewMap(p)
		if err != nil {
			if errors.Unwrap(err) == nil {
				t.Errorf("a bare error: %v", err)
			}
			return
		}
		var table router.Table
		table.Update(m)
		if r, _ := table.Lookup(principal); r.Partition != "" && r.Node.GRPC == "" {
			t.Errorf("no node: %s", cmp.Diff(router.Route{}, r))
		}
	})
}
