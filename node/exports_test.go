package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that a replica which is taken as it is exports slots that are wanted under an epoch only if it owns them under
// that one, that who asks for another is refused for good and told so, and that without an epoch it exports what it has.
func TestRecoverTakesOnlyWhatIsOwned(t *testing.T) {
	cfg := mustConfigs(t, 1)[0]
	cfg.Placement.Replicas = 1
	n := mustRun(t, cfg)
	mustInit(t, []*running{n}, 2)
	untilReady(t, n)
	p0, _ := n.control().State().Partition(0)
	owned := p0.Ranges[0]
	for name, tt := range map[string]struct {
		wanted  state.Range
		refused bool
	}{
		"as it owns them":        {owned, false},
		"under no epoch":         {state.Range{SlotRange: owned.SlotRange}, false},
		"under a later epoch":    {state.Range{SlotRange: owned.SlotRange, Epoch: owned.Epoch + 1}, true},
		"more than it owns":      {state.Range{SlotRange: fsm.SlotRange{Last: fsm.NumSlots - 1}, Epoch: owned.Epoch}, true},
		"none, without an epoch": {state.Range{SlotRange: fsm.SlotRange{First: fsm.NumSlots - 1, Last: fsm.NumSlots - 1}}, false},
	} {
		var manifest *quoratev1.PlanManifest
		var err error
		for m, failed := range n.exportedBy(t.Context(), n.cfg.ID, &quoratev1.ExportSlotsRequest{
			Source: "p0", AnyReplica: true, Ranges: ownedOnWire([]state.Range{tt.wanted}),
		}) {
			manifest, err = m.GetManifest(), failed
		}
		switch {
		case !tt.refused && (err != nil || manifest == nil):
			t.Errorf("%s: %v, manifest %v", name, err, manifest)
		case tt.refused && (quotaerr.ReasonOf(err) != quotaerr.InvalidArgument || !strings.Contains(err.Error(), "without accepting")):
			t.Errorf("%s: %v", name, err)
		}
	}
	mustEnd(t, n)
}

// Shows that before an import is sealed the policies that it carries are brought to the replicas: also from another node
// where they are not here, and that it is not sealed while a majority of the replicas cannot have them.
func TestPlanHoldsBodies(t *testing.T) {
	var nodes []*running
	for _, cfg := range mustConfigs(t, 3) {
		nodes = append(nodes, mustRun(t, cfg))
	}
	mustInit(t, nodes, 1)
	untilReady(t, nodes...)
	putAt := func(n *running, version string) fsm.PolicyRef {
		t.Helper()
		p, err := policy.New(policy.Policy{Version: version, Default: policy.Class{Limits: []policy.Limit{
			{Name: "per-minute", Max: 7, WindowNanos: int64(time.Minute)},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		ref, c := fsm.NewInstall(9, p).PolicyRef, n.control()
		_, err = c.Bodies().Put(state.Digest(ref.Body), c.State().BodyEpoch, func(yield func([]byte, error) bool) {
			yield(p.AppendBinary(nil), nil)
		})
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	all := []string{"n0", "n1", "n2"}
	elsewhere := putAt(nodes[0], "elsewhere")
	if err := nodes[1].holdBodies(t.Context(), all[1:], []fsm.PolicyRef{elsewhere}); err != nil {
		t.Error(err)
	}
	for _, n := range nodes[1:] { // two are the majority of two
		if has, err := n.control().Bodies().Has(state.Digest(elsewhere.Body), 0); err != nil || !has {
			t.Errorf("node %s has it: %t, %v", n.cfg.ID, has, err)
		}
	}
	here := putAt(nodes[1], "here")
	mustEnd(t, nodes[0], nodes[2])
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := nodes[1].holdBodies(ctx, all, []fsm.PolicyRef{here})
	if quotaerr.ReasonOf(err) != quotaerr.NoQuorum || !strings.Contains(fmt.Sprint(err), "only 1 of the partition's 3") {
		t.Errorf("alone: %v", err)
	}
	if err := nodes[1].holdBodies(ctx, []string{"n1"}, []fsm.PolicyRef{here}); err != nil {
		t.Errorf("the only replica: %v", err)
	}
	mustEnd(t, nodes[1])
}
