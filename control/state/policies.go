package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// publish puts a new body in force.
func (ch *change) publish(c *Command, p *Publish) *Refusal {
	if r := ch.checkBase(p.Base); r != nil {
		return r
	}
	if r := checkName("label", p.Label, MaxLabelBytes, false); r != nil {
		return r
	}
	if p.Bytes < 1 || p.Bytes > MaxBodyBytes {
		return refuse(CodeInvalid, "the policy has %d bytes: at most %d are possible", p.Bytes, MaxBodyBytes)
	}
	if p.Body == (Digest{}) {
		return refuse(CodeInvalid, "the policy has no digest")
	}
	if ch.labelled(p.Label) {
		return refuse(CodeConflict, "a policy with version %q was published before: give this one another", p.Label)
	}
	if r := ch.checkHeld(p.Held, p.BodyEpoch); r != nil {
		return r
	}
	ch.enact(c, &Revision{Label: p.Label, Kind: RevisionPublish, Body: p.Body, Bytes: p.Bytes})
	return nil
}

// switchClass keeps the body and sets one class.
func (ch *change) switchClass(c *Command, s *SwitchClass) *Refusal {
	if r := ch.checkBase(s.Base); r != nil {
		return r
	}
	if r := checkName("class", s.Class, policy.MaxClassBytes, false); r != nil {
		return r
	}
	now := ch.InForce()
	if now == nil {
		return refuse(CodeNotFound, "there is no policy yet: run policy apply first")
	}
	switches := slices.Clone(now.Switches)
	i, found := slices.BinarySearchFunc(switches, s.Class, func(have Switch, class string) int {
		return strings.Compare(have.Class, class)
	})
	switch {
	case found:
		switches[i].Disabled = s.Disabled
	case len(switches) > policy.MaxClasses: // each listed one, and default
		return refuse(CodeBound, "%d classes are switched: publish a policy that says so instead", len(switches))
	default:
		switches = slices.Insert(switches, i, Switch{Class: s.Class, Disabled: s.Disabled})
	}
	verb := "enable"
	if s.Disabled {
		verb = "disable"
	}
	ch.enact(c, &Revision{
		Label: ch.madeLabel(verb + "-" + s.Class), Kind: RevisionSwitch, Body: now.Body, Bytes: now.Bytes, Switches: switches,
	})
	return nil
}

// rollback puts an older revision's body and switches in force again.
func (ch *change) rollback(c *Command, b *Rollback) *Refusal {
	if r := ch.checkBase(b.Base); r != nil {
		return r
	}
	old, ok := ch.Revision(b.To)
	if !ok {
		return refuse(CodeNotFound, "revision %d is not in the history: see policy list", b.To)
	}
	if b.To == b.Base {
		return refuse(CodeInvalid, "revision %d is in force: name an older one", b.To)
	}
	if _, kept := ch.Wants()[old.Body]; !kept {
		return refuse(CodeNotFound, "the policy of revision %d is too old to be kept: publish it again", b.To)
	}
	if r := ch.checkHeld(b.Held, b.BodyEpoch); r != nil {
		return r
	}
	ch.enact(c, &Revision{
		Label: ch.madeLabel("rollback-to-" + old.Label), Kind: RevisionRollback,
		Body: old.Body, Bytes: old.Bytes, Switches: old.Switches, Of: old.Number,
	})
	return nil
}

// enact makes r the revision in force.
func (ch *change) enact(c *Command, r *Revision) {
	r.Base = ch.RevisionNumber()
	r.Number = r.Base + 1
	r.Author, r.WallNanos, r.Comment = c.Actor, c.WallNanos, c.Comment
	// A longer list may share memory with this one: who holds this one does not see beyond its end.
	ch.Revisions = append(ch.Revisions, r)
	ch.elements.add(hashOf(tagRevision, r, (*codec).revision))
	if len(ch.Revisions) > MaxRevisions {
		ch.elements.sub(hashOf(tagRevision, ch.Revisions[0], (*codec).revision))
		ch.Revisions = ch.Revisions[1:]
	}
	ch.message = fmt.Sprintf("revision %d, version %s", r.Number, r.Label)
}

// checkBase refuses what was not made against the revision in force.
func (ch *change) checkBase(base fsm.Revision) *Refusal {
	now := ch.RevisionNumber()
	if base == now {
		return nil
	}
	r := refuse(CodeStale, "policy revision %d is in force, not %d: look at it, then repeat", now, base)
	r.Current = uint64(now)
	return r
}

// checkHeld refuses a body that a majority is not known to hold. What it said in the last body epoch but
// one counts no longer: the body may have been swept since.
func (ch *change) checkHeld(held bool, epoch uint64) *Refusal {
	if !held || epoch > ch.BodyEpoch || ch.BodyEpoch-epoch > 1 {
		return refuse(CodeNotHeld, "no majority is known to hold the policy's body: send it again, then repeat")
	}
	return nil
}

func (ch *change) labelled(label string) bool {
	return slices.ContainsFunc(ch.Revisions, func(r *Revision) bool { return r.Label == label })
}

// madeLabel is a label that is not in the history: the words, and the number that the revision will have.
func (ch *change) madeLabel(words string) string {
	number := ch.RevisionNumber() + 1
	for n := 0; ; n++ {
		suffix := fmt.Sprintf("-r%d", number)
		if n > 0 {
			suffix = fmt.Sprintf("-r%d.%d", number, n)
		}
		label := cut(words, MaxLabelBytes-len(suffix)) + suffix
		if !ch.labelled(label) {
			return label
		}
	}
}

// sweep ends a body epoch: bodies that nobody wants, and that were last asked for before it, may go.
func (ch *change) sweep(epoch uint64) *Refusal {
	if epoch != ch.BodyEpoch {
		r := refuse(CodeConflict, "the body epoch is %d, not %d", ch.BodyEpoch, epoch)
		r.Current = ch.BodyEpoch
		return r
	}
	ch.BodyEpoch++
	return nil
}
