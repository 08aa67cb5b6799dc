package partition

import (
	"slices"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// What an owner and a replica do where a guard is off. The product has no such place, and nothing of this is in its
// program.

// answerEarly answers the checks of an entry as the state stands: see guard.AnswerAfterCommit. In the place of those
// that it has answered are others.
func (o *owner) answerEarly(batch []*request, e *fsm.Entry) []*request {
	out := slices.Clone(batch)
	o.replica.view(func(m *fsm.Machine, _ uint64) {
		for i, r := range batch {
			if r.check == nil || r.foreseen != nil {
				continue
			}
			if d, denied := m.Foresee(r.check, e.Stamp); denied || d.Allowed() {
				answer([]*request{r}, outcome{decision: &d})
				out[i] = &request{check: r.check, done: make(chan outcome, 1)}
			}
		}
	})
	return out
}

// installHere puts a policy in force on this replica alone: see guard.PolicyInLog.
func (r *Replica) installHere(ref fsm.PolicyRef, found *policy.Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.machine.Step(0, &fsm.Entry{
		Kind: fsm.KindInstall, Stamp: r.machine.Now(), WallBound: r.machine.WallBound(),
		Install: &fsm.Install{PolicyRef: ref, Policy: found},
	})
	r.revision.Store(uint64(r.machine.Revision()))
}
