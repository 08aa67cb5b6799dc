package node

import (
	"context"
	"time"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// silenceInterval is between two looks whether a node has stopped.
	silenceInterval = 100 * time.Millisecond
	// silenceTimeout is how long a node that was stopped a moment ago is waited for.
	silenceTimeout = 4 * time.Second
)

// MayReplace refuses to give up the data directory of a node that still serves from it, and one without which a
// group could not go on. It is for the node that leads the control group.
func (c *cluster) MayReplace(ctx context.Context, node string) error {
	n := (*Node)(c)
	open, err := c.Control()
	if err != nil {
		return err
	}
	s := open.State()
	known, ok := s.Node(node)
	if !ok || known.Instance == "" {
		return nil // the state machine says what there is to say
	}
	if node == n.cfg.ID {
		return quotaerr.New(quotaerr.InvalidArgument,
			"%s leads the control group and is up and well: stop it first, another node then leads", node)
	}
	if err := n.mustBeSilent(ctx, known); err != nil {
		return err
	}
	r := n.hosted.of(controlID)
	g := r.group.Load()
	if g == nil {
		return n.errNotMade()
	}
	voters, up := r.membership(g).votersUp(node)
	if 2*up <= voters {
		return quotaerr.New(quotaerr.NoQuorum, "without %s the control group has %d voters, of which %d are up: "+
			"start the others first", node, voters, up)
	}
	for _, p := range s.Partitions {
		if err := n.mustKeepMajority(p, node); err != nil {
			return err
		}
	}
	return nil
}

// mustBeSilent refuses a node that answers, or goes on acknowledging entries. One that was stopped a moment ago is
// waited for.
func (n *Node) mustBeSilent(ctx context.Context, known *state.Node) error {
	ctx, cancel := context.WithTimeout(ctx, silenceTimeout)
	defer cancel()
	g := n.hosted.of(controlID).group.Load()
	if g == nil {
		return n.errNotMade()
	}
	for {
		a, err := n.askNode(ctx, known.ID, question{Kind: askWho})
		if err == nil && a.Self.Instance == known.Instance {
			return quotaerr.New(quotaerr.InvalidArgument, "%s is up and well: stop it first", known.ID)
		}
		m, ok := memberOf(g.Members(), known.ID)
		if !ok || m.Instance != known.Instance || time.Since(g.Heard(m)) >= recently {
			return nil
		}
		select {
		case <-ctx.Done():
			return quotaerr.New(quotaerr.InvalidArgument, "%s goes on acknowledging entries: stop it first", known.ID)
		case <-time.After(silenceInterval):
		}
	}
}

// mustKeepMajority refuses to give up a replica without which its partition could not commit.
func (n *Node) mustKeepMajority(p *state.Partition, without string) error {
	id := p.ID.String()
	g := n.leading(id, time.Now())
	if g == nil {
		for _, replica := range p.Replicas {
			if replica == without {
				return quotaerr.New(quotaerr.NoQuorum, "partition %s has no leader, and counts on %s: start its other nodes first",
					id, without)
			}
		}
		return nil
	}
	if _, listed := g.lists(without); !listed {
		return nil
	}
	voters, up := 0, 0
	for _, m := range g.Members {
		if m.Learner || m.Node == without {
			continue
		}
		voters++
		if n.down(m.Node) == 0 {
			up++
		}
	}
	if 2*up <= voters {
		return quotaerr.New(quotaerr.NoQuorum, "without %s partition %s has %d voters, of which %d are up: "+
			"start the others first", without, id, voters, up)
	}
	return nil
}
