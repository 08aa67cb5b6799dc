package node

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/quotaerr"
)

// Shows what a node that announces itself is told by the cluster's state: admitted with the directory that counts,
// refused with another, waiting when it is not known or was removed, neither when its lost one was given up; and that
// only a known node with the directory that counts may propose, and may speak to this one's doors while that is current.
func TestStandings(t *testing.T) {
	n := mustRun(t, mustConfigs(t, 1)[0])
	mustInit(t, []*running{n}, 1)
	untilReady(t, n)
	put := func(id, instance string) {
		t.Helper()
		_, err := n.control().Propose(t.Context(), &state.Command{Kind: state.KindPutNode, Actor: "test", Node: &state.PutNode{
			ID: id, Instance: instance, GRPC: id + ":1", Raft: id + ":2",
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	propose := func(c *state.Command) {
		t.Helper()
		c.Actor = "test"
		if _, err := n.control().Propose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"known", "removed", "replaced"} {
		put(id, "i-"+id)
	}
	propose(&state.Command{Kind: state.KindNodeState, NodeID: "removed", State: state.NodeRemoved})
	propose(&state.Command{Kind: state.KindLoseNode, NodeID: "replaced", Instance: "i-replaced"})
	eventually(t, "the lease covers that", func() bool {
		return n.lease.covers(n.source.Read(), n.control().State().Version)
	}, func() any { return n.lease.get(n.control().State().Version) })
	for _, tt := range []struct {
		id, instance, want string
		proposes, speaks   bool
	}{
		{"known", "i-known", "admitted", true, true},
		{"known", "i-other", "quorate node replace known", false, true},
		{"removed", "i-removed", "must not come back", false, false},
		{"removed", "i-blank", "waits", false, false},
		{"replaced", "i-replaced", "must not come back", false, true},
		{"replaced", "i-blank", "", false, true},
		{"stranger", "i-stranger", "waits", false, false},
	} {
		who := nodeAnswer{ID: tt.id, Instance: tt.instance}
		s := n.judgeStanding(who)
		got := s.Refused
		switch {
		case s.Admitted:
			got = "admitted"
		case s.Waits:
			got = "waits"
		}
		if !strings.Contains(got, tt.want) || tt.want == "" && got != "" {
			t.Errorf("%s with %s: %q, want %q", tt.id, tt.instance, got, tt.want)
		}
		note := state.AppendCommand(nil, &state.Command{
			Kind: state.KindNote, ID: state.CommandID{1, tt.id[0], tt.instance[2]}, Actor: "node/" + tt.id,
			Act: &state.Act{Action: "test", Object: tt.instance},
		})
		p := n.replyPropose(&question{Self: who, Command: note})
		if (p.Failed == "") != tt.proposes || p.Failed != "" && p.Reason != string(quotaerr.PermissionDenied) {
			t.Errorf("%s with %s proposes: %+v", tt.id, tt.instance, p)
		}
		if got := (*backend)(n.Node).KnowsNode(tt.id); got != tt.speaks {
			t.Errorf("%s speaks: %v", tt.id, got)
		}
	}
	n.announced.note(nodeAnswer{ID: "twin", Instance: "a", Raft: "127.0.0.1:1"})
	n.announced.note(nodeAnswer{ID: "twin", Instance: "b", Raft: "127.0.0.1:1"})
	if got := n.announced.recent(); len(got) != 2 {
		t.Errorf("two nodes of one id are remembered as %+v", got)
	}
	if got := (*cluster)(n.Node).Waiting(); len(got) != 0 {
		t.Errorf("nodes that do not answer wait as %+v", got)
	}
	mustEnd(t, n)
}
