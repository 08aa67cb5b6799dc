package node

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition/agreement"
	"github.com/quorate/quorate/partition/group"
)

// Nodes ask each other questions on their Raft ports, whether or not they have a replica yet: what a start
// has to know before it may open one, how a node with nothing finds its way in, and what has to be compared
// between replicas. Question and answer are JSON, of one version, with no field that the other side does not
// know.
const questionVersion = 2

// The kinds of question.
const (
	askWho      = "who"      // who are you, and how do your replicas stand
	askAnnounce = "announce" // here I am: am I one of you
	askDigest   = "digest"   // which digest has your state at an index
	askPropose  = "propose"  // have this command applied, if you lead the control group
)

// question is what one node asks another.
type question struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	// Self is the asker.
	Self nodeAnswer `json:"self"`
	// Group, To, Index and Digest are for askDigest: the instance that is asked, the log index, and the asker's
	// own digest there, in hexadecimal.
	Group  string `json:"group,omitempty"`
	To     string `json:"to,omitempty"`
	Index  uint64 `json:"index,omitempty"`
	Digest string `json:"digest,omitempty"`
	// Command is for askPropose: an encoded command of the control group.
	Command []byte `json:"command,omitempty"`
}

// nodeAnswer is a node with its addresses.
type nodeAnswer struct {
	ID       string `json:"id"`
	Instance string `json:"instance"` // of its data directory
	GRPC     string `json:"grpc"`
	HTTP     string `json:"http"`
	Raft     string `json:"raft"`
	Gossip   string `json:"gossip"`
	Zone     string `json:"zone"`
}

// answer is what a node says. Error excludes everything else.
type answer struct {
	Version int        `json:"version"`
	Error   string     `json:"error,omitempty"`
	Self    nodeAnswer `json:"self"`
	Level   uint32     `json:"level"` // the highest feature level that its program knows
	DiskLow bool       `json:"disk_low"`
	// Has says that it has, or had, a replica of the control group: it is part of a cluster. Forming says that
	// it is about to make one.
	Has     bool `json:"has"`
	Forming bool `json:"forming"`
	// Groups are its replicas, by group.
	Groups map[string]*groupAnswer `json:"groups,omitempty"`
	// Standing answers askAnnounce.
	Standing *standingAnswer `json:"standing,omitempty"`
	// Known, Digest and Applied answer askDigest: Applied is the log index up to which the replica has
	// applied the log.
	Known   bool   `json:"known,omitempty"`
	Digest  string `json:"digest,omitempty"`
	Applied uint64 `json:"applied,omitempty"`
	// Proposed answers askPropose.
	Proposed *proposedAnswer `json:"proposed,omitempty"`
}

// proposedAnswer is what a command came to.
type proposedAnswer struct {
	Index    uint64 `json:"index"`
	Version  uint64 `json:"version"`
	Repeated bool   `json:"repeated,omitempty"` // it had been applied before
	// Reason and Failed are why it was not applied, or that this is not known; Leader is who leads the control
	// group, where it is not the node that was asked.
	Reason string `json:"reason,omitempty"`
	Failed string `json:"failed,omitempty"`
	Leader string `json:"leader,omitempty"`
}

// standingAnswer is what a node with the cluster's state says of one that announces itself.
type standingAnswer struct {
	// Leads says that the answer is that of the node that leads the control group, Leader who does, and
	// LeaderRaft where.
	Leads      bool   `json:"leads"`
	Leader     string `json:"leader,omitempty"`
	LeaderRaft string `json:"leader_raft,omitempty"`
	// Admitted says that the announced data directory is one of the cluster's, Waits that an operator has to add
	// it, Refused why it cannot be, and Gone that this is so for ever, whoever says it.
	Admitted bool   `json:"admitted"`
	Waits    bool   `json:"waits"`
	Refused  string `json:"refused,omitempty"`
	Gone     bool   `json:"gone,omitempty"`
}

// groupAnswer is what a node has of a group.
type groupAnswer struct {
	Term uint64 `json:"term"`
	Last uint64 `json:"last"` // index of the last entry in its log
	// Leads says that it leads and may decide.
	Leads bool `json:"leads"`
	// Stopped is why it has stopped for good; empty while it has not.
	Stopped string `json:"stopped,omitempty"`
	// Members are the replicas, if it leads.
	Members []memberAnswer `json:"members,omitempty"`
	// Keys and DecisionsPerSecond are what the partition has to do, if it leads.
	Keys               int64 `json:"keys,omitempty"`
	DecisionsPerSecond int64 `json:"decisions_per_second,omitempty"`
	// Acknowledged is how far the asker's instance is known to have had the group's log on its disk.
	Acknowledged positionAnswer `json:"acknowledged"`
}

// memberAnswer is one replica of a group.
type memberAnswer struct {
	Node     string `json:"node"`
	Instance string `json:"instance"`
	Learner  bool   `json:"learner,omitempty"`
	// CaughtUp: a learner that could take part in a majority at once.
	CaughtUp bool `json:"caught_up,omitempty"`
}

type positionAnswer struct {
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
}

