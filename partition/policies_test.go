package partition

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// mustInstall has whoever leads install a revision.
func (c *cluster) mustInstall(ref fsm.PolicyRef) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("revision %d is installed", ref.Revision), func() bool {
		err := c.leader().partition().Install(c.t.Context(), ref)
		switch quotaerr.ReasonOf(err) {
		case quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.OutcomeUnknown:
			return false
		}
		must(c.t, err)
		return true
	})
}

// Installs and forgives go through the log of a real group: every replica comes to the same state, one that was
// down catches up, usage is kept through each install, and the log is compacted when it names many policies.
func TestPoliciesOfCluster(t *testing.T) {
	c := newCluster(t, nil)
	leader := c.leader()
	c.mustDecide(convert("acme", "1"))
	c.mustDecide(convert("acme", "2"))
	away := c.other(leader)
	c.mustClose(away)
	for r := fsm.Revision(2); r <= 40; r++ {
		c.mustInstall(c.policies.add(r, mustPolicy(t, fmt.Sprint("p", r), 3)))
	}
	eventually(t, "the log is compacted", func() bool { return leader.partition().group.Status().SnapshotsTaken > 0 })
	if left := c.mustPeek("acme", "convert").Remaining; left != 1 {
		t.Errorf("%d left, want 1", left)
	}
	forgiven, err := c.leader().partition().Forgive(t.Context(), fsm.Forgive{Principal: "acme", RouteEpoch: testEpoch})
	must(t, err)
	if len(forgiven.Amounts) != 1 || forgiven.Amounts[0].Amount != 2 {
		t.Errorf("forgiven: %+v", forgiven)
	}
	if left := c.mustPeek("acme", "convert").Remaining; left != 3 {
		t.Errorf("%d left, want 3", left)
	}
	if a := c.mustDecide(convert("acme", "1")); !a.Allowed() || !a.Replayed {
		t.Errorf("what was decided is told otherwise: %+v", a)
	}
	c.mustOpen(away)
	if s := c.agree(c.machines); s.Revision != 40 || s.Version != "p40" {
		t.Errorf("in force: %d %s", s.Revision, s.Version)
	}
}
