package state

import (
	"fmt"
	"slices"
)

// Machine applies commands. One goroutine at a time may use it; the states that it gives out are for all.
type Machine struct {
	s   *State
	ids map[CommandID]*recorded
}

// New is the machine before the first command.
func New() *Machine {
	return &Machine{s: &State{Level: BirthLevel}, ids: map[CommandID]*recorded{}}
}

// State is the present state.
func (m *Machine) State() *State { return m.s }

// change is a state in the making.
type change struct {
	State
	result Result
	// object is what the command is about, difference what it changes if the command itself does not say so, and
	// message what it made; for the audit trail.
	object, difference, message string

	next uint64 // map version, if it is to grow
}

// Apply applies the command in the log entry at index. The record, if any, is to be kept.
func (m *Machine) Apply(index uint64, c *Command) (Result, *Record) {
	if r, ok := m.ids[c.ID]; ok {
		again := r.result
		again.Repeated = true
		return again, nil
	}
	action := c.Kind.action()
	ch := &change{State: *m.s}
	refused := c.check()
	if refused == nil && !m.s.Born && c.Kind != KindInit && c.Kind != KindConfirm && c.Kind != KindAttempt {
		refused = refuse(CodeUnborn, "there is no cluster yet: run cluster init")
	}
	if refused == nil {
		refused = ch.apply(c)
	}
	if refused != nil {
		ch = &change{State: *m.s, object: ch.object, difference: ch.difference}
	}
	r := &ch.result
	r.Refused = refused
	if action == "" {
		if ch.elements != m.s.elements || ch.BodyEpoch != m.s.BodyEpoch { // not for what was known
			ch.Version++
			m.s = &ch.State
		}
		ch.finish(index)
		return *r, nil
	}
	ch.Version++
	if ch.next != 0 {
		ch.MapVersion = ch.next
	}
	rec := c.record(index, action, ch.object, refused)
	if refused == nil && rec.Message == "" {
		rec.Message = cut(ch.message, MaxMessageBytes)
	}
	if rec.Difference == "" {
		rec.Difference = cut(ch.difference, MaxDifferenceBytes)
	}
	ch.AuditCount++
	ch.AuditHash = NextHash(ch.AuditHash, rec)
	ch.finish(index)
	m.remember(ch, c.ID)
	m.s = &ch.State
	return *r, rec
}

// finish fills in what every result tells.
func (ch *change) finish(index uint64) {
	ch.result.Index, ch.result.Version, ch.result.Map = index, ch.Version, ch.MapVersion
	ch.result.Revision = ch.RevisionNumber()
}

// remember keeps the result for a command that is sent again.
func (m *Machine) remember(ch *change, id CommandID) {
	if id == (CommandID{}) {
		return
	}
	r := &recorded{id: id, result: ch.result}
	ch.recorded = append(ch.recorded, r)
	ch.elements.add(hashOf(tagRecorded, r, (*codec).recorded))
	m.ids[id] = r
	if len(ch.recorded) > MaxRecorded {
		oldest := ch.recorded[0]
		ch.recorded = ch.recorded[1:]
		ch.elements.sub(hashOf(tagRecorded, oldest, (*codec).recorded))
		delete(m.ids, oldest.id)
	}
}

// record is the audit trail's line about the command. What is over a bound was refused for it, and is cut.
func (c *Command) record(index uint64, action, object string, refused *Refusal) *Record {
	r := &Record{
		Index: index, WallNanos: c.WallNanos, Actor: cut(c.Actor, MaxActorBytes), Action: action,
		Object: cut(object, MaxObjectBytes), Comment: cut(c.Comment, MaxCommentBytes),
		Difference: cut(c.Difference, MaxDifferenceBytes), Result: CodeNone.String(),
	}
	if c.Kind == KindAttempt && c.Attempt != nil {
		r.Action, r.Result, r.Message = cut(c.Attempt.Action, MaxActionBytes), "refused",
			cut(c.Attempt.Reason, MaxCommentBytes)
	}
	if c.Kind == KindNote && c.Act != nil {
		r.Action, r.Message = cut(c.Act.Action, MaxActionBytes), cut(c.Act.Message, MaxMessageBytes)
	}
	if refused != nil {
		r.Result, r.Message = refused.Code.String(), cut(refused.Message, 2*MaxCommentBytes)
	}
	return r
}

