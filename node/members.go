package node

import (
	"slices"
	"time"

	"github.com/quorate/quorate/control/placement"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/partition/group"
)

// caughtUpEntries is how far behind the leader's last entry a learner may be to get its vote: an entry is
// a batch, and there are always some on their way.
const caughtUpEntries = 2

// caughtUp reports that a learner has what the leader has. Only an acknowledgement of the leader's term says that
// its log is a part of the leader's.
func caughtUp(acked, last group.Position) bool {
	return acked.Term == last.Term && acked.Index+caughtUpEntries >= last.Index
}

// membership is a group as the replica that leads it has it.
type membership struct {
	self    string // the leader's node
	members []group.Member
	last    group.Position                    // where the leader's log ends
	acked   func(group.Member) group.Position // how far a member has acknowledged
	up      func(group.Member) bool           // a member answers
}

// memberStep is one change of a group's members; kind 0 is none.
type memberStep struct {
	kind   stepKind
	member group.Member
}

type stepKind int

const (
	stepAdd stepKind = iota + 1
	stepPromote
	stepDemote
	stepRemove
	stepTransfer
	stepReaddress
)

func (k stepKind) String() string {
	return [...]string{"none", "add learner", "promote", "demote", "remove", "transfer leadership", "change address"}[k]
}

// step is the change that is due in a group.
func (m *membership) step(
	s *state.State, groupID string, nodes []placement.Node, replaceAfter time.Duration,
) memberStep {
	if step := m.commonStep(s); step.kind != 0 {
		return step
	}
	if groupID == controlID {
		return m.controlStep(s, nodes, replaceAfter)
	}
	i := slices.IndexFunc(s.Partitions, func(p *state.Partition) bool { return p.ID.String() == groupID })
	if i < 0 {
		return memberStep{}
	}
	return m.partitionStep(s, s.Partitions[i].Replicas)
}

// commonStep is what any group needs: no member with a data directory that was given up, and present addresses.
func (m *membership) commonStep(s *state.State) (none memberStep) {
	for _, member := range m.members {
		known, ok := s.Node(member.ID)
		switch {
		case !ok:
		case slices.Contains(known.Former, member.Instance):
			if member.ID != m.self && (member.Learner || m.keepsMajority(member.ID)) {
				return memberStep{stepRemove, member}
			}
		case known.Instance == member.Instance && known.Raft != member.Addr:
			member.Addr = known.Raft
			return memberStep{stepReaddress, member}
		}
	}
	return none
}

// partitionStep is the change that is due in a partition that is to have its replicas on the nodes wanted: who is
// missing is added, learns and gets its vote; only when all have theirs does who is not wanted go.
func (m *membership) partitionStep(s *state.State, wanted []string) (none memberStep) {
	complete := true
	for _, id := range wanted {
		known, ok := s.Node(id)
		if !ok || known.Instance == "" {
			complete = false
			continue
		}
		member, there := memberOf(m.members, id)
		switch {
		case !there:
			return memberStep{stepAdd, group.Member{ID: id, Instance: known.Instance, Addr: known.Raft}}
		case member.Learner && m.up(member) && caughtUp(m.acked(member), m.last):
			return memberStep{stepPromote, member}
		case member.Learner:
			complete = false
		}
	}
	for _, member := range m.members {
		if slices.Contains(wanted, member.ID) {
			continue
		}
		switch {
		case member.Learner:
			return memberStep{stepRemove, member}
		case !complete || !m.keepsMajority(member.ID):
		case member.ID != m.self:
			return memberStep{stepRemove, member}
		default: // a leader does not remove itself
			if to, ok := m.successor(wanted); ok {
				return memberStep{stepTransfer, to}
			}
		}
	}
	return none
}

// controlStep is the change that is due in the control group.
func (m *membership) controlStep(
	s *state.State, nodes []placement.Node, replaceAfter time.Duration,
) (none memberStep) {
	if !s.Born {
		return none
	}
	in := placement.ControlInput{Nodes: nodes, Leader: m.self, ReplaceAfterNanos: int64(replaceAfter)}
	for _, member := range m.members {
		in.Members = append(in.Members, placement.Member{
			Node: member.ID, Learner: member.Learner, CaughtUp: member.Learner && caughtUp(m.acked(member), m.last),
		})
	}
	step, ok := placement.NextControl(in)
	if !ok {
		return none
	}
	member, there := memberOf(m.members, step.Node)
	if known, ok := s.Node(step.Node); !there && ok {
		member = group.Member{ID: known.ID, Instance: known.Instance, Addr: known.Raft}
	}
	kinds := map[placement.Kind]stepKind{
		placement.AddLearner: stepAdd, placement.Promote: stepPromote, placement.Demote: stepDemote,
		placement.Remove: stepRemove, placement.TransferLeader: stepTransfer,
	}
	return memberStep{kinds[step.Kind], member}
}

// keepsMajority reports that the group could commit without a voter: else it would be stuck between its old
// members and its new.
func (m *membership) keepsMajority(without string) bool {
	voters, up := m.votersUp(without)
	return 2*up > voters
}

// votersUp counts the voters but one, and how many of them answer.
func (m *membership) votersUp(without string) (voters, up int) {
	for _, member := range m.members {
		if member.Learner || member.ID == without {
			continue
		}
		voters++
		if m.up(member) {
			up++
		}
	}
	return voters, up
}

// successor is a voter among wanted that could lead.
func (m *membership) successor(wanted []string) (group.Member, bool) {
	for _, member := range m.members {
		if !member.Learner && member.ID != m.self && slices.Contains(wanted, member.ID) && m.up(member) {
			return member, true
		}
	}
	return group.Member{}, false
}

func memberOf(members []group.Member, node string) (group.Member, bool) {
	for _, m := range members {
		if m.ID == node {
			return m, true
		}
	}
	return group.Member{}, false
}