// lists tells which instance of a node is a member.
func (g *groupAnswer) lists(node string) (memberAnswer, bool) {
	for _, m := range g.Members {
		if m.Node == node {
			return m, true
		}
	}
	return memberAnswer{}, false
}

// decodeVersion reads one JSON value of the given version. A field that this program does not know is
// passed over: a newer program may say more in the same version, never something else.
func decodeVersion(data []byte, version int, into any) error {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	if v.Version != version {
		return fmt.Errorf("it is of version %d, this program knows %d: run versions that fit together",
			v.Version, version)
	}
	return json.Unmarshal(data, into)
}

// ask asks the node of an id at an address; whoever is there, when the id is group.Anyone.
func (n *Node) ask(ctx context.Context, id, addr string, q question) (*answer, error) {
	q.Version, q.Self = questionVersion, n.self()
	src, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	body, err := n.listener.Ask(ctx, id, addr, src)
	if err != nil {
		return nil, err
	}
	a := &answer{}
	if err := decodeVersion(body, questionVersion, a); err != nil {
		return nil, fmt.Errorf("the answer from %s: %w", addr, err)
	}
	if a.Error != "" {
		return nil, fmt.Errorf("the node at %s: %s", addr, a.Error)
	}
	if a.Self.ID == "" || a.Self.Instance == "" || id != group.Anyone && a.Self.ID != id {
		return nil, fmt.Errorf("node %q answers at %s in the place of %s: check the addresses", a.Self.ID, addr, id)
	}
	if a.Self.ID != n.cfg.ID {
		n.neighbours.note(a)
	}
	return a, nil
}

// askNode asks a node wherever it is reached now.
func (n *Node) askNode(ctx context.Context, id string, q question) (*answer, error) {
	addr := n.locate(id)
	if addr == "" {
		return nil, fmt.Errorf("node %s: no address is known", id)
	}
	return n.ask(ctx, id, addr, q)
}

// self is this node with its addresses.
func (n *Node) self() nodeAnswer {
	a := n.cfg.Advertise
	return nodeAnswer{n.cfg.ID, n.claim.Instance(), a.GRPC, a.HTTP, a.Raft, a.Gossip, n.cfg.Zone}
}

// answer answers another node's question. It is the Answer of the listener.
func (n *Node) answer(from string, body []byte) []byte {
	a := n.reply(from, body)
	a.Version = questionVersion
	out, err := json.Marshal(a)
	if err != nil { // nothing in it can fail
		n.logger.Error("an answer cannot be encoded", "error", err)
	}
	return out
}

func (n *Node) reply(from string, body []byte) answer {
	var q question
	if err := decodeVersion(body, questionVersion, &q); err != nil {
		return answer{Error: fmt.Sprintf("the question: %v", err)}
	}
	if q.Self.ID != from {
		return answer{Error: fmt.Sprintf("node %.63q asks in the name of %.63q", from, q.Self.ID)}
	}
	n.neighbours.met(q.Self)
	a := answer{Self: n.self(), Level: uint32(fsm.MaxLevel), DiskLow: n.diskLow.Load()}
	switch q.Kind {
	case askDigest:
		if err := n.replyDigest(&a, &q); err != nil {
			return answer{Error: err.Error()}
		}
	case askPropose:
		a.Proposed = n.replyPropose(&q)
	case askAnnounce, askWho:
		a.Has, a.Forming = n.hasCluster(), n.forming.Load()
		a.Groups = map[string]*groupAnswer{}
		for _, r := range n.hosted.all() {
			a.Groups[r.id] = r.standing(group.Member{ID: from, Instance: q.Self.Instance})
		}
		if q.Kind == askAnnounce {
			a.Standing = n.judgeAnnounced(q.Self)
		}
	default:
		return answer{Error: fmt.Sprintf("a question of kind %.63q is not known", q.Kind)}
	}
	return a
}

func (n *Node) replyDigest(a *answer, q *question) error {
	other, err := digestOf(q.Digest)
	if err != nil {
		return err
	}
	if q.To != n.claim.Instance() {
		return errors.New("the node has another data directory than the one that was asked")
	}
	r := n.hosted.of(q.Group)
	if r == nil {
		return errors.New("the replica is not open")
	}
	o := r.suspect(q.Index, other)
	a.Known, a.Applied = o.Known, o.Index
	if o.Known {
		a.Digest = hex.EncodeToString(o.Digest[:])
	}
	return nil
}

func digestOf(text string) (digest [16]byte, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(digest) {
		return digest, fmt.Errorf("%.63q is not a digest", text)
	}
	return [16]byte(b), nil
}

// consult asks another replica of a group for its digest.
func (n *Node) consult(groupID string) agreement.Consult {
	return func(ctx context.Context, m group.Member, index uint64, own [16]byte) (o agreement.Opinion, err error) {
		a, err := n.askNode(ctx, m.ID, question{
			Kind: askDigest, Group: groupID, To: m.Instance, Index: index, Digest: hex.EncodeToString(own[:]),
		})
		if err != nil {
			return o, err
		}
		o.Index, o.Known = a.Applied, a.Known
		if a.Known {
			o.Digest, err = digestOf(a.Digest)
		}
		return o, err
	}
}
