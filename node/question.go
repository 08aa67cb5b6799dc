package node

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/partition"
	"github.com/quorate/quorate/partition/group"
)

// Nodes ask each other questions on their Raft ports, whether or not they have a replica yet: what a start
// has to know before it may open one, and what has to be compared between replicas. Question and answer
// are JSON, of one version, with no field that the other side does not know.
const questionVersion = 1

// The kinds of question.
const (
	askWho    = "who"    // who are you, and how do you stand
	askDigest = "digest" // which digest has your state at an index
)

// question is what one node asks another.
type question struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
	Group   string `json:"group"`
	// Instance is that of the asker's data directory.
	Instance string `json:"instance"`
	// To, Index and Digest are for askDigest: the instance that is asked, the log index, and the asker's own
	// digest there, in hexadecimal.
	To     string `json:"to,omitempty"`
	Index  uint64 `json:"index,omitempty"`
	Digest string `json:"digest,omitempty"`
}

// answer is what a node says. Error excludes everything else.
type answer struct {
	Version  int    `json:"version"`
	Error    string `json:"error,omitempty"`
	Node     string `json:"node"`
	Instance string `json:"instance"` // of its data directory
	// Nodes are the configured ones, in the order in which they are written.
	Nodes []string `json:"nodes"`
	Level uint32   `json:"level"` // the highest feature level that its program knows
	// Has says that the group's stores are in its data directory. Replica is there once it has opened them.
	Has     bool           `json:"has"`
	Replica *replicaAnswer `json:"replica,omitempty"`
	// Acknowledged is how far the asker's instance is known to have had the group's log on its disk.
	Acknowledged positionAnswer `json:"acknowledged"`
	DiskLow      bool           `json:"disk_low"`
	// Known, Digest and Applied answer askDigest: Applied is the log index up to which the replica has
	// applied the log.
	Known   bool   `json:"known,omitempty"`
	Digest  string `json:"digest,omitempty"`
	Applied uint64 `json:"applied,omitempty"`
}

// replicaAnswer is how a replica stands.
type replicaAnswer struct {
	Term uint64 `json:"term"`
	Last uint64 `json:"last"` // index of the last entry in its log
	// Leads says that it leads and may decide. Born says that the partition has been made.
	Leads bool `json:"leads"`
	Born  bool `json:"born"`
	// Stopped is why it has stopped for good; empty while it has not.
	Stopped string         `json:"stopped,omitempty"`
	Members []memberAnswer `json:"members"`
}

// memberAnswer is one replica of the group.
type memberAnswer struct {
	Node     string `json:"node"`
	Instance string `json:"instance"`
	Learner  bool   `json:"learner"`
}

type positionAnswer struct {
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
}

// lists tells which instance of a node is a member.
func (r *replicaAnswer) lists(node string) (memberAnswer, bool) {
	for _, m := range r.Members {
		if m.Node == node {
			return m, true
		}
	}
	return memberAnswer{}, false
}

// waits says that the node has a replica that is no member yet.
func (a *answer) waits() bool {
	if a.Replica == nil || a.Replica.Stopped != "" {
		return false
	}
	m, listed := a.Replica.lists(a.Node)
	return !listed || m.Instance != a.Instance
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

// ask asks another node.
func (n *Node) ask(ctx context.Context, peer Peer, q question) (*answer, error) {
	q.Version, q.Group, q.Instance = questionVersion, n.cfg.Partition.ID, n.claim.Instance()
	src, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	body, err := n.listener.Ask(ctx, peer.ID, peer.Raft, src)
	if err != nil {
		return nil, err
	}
	a := &answer{}
	if err := decodeVersion(body, questionVersion, a); err != nil {
		return nil, fmt.Errorf("the answer of node %s: %w", peer.ID, err)
	}
	if a.Error != "" {
		return nil, fmt.Errorf("node %s: %s", peer.ID, a.Error)
	}
	if a.Node != peer.ID || a.Instance == "" {
		return nil, fmt.Errorf("node %q answers in the place of %s: check the addresses", a.Node, peer.ID)
	}
	return a, nil
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
	a := answer{
		Node: n.cfg.ID, Instance: n.claim.Instance(), Level: uint32(fsm.MaxLevel),
		Nodes: n.cfg.ids(), DiskLow: n.diskLow.Load(),
	}
	switch {
	case q.Group != n.cfg.Partition.ID:
		return answer{Error: fmt.Sprintf("its partition is %s, not %.63q: configure all nodes alike",
			n.cfg.Partition.ID, q.Group)}
	case q.Kind == askDigest:
		if err := n.replyDigest(&a, &q); err != nil {
			return answer{Error: err.Error()}
		}
		return a
	case q.Kind != askWho:
		return answer{Error: fmt.Sprintf("a question of kind %.63q is not known", q.Kind)}
	}
	a.Has = n.has.Load() && !n.empty.Load()
	asker := group.Member{ID: from, Instance: q.Instance}
	acked := n.memory.of(asker)
	if g := n.group.Load(); g != nil {
		if p := g.Acknowledged(asker); acked.Before(p) {
			acked = p
		}
		a.Replica = n.standing(g)
		// A log without a single entry has acknowledged nothing: it is no reason not to form a cluster.
		a.Has = a.Replica.Last > 0
	}
	a.Acknowledged = positionAnswer(acked)
	return a
}

// standing is how this node's replica stands.
func (n *Node) standing(g *group.RaftGroup) *replicaAnswer {
	s := g.Status()
	r := &replicaAnswer{
		Term: s.Term, Last: s.LastIndex, Leads: g.Leadership().Ready, Members: []memberAnswer{},
	}
	for _, m := range g.Members() {
		r.Members = append(r.Members, memberAnswer{m.ID, m.Instance, m.Learner})
	}
	if p := n.partition.Load(); p != nil {
		st := p.Status()
		r.Born, r.Stopped = st.Born, st.Diverged
	}
	return r
}

func (n *Node) replyDigest(a *answer, q *question) error {
	other, err := digestOf(q.Digest)
	if err != nil {
		return err
	}
	if q.To != n.claim.Instance() {
		return errors.New("the node has another data directory than the one that was asked")
	}
	p := n.partition.Load()
	if p == nil {
		return errors.New("the replica is not open yet")
	}
	o := p.Suspect(q.Index, other)
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

// consult asks another replica for its digest. It is the partition's Consult.
func (n *Node) consult(
	ctx context.Context, m group.Member, index uint64, own [16]byte,
) (o partition.Opinion, err error) {
	peer, ok := n.cfg.peer(m.ID)
	if !ok {
		return o, fmt.Errorf("node %s is not configured: add it to nodes", m.ID)
	}
	a, err := n.ask(ctx, peer, question{
		Kind: askDigest, To: m.Instance, Index: index, Digest: hex.EncodeToString(own[:]),
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
