package group

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/partition/storage"
)

// mustBlank gives a replica that is down an empty directory, as another instance of its node.
func (r *replica) mustBlank(t *testing.T, instance string) {
	t.Helper()
	r.dir = filepath.Join(t.TempDir(), instance)
	must(t, os.MkdirAll(r.dir, 0o750))
	r.self.Instance = instance
	r.config.Self, r.config.First, r.config.Bootstrap = r.self, true, nil
	r.config.Disk = storage.NewFiles(filepath.Join(r.dir, "p7"), storage.WAL, nil)
	r.mustOpen(t)
}

// A node whose directory was lost does not vote in place of the lost one: with a second node down no leader
// is elected. When the old replica has been removed the node comes back as a learner, gets what the others
// have, is promoted, and only then counts.
func TestBlankDirectory(t *testing.T) {
	c := newCluster(t, 3, 3, nil)
	c.mustPropose(t, "first", 5, 0)
	want := c.agree(t, 5)
	leader := c.leader(t)
	down, lost := c.without(leader)[0], c.without(leader)[1]
	for _, r := range c {
		must(t, r.Close())
	}
	lost.mustBlank(t, "dir-new")
	leader.mustOpen(t)
	eventually(t, "the old leader campaigns in vain, and is refused", func() bool {
		return lost.listener.Refusals().Node >= 3
	})
	for _, r := range c.without(down) {
		if l := r.Leadership(); l.Term != 0 {
			t.Fatalf("%s leads with a majority of one and a blank directory: %+v", r.self.ID, l)
		}
	}
	if got := lost.applier.entries(); len(got) > 0 {
		t.Errorf("the blank replica has applied %v", got)
	}

	down.mustOpen(t)
	leader = c.without(lost).leader(t)
	if err := leader.AddLearner(lost.self); err == nil || !strings.Contains(err.Error(), "remove that replica first") {
		t.Errorf("a second replica of one node: %v", err)
	}
	must(t, leader.Remove(lost.self.ID))
	must(t, leader.AddLearner(lost.self))
	if diff := cmp.Diff(want, c.agree(t, 5)); diff != "" {
		t.Error(diff)
	}
	eventually(t, "the learner has caught up", func() bool {
		last, err := leader.Last()
		return err == nil && !leader.Acknowledged(lost.self).Before(last)
	})
	must(t, leader.Promote(lost.self.ID))
	members := leader.Members()
	if i := len(members) - 1; members[i] != lost.self {
		t.Errorf("members %v", members)
	}
	must(t, c.without(lost).without(leader)[0].Close())
	eventually(t, "its vote counts", func() bool {
		p := leader.Propose([]byte("third"))
		<-p.Done()
		_, err := p.Result()
		return err == nil
	})
}

// A condemned replica takes no further part, and no later start opens it.
func TestCondemn(t *testing.T) {
	c := newCluster(t, 3, 3, nil)
	c.mustPropose(t, "first", 1, 0)
	c.agree(t, 1)
	leader := c.leader(t)
	must(t, leader.Condemn("its state is not that of the others"))
	p := leader.Propose([]byte("x"))
	<-p.Done()
	if _, err := p.Result(); err == nil {
		t.Error("it takes proposals")
	}
	leader.config.Applier = &recorder{}
	if _, err := Open(leader.config); err == nil || !strings.Contains(err.Error(), "not that of the others") {
		t.Errorf("it opens again: %v", err)
	}
	c.without(leader).mustPropose(t, "second", 1, 0)
}

// Positions are ordered as Raft orders logs: a later term wins whatever the length.
func TestPosition(t *testing.T) {
	ordered := []Position{
		{}, {Term: 1, Index: 1}, {Term: 1, Index: 9}, {Term: 2, Index: 3}, {Term: 2, Index: 4},
	}
	for i, p := range ordered {
		for j, o := range ordered {
			if p.Before(o) != (i < j) {
				t.Errorf("%v before %v: %t", p, o, p.Before(o))
			}
		}
	}
}
