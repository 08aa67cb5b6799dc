package sim

import "github.com/hashicorp/raft"

// votes checks each vote that is given: the candidate's log must not lack what is durable in the voter's.
func (c *cluster) votes(p *packet, answer any) {
	q, ok := p.command.(*raft.RequestVoteRequest)
	r, given := answer.(*raft.RequestVoteResponse)
	if !ok || !given || !r.Granted {
		return
	}
	n := c.byID(p.to.self.ID)
	n.mu.Lock()
	d := n.disk
	n.mu.Unlock()
	last := d.last()
	if q.LastLogTerm < last.Term || q.LastLogTerm == last.Term && q.LastLogIndex < last.Index {
		c.history.violate(voteHolds, "%s votes in term %d for %s whose log ends at %d (term %d), its own at %d (term %d)",
			n.id, q.Term, p.from.self.ID, q.LastLogIndex, q.LastLogTerm, last.Index, last.Term)
	}
}