func cut(s string, maxBytes int) string {
	if len(s) <= maxBytes {
		return s
	}
	for maxBytes > 0 && s[maxBytes]&0xC0 == 0x80 { // not within a character
		maxBytes--
	}
	return s[:maxBytes]
}

// apply does what the command says, to a state that is thrown away when it refuses.
func (ch *change) apply(c *Command) *Refusal {
	ch.object = c.object()
	switch c.Kind {
	case KindConfirm, KindAttempt, KindNote:
		return nil
	case KindInit:
		return ch.init(c.Init)
	case KindPutNode:
		return ch.putNode(c.Node)
	case KindLoseNode:
		return ch.loseNode(c.NodeID, c.Instance)
	case KindNodeState:
		return ch.nodeState(c.NodeID, c.State)
	case KindCreate:
		return ch.create(c.Create)
	case KindRetire:
		return ch.retire(c.Partition)
	case KindReplicas:
		return ch.setReplicas(c.Partition, c.Replicas)
	case KindStartPlan:
		return ch.startPlan(c, c.Start)
	case KindDecidePlan:
		return ch.decidePlan(c.Plan, c.Decide)
	case KindAbortPlan:
		return ch.abortPlan(c)
	case KindClosePlan:
		return ch.closePlan(c)
	case KindPublish:
		return ch.publish(c, c.Publish)
	case KindSwitchClass:
		return ch.switchClass(c, c.Switch)
	case KindRollback:
		return ch.rollback(c, c.Rollback)
	case KindInstalled:
		return ch.installed(c.Installed)
	case KindSweep:
		return ch.sweep(c.Epoch)
	case KindRaise:
		return ch.raise(c.Level)
	case KindPutToken:
		return ch.putToken(c.Token, c.WallNanos)
	case KindRevokeToken:
		return ch.revokeToken(c.TokenID)
	}
	return refuse(CodeInvalid, "kind %d is unknown", c.Kind)
}

// object is what the command is about, for the audit trail.
func (c *Command) object() string {
	switch c.Kind {
	case KindInit:
		return "cluster " + c.Init.Cluster
	case KindPutNode:
		return "node " + c.Node.ID
	case KindLoseNode, KindNodeState:
		return "node " + c.NodeID
	case KindRetire, KindReplicas:
		return "partition " + c.Partition.String()
	case KindStartPlan:
		return c.Start.object()
	case KindDecidePlan, KindAbortPlan, KindClosePlan:
		return fmt.Sprintf("plan %d", c.Plan)
	case KindPublish:
		return "policy " + c.Publish.Label
	case KindSwitchClass:
		return "class " + c.Switch.Class
	case KindRollback:
		return fmt.Sprintf("revision %d", c.Rollback.To)
	case KindAttempt:
		return c.Attempt.Object
	case KindRaise:
		return fmt.Sprintf("level %d", c.Level)
	case KindPutToken:
		return "token " + c.Token.ID
	case KindRevokeToken:
		return "token " + c.TokenID
	case KindNote:
		return c.Act.Object
	case KindCreate:
		return "partition"
	case KindConfirm, KindInstalled, KindSweep:
	}
	return ""
}

// check refuses a command whose own words are beyond a bound, whatever the state.
func (c *Command) check() *Refusal {
	for _, f := range []struct {
		name, text string
		maxBytes   int
	}{
		{"actor", c.Actor, MaxActorBytes},
		{"comment", c.Comment, MaxCommentBytes},
		{"difference", c.Difference, MaxDifferenceBytes},
	} {
		if r := checkName(f.name, f.text, f.maxBytes, true); r != nil {
			return r
		}
	}
	switch c.Kind {
	case KindAttempt:
		return checkWords(c.Attempt.Action, c.Attempt.Object, "reason", c.Attempt.Reason, MaxCommentBytes)
	case KindNote:
		return checkWords(c.Act.Action, c.Act.Object, "message", c.Act.Message, MaxMessageBytes)
	default:
		return nil
	}
}

