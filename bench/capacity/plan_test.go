package capacity

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// round are figures that are easy to reckon with.
func roundFigures() Figures {
	v := func(x float64) Figure { return Figure{Value: x} }
	return Figures{
		OwnerPerS: v(100_000), LeaderCPU: v(4), FollowerCPU: v(2), GatewayCPU: v(5), AskBytes: v(200), ReplicateBytes: v(100),
		LogBytes: v(50), KeyBytes: v(100), PairBytes: v(10), RecordBytes: v(100), KeyPairs: v(4096), OwnerKeys: v(5e6),
		OwnerRecords: v(8e6), NodeOwners: v(32), Utilisation: v(0.5), MemoryFactor: v(2),
	}
}

// Shows the arithmetic on numbers that can be reckoned by hand: a million checks a second, a fifth of them denied,
// half of those by hints.
func TestPlanByHand(t *testing.T) {
	f := roundFigures()
	n := Need{
		RPS: 1e6, DeniedShare: 0.2, HintedShare: 0.5, Principals: 8e6, Limit: 100, Window: time.Minute,
		ReplayHorizon: 30 * time.Second, Cores: 8,
	}
	got, err := f.Plan(n)
	if err != nil {
		t.Fatal(err)
	}
	want := &Plan{
		Need: n, OwnerRPS: 900_000, AllowedRPS: 800_000,
		Owners: 18, OwnersFor: "decisions per second", // 900k of 50k each
		NodeCores: 7.2, GatewayCores: 4.5, // 900k times 8 and 5 µs
		Nodes: 3, NodesFor: "three replicas", // 7.2 of 4 cores each would be 2
		PairsPerKey:        6,      // 800k/s × 60 s / 8M
		KeyMemoryBytes:     3.84e9, // 3 × 8M × (100+60)
		RecordMemoryBytes:  7.2e9,  // 3 × 800k/s × 30 s × 100
		NodeMemoryBytes:    7.36e9,
		AskBytesPerS:       180e6,
		ReplicateBytesPerS: 180e6,
		NodeNetBytesPerS:   180e6,
		NodeLogBytesPerS:   45e6,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Shows what asks for owners and nodes when it is not the rate, and that a limit caps what is allowed.
func TestWhatAsksForSize(t *testing.T) {
	f := roundFigures()
	base := Need{RPS: 1000, Principals: 1000, Limit: 1e6, Window: time.Minute, ReplayHorizon: 30 * time.Second, Cores: 8}
	for want, change := range map[string]func(*Need){
		"there is at least one/three replicas": func(*Need) {},
		"keys/three replicas":                  func(n *Need) { n.Principals = 2e7 },
		"replay records/three replicas":        func(n *Need) { n.RPS, n.ReplayHorizon = 50_000, 15*time.Minute },
		"keys/owners":                          func(n *Need) { n.Principals = 1e9 },
		"decisions per second/CPU":             func(n *Need) { n.RPS, n.Cores = 1e6, 2 },
	} {
		n := base
		change(&n)
		p, err := f.Plan(n)
		if err != nil || p.OwnersFor+"/"+p.NodesFor != want {
			t.Errorf("%s: %+v %v", want, p, err)
		}
	}
	n := base
	n.Limit = 6
	if p, err := f.Plan(n); err != nil || p.AllowedRPS != 100 || p.CappedRPS != 900 || p.PairsPerKey != 6 {
		t.Errorf("%+v %v", p, err)
	}
}

// Shows that more load never asks for less, and that nothing is ever negative.
func TestPlanGrows(t *testing.T) {
	f := Default()
	rapid.Check(t, func(t *rapid.T) {
		n := Need{
			RPS: rapid.Float64Range(1, 1e8).Draw(t, "rps"), Principals: rapid.Float64Range(1, 1e9).Draw(t, "principals"),
			DeniedShare: rapid.Float64Range(0, 1).Draw(t, "denied"), HintedShare: rapid.Float64Range(0, 1).Draw(t, "hinted"),
			Limit: rapid.Float64Range(1, 1e6).Draw(t, "limit"), Window: time.Duration(rapid.Int64Range(1e6, 1e15).Draw(t, "window")),
			ReplayHorizon: 30 * time.Second, Cores: rapid.IntRange(1, 256).Draw(t, "cores"),
		}
		p, err := f.Plan(n)
		if err != nil {
			t.Fatal(err)
		}
		n.RPS *= 2
		more, err := f.Plan(n)
		if err != nil {
			t.Fatal(err)
		}
		if more.Owners < p.Owners || more.Nodes < p.Nodes || p.Nodes < 3 || p.Owners < 1 || p.NodeMemoryBytes <= 0 ||
			p.NodeCores < 0 || p.CappedRPS < 0 || p.OwnersFor == "" || p.NodesFor == "" {
			t.Errorf("%+v, and twice the rate %+v", p, more)
		}
	})
}

// Shows that everything wrong with a need is named at once.
func TestNeedNamesAll(t *testing.T) {
	_, err := roundFiguresPlan(Need{DeniedShare: 2})
	for _, want := range []string{"checks per second", "principals", "limit", "window", "horizon", "shares", "cores"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %q", err, want)
		}
	}
}

func roundFiguresPlan(n Need) (*Plan, error) {
	f := roundFigures()
	return f.Plan(n)
}

// Shows that each figure has a name, a value and a source, and that the list has all of them.
func TestFiguresHaveSources(t *testing.T) {
	f := Default()
	list := f.List()
	names := map[string]bool{}
	for _, one := range list {
		if one.Name == "" || one.Source == "" || one.Value <= 0 || names[one.Name] {
			t.Errorf("%+v", one)
		}
		names[one.Name] = true
	}
	if len(list) != 16 {
		t.Errorf("%d figures", len(list))
	}
}
