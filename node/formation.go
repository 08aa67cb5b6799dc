package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/quorate/quorate/partition/group"
)

// A node whose data directory is new does not know whether its cluster is new as well, or whether this
// directory takes the place of one that was lost. The other nodes know. A replica that was lost has
// acknowledged entries that it must not forget, so a blank directory never stands in for it: it is another
// replica, which is added only after the lost one was taken out. And a cluster that lost its memory must
// not form anew: so it forms only when all its nodes say that they have nothing, by one of them.

const (
	// formationInterval is between two rounds of questions.
	formationInterval = 100 * time.Millisecond
	// hearsayGrace is how long a node that does not lead is asked before its word counts that this one's
	// data was lost: it may not have heard yet that the lost replica was taken out.
	hearsayGrace = 2 * time.Second
	// waitLogInterval is how often it is logged whom a start waits for.
	waitLogInterval = 3 * time.Second
)

// errLost: the group counts on a replica of this node that is not in this data directory.
var errLost = errors.New("data was lost")

// verdict is what the other nodes' answers mean for a node with a new directory.
type verdict int

const (
	undecided verdict = iota // not enough is known
	join                     // open, without members: a leader reaches this replica, or adds it
	refuse                   // another replica of this node is counted on
	found                    // nobody has the group: the first node makes it
)

// judgement is a verdict and what it rests on.
type judgement struct {
	verdict verdict
	// by is the node whose word counts, and byLeader that it leads.
	by       string
	byLeader bool
	born     bool // the partition has been made
	lost     memberAnswer
}

// judge tells what answers mean for node self with a data directory of the given instance. others are all
// other configured nodes.
func judge(self, instance string, others []Peer, answers map[string]*answer) judgement {
	var best *answer
	someHas := false
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		a := answers[id]
		someHas = someHas || a.Has
		// A replica that waits to be added knows no members.
		if a.Replica != nil && len(a.Replica.Members) > 0 && (best == nil || knowsBetter(a.Replica, best.Replica)) {
			best = a
		}
	}
	if best != nil {
		j := judgement{verdict: join, by: best.Node, byLeader: best.Replica.Leads, born: best.Replica.Born}
		if m, listed := best.Replica.lists(self); listed && m.Instance != instance {
			j.verdict, j.lost = refuse, m
		}
		return j
	}
	if !someHas && len(answers) == len(others) {
		return judgement{verdict: found}
	}
	return judgement{verdict: undecided}
}

// knowsBetter prefers who leads, and else whose log is further.
func knowsBetter(a, b *replicaAnswer) bool {
	if a.Leads != b.Leads {
		return a.Leads
	}
	if a.Term != b.Term {
		return a.Term > b.Term
	}
	return a.Last > b.Last
}

// form asks the other nodes until it is clear how this one, whose directory is new, takes part. It returns
// the first members when this node is to make the group, none when it is to wait for a leader.
func (n *Node) form(ctx context.Context) ([]group.Member, error) {
	_, policyErr := n.policy() // it may be this node that makes the partition
	others := n.cfg.others()
	began, logged := time.Now(), time.Now()
	for {
		answers, silent := n.survey(ctx)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n.neighbours.note(answers, time.Now())
		j := judge(n.cfg.ID, n.claim.Instance(), others, answers)
		waits := ""
		switch j.verdict {
		case join:
			if !j.born && policyErr != nil {
				return nil, policyErr
			}
			return nil, nil
		case refuse:
			if j.byLeader || time.Since(began) > hearsayGrace {
				return nil, n.lostError(j)
			}
			waits = fmt.Sprintf("node %s counts on another data directory of this node; looking for a leader that confirms it",
				j.by)
		case found:
			if policyErr != nil {
				return nil, policyErr
			}
			waits = fmt.Sprintf("waiting for node %s to make the partition", n.cfg.Nodes[0].ID)
			if why := disagreement(n.cfg.ids(), answers); why != "" {
				waits = why
			} else if n.cfg.Nodes[0].ID == n.cfg.ID {
				return n.firstMembers(answers), nil
			}
		case undecided:
			waits = waitText(answers, silent)
		}
		n.wait(waits)
		if time.Since(logged) >= waitLogInterval {
			logged = time.Now()
			n.held.letGo()
			n.logger.Info("this node has a new data directory and takes no part yet", "because", waits)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(formationInterval):
		}
	}
}

// waitText says whom a node with a new directory waits for.
func waitText(answers map[string]*answer, silent map[string]error) string {
	var words []string
	for _, id := range slices.Sorted(maps.Keys(silent)) {
		if why := silent[id]; isDown(why) {
			words = append(words, id)
		} else {
			words = append(words, fmt.Sprintf("%s (%v)", id, why))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		if a := answers[id]; a.Has && (a.Replica == nil || len(a.Replica.Members) == 0) {
			words = append(words, id+" (it is starting)")
		}
	}
	return "waiting for an answer of " + strings.Join(words, ", ") +
		": a cluster forms, and a new data directory is judged, only when they tell what they have"
}

// disagreement says which node is configured with other nodes, or with the same in another order, by which
// two of them could each take itself for the first; empty when all are configured alike.
func disagreement(own []string, answers map[string]*answer) string {
	for _, id := range slices.Sorted(maps.Keys(answers)) {
		if a := answers[id]; !slices.Equal(own, a.Nodes) {
			return fmt.Sprintf("node %s is configured with the nodes %s, this one with %s: write the same on all, in one order",
				id, strings.Join(a.Nodes, ", "), strings.Join(own, ", "))
		}
	}
	return ""
}

// isDown reports whether a question failed because nobody was there.
func isDown(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, context.DeadlineExceeded)
}

// firstMembers are all configured nodes with the instances that they answered.
func (n *Node) firstMembers(answers map[string]*answer) (members []group.Member) {
	for _, p := range n.cfg.Nodes {
		m := group.Member{ID: p.ID, Addr: p.Raft, Instance: n.claim.Instance()}
		if p.ID != n.cfg.ID {
			m.Instance = answers[p.ID].Instance
		}
		members = append(members, m)
	}
	return members
}

// lostError says that the directory is not the one that the group counts on, and the remedy.
func (n *Node) lostError(j judgement) error {
	return fmt.Errorf("%w: the data directory %s is empty, but partition %s counts on another one of node %s "+
		"(instance %s, says node %s), so it was lost or the wrong directory is mounted: put the right one back, or %s",
		errLost, n.cfg.DataDir, n.cfg.Partition.ID, n.cfg.ID, short(j.lost.Instance), j.by, n.remedy("start this node again"))
}

// remedy is what an operator does about a replica that is lost.
func (n *Node) remedy(then string) string {
	var addrs []string
	for _, p := range n.cfg.others() {
		addrs = append(addrs, p.GRPC)
	}
	return fmt.Sprintf("run `quorate node replace %s --addr %s` and %s", n.cfg.ID, strings.Join(addrs, ","), then)
}

// short is enough of an instance to tell it from others.
func short(instance string) string {
	first, _, _ := strings.Cut(instance, "-")
	return first
}
