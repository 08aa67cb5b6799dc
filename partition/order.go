package partition

import (
	"context"
	"errors"
	"fmt"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

// order is a rare entry that someone asks the owner to propose.
type order struct {
	ctx   context.Context
	entry *fsm.Entry
	done  chan result // holds one
}

// result is what an order came to.
type result struct {
	answers *fsm.Answers
	err     error
}

// Install puts a policy revision in force, if this node leads the partition, and returns when it has been
// applied here. It returns nil at once when that revision or a later one is in force already. The policy is
// found before the entry is proposed, so the log does not wait for it on this node. Errors of reason not_leader,
// no_quorum or overloaded say that nothing was proposed, and frozen that a plan holds the policy for a moment.
func (p *Partition) Install(ctx context.Context, ref fsm.PolicyRef) error {
	if ref.Revision <= p.Revision() {
		return nil
	}
	if p.group.Leadership().Term == 0 {
		return p.owner.notLeader()
	}
	found, err := p.cfg.Policy(ctx, ref)
	if err == nil {
		err = ref.Check(found)
	}
	if err != nil {
		return fmt.Errorf("partition %s: install policy revision %d: %w", p.cfg.ID, ref.Revision, err)
	}
	if !guard.On(guard.PolicyInLog) {
		p.replica.installHere(ref, found)
		return nil
	}
	_, err = p.owner.order(ctx, &fsm.Entry{Kind: fsm.KindInstall, Install: &fsm.Install{PolicyRef: ref}})
	return err
}

// Forgive drops the usage of a principal, if this node leads the partition. Errors are as those of Check; after
// outcome_unknown the usage may have been dropped, or be dropped yet.
func (p *Partition) Forgive(ctx context.Context, f fsm.Forgive) (fsm.Forgiven, error) {
	if err := fsm.ValidateForgive(&f); err != nil {
		return fsm.Forgiven{}, quotaerr.New(quotaerr.InvalidArgument, "%v", err)
	}
	if err := p.owner.silent(); err != nil {
		return fsm.Forgiven{}, err
	}
	answers, err := p.owner.order(ctx, &fsm.Entry{Kind: fsm.KindForgive, Forgive: &f})
	if err != nil {
		return fsm.Forgiven{}, err
	}
	out := answers.Forgiven
	if err := refusal(out.Reason, out.Detail, out.Epoch, 0); err != nil {
		return fsm.Forgiven{}, err
	}
	return *out, nil
}

// order has the owner propose an entry, and waits for its answers for as long as the caller does.
func (o *owner) order(ctx context.Context, e *fsm.Entry) (*fsm.Answers, error) {
	r := newOrder(ctx, e)
	if err := o.handIn(r); err != nil {
		return nil, err
	}
	return o.await(r)
}

func newOrder(ctx context.Context, e *fsm.Entry) *order {
	return &order{ctx: ctx, entry: e, done: make(chan result, 1)}
}

// await waits for the answers of an order that was handed in.
func (o *owner) await(r *order) (*fsm.Answers, error) {
	select {
	case out := <-r.done:
		return out.answers, out.err
	case <-r.ctx.Done():
	}
	select {
	case out := <-r.done: // it came at the same moment
		return out.answers, out.err
	default:
		return nil, quotaerr.Wrap(quotaerr.OutcomeUnknown, r.ctx.Err(),
			"the deadline passed while the entry was being committed: it may be applied or not")
	}
}

// handIn gives r to the owner's goroutine, which takes it unless it waits for its leadership to be ready.
func (o *owner) handIn(r *order) error {
	if err := r.ctx.Err(); err != nil {
		return o.gaveUp(err)
	}
	if o.group.Leadership().Term == 0 {
		return o.notLeader()
	}
	select {
	case o.orders <- r:
		return nil
	case <-o.ended:
		return errStopping()
	case <-r.ctx.Done():
		return o.gaveUp(r.ctx.Err())
	}
}

// carryOut proposes what was ordered. ready says that this node may stamp.
func (o *owner) carryOut(ctx context.Context, r *order, ready bool) {
	if !ready {
		r.done <- result{err: o.notLeader()}
		return
	}
	select {
	case o.slots <- struct{}{}:
	case <-r.ctx.Done():
		r.done <- result{err: o.gaveUp(r.ctx.Err())}
		return
	case <-ctx.Done():
		r.done <- result{err: errStopping()}
		return
	}
	if !o.lead() {
		<-o.slots
		r.done <- result{err: o.notLeader()}
		return
	}
	p, err := o.send(r.entry)
	if err != nil {
		<-o.slots
		r.done <- result{err: o.notLeader()}
		return
	}
	o.waiters.Go(func() {
		<-p.Done()
		o.progressed()
		<-o.slots
		answers, err := o.resultOf(p)
		r.done <- result{answers, err}
	})
}

// resultOf is what an entry came to: its answers, or an error that says whether it may still come to something.
func (o *owner) resultOf(p group.Proposal) (*fsm.Answers, error) {
	applied, err := p.Result()
	answers, ok := applied.(*fsm.Answers)
	if err == nil {
		err = o.halted() // what was computed may be wrong
	}
	switch {
	case errors.Is(err, group.ErrNotLeader):
		return nil, o.notLeader()
	case err != nil || !ok:
		return nil, quotaerr.Wrap(quotaerr.OutcomeUnknown, err,
			"what was asked for was proposed and its fate is unknown: ask again, a check with the same decision id")
	case answers.Refused == fsm.ReasonStaleTerm || answers.Refused == fsm.ReasonUnborn:
		// The entry reached the log in another leadership than the one that stamped it.
		return nil, o.notLeader()
	case answers.Refused != fsm.ReasonUnspecified:
		return nil, refusedEntry(answers)
	}
	return answers, nil
}

func errStopping() error {
	return quotaerr.New(quotaerr.NotLeader, "this node is stopping: ask another")
}
