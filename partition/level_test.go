package partition

import (
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
)

// A cluster is upgraded node by node, under load, from a program that knows one feature level to one that
// knows the next: the level rises when the last node has been upgraded and not before, states stay equal,
// and the old program, started once more, refuses to go on with what it does not know.
func TestRollingUpgrade(t *testing.T) {
	const old, next = fsm.MaxLevel, fsm.MaxLevel + 1
	c := newCluster(t, func(c *cluster) {
		c.tick, c.level = 20*time.Millisecond, old
	})
	c.awaitBirth()
	level := func() fsm.Level { return c.agree(c.up()).Level }
	for i, m := range c.machines {
		if got := level(); got != old {
			t.Fatalf("with %d nodes upgraded the level is %d", i, got)
		}
		c.mustClose(m)
		m.level = next
		c.mustGoOn("the others go on")
		c.mustOpen(m)
		c.leader()
	}
	c.decideUntil("the level rises", func() bool { return level() == next })

	back := c.machines[0]
	c.mustClose(back)
	back.level = old
	c.mustOpen(back)
	select {
	case err := <-back.fatal:
		t.Log(err)
	case <-time.After(patience):
		t.Error("the old program goes on")
	}
	c.mustClose(back)
}