// checkWords refuses words for the audit trail that are beyond a bound.
func checkWords(action, object, field, text string, maxBytes int) *Refusal {
	if r := checkName("action", action, MaxActionBytes, false); r != nil {
		return r
	}
	if r := checkName("object", object, MaxObjectBytes, true); r != nil {
		return r
	}
	return checkName(field, text, maxBytes, true)
}

func (ch *change) init(i *Init) *Refusal {
	if ch.Born {
		return refuse(CodeConflict, "this is cluster %s already: it is made only once", ch.Cluster)
	}
	if r := checkID("cluster id", i.Cluster, false); r != nil {
		return r
	}
	if i.Incarnation == 0 {
		return refuse(CodeInvalid, "the incarnation is 0: it must be from 1")
	}
	if i.Restored == nil && i.Seed == ([16]byte{}) {
		return refuse(CodeInvalid, "the seed is zero: draw one at random")
	}
	ch.Born, ch.Cluster, ch.Incarnation, ch.Seed = true, i.Cluster, i.Incarnation, i.Seed
	if i.Restored != nil {
		if r := ch.takeOver(i); r != nil {
			return r
		}
	}
	ch.remap()
	return nil
}

// raise puts the feature level up by one. Whether the program knows it, the replica has looked at before.
func (ch *change) raise(l Level) *Refusal {
	if l != ch.Level+1 {
		r := refuse(CodeConflict, "the feature level is %d, it rises one by one", ch.Level)
		r.Current = uint64(ch.Level)
		return r
	}
	ch.Level = l
	return nil
}

// remap notes that what gateways route by has changed.
func (ch *change) remap() { ch.next = ch.MapVersion + 1 }

func (ch *change) setNode(n *Node) {
	old, _ := ch.Node(n.ID)
	ch.elements.sub(hashOf(tagNode, old, (*codec).node))
	ch.elements.add(hashOf(tagNode, n, (*codec).node))
	ch.Nodes = with(ch.Nodes, n, nodeID)
}

func (ch *change) setPartition(p *Partition) {
	old, _ := ch.Partition(p.ID)
	ch.elements.sub(hashOf(tagPartition, old, (*codec).partition))
	ch.elements.add(hashOf(tagPartition, p, (*codec).partition))
	ch.Partitions = with(ch.Partitions, p, partitionID)
}

func (ch *change) setPlan(p *Plan) {
	old, _ := ch.Plan(p.ID)
	ch.elements.sub(hashOf(tagPlan, old, (*codec).plan))
	ch.elements.add(hashOf(tagPlan, p, (*codec).plan))
	ch.Plans = with(ch.Plans, p, planID)
}

func (ch *change) setToken(t *Token) {
	old, _ := ch.Token(t.ID)
	ch.elements.sub(hashOf(tagToken, old, (*codec).token))
	ch.elements.add(hashOf(tagToken, t, (*codec).token))
	ch.Tokens = with(ch.Tokens, t, tokenID)
}

// endPlan moves a plan to those that are remembered only.
func (ch *change) endPlan(p *Plan) {
	old, _ := ch.Plan(p.ID)
	ch.elements.sub(hashOf(tagPlan, old, (*codec).plan))
	ch.Plans = without(ch.Plans, p.ID, planID)
	ch.elements.add(hashOf(tagEnded, p, (*codec).plan))
	ch.Ended = append(slices.Clip(ch.Ended), p)
	if len(ch.Ended) > MaxEndedPlans {
		ch.elements.sub(hashOf(tagEnded, ch.Ended[0], (*codec).plan))
		ch.Ended = ch.Ended[1:]
	}
}
