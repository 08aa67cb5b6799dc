package partition

import (
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// A leader whose disk is low hands over to a node that has room; when no node has, whoever leads refuses
// checks with capacity and still answers peeks; with room again it decides.
func TestDiskLow(t *testing.T) {
	c := newCluster(t, func(c *cluster) { c.tick = 20 * time.Millisecond })
	c.awaitBirth()
	low := c.leader()
	low.partition().SetDiskLow(true)
	eventually(t, "another leads", func() bool { return c.leader() != low })
	c.mustGoOn("it decides")

	for _, m := range c.machines {
		m.partition().SetDiskLow(true)
		if !m.partition().Status().DiskLow {
			t.Error("the status does not tell")
		}
	}
	eventually(t, "whoever leads refuses", func() bool {
		_, err := c.leader().partition().Check(t.Context(), convert("p", "1"))
		return quotaerr.ReasonOf(err) == quotaerr.Capacity
	})
	eventually(t, "whoever leads answers a peek", func() bool {
		_, err := c.leader().partition().Peek(t.Context(), usageOf("p", "convert"))
		return err == nil
	})
	for _, m := range c.machines {
		m.partition().SetDiskLow(false)
	}
	eventually(t, "it decides again", func() bool {
		a, err := c.leader().partition().Check(t.Context(), convert("p", "2"))
		return err == nil && a.Reason == fsm.ReasonAllowed
	})
}
