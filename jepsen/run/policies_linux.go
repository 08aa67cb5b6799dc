package run

import (
	"context"
	"errors"
	"sync"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/workload"
)

// publisher puts policies in force, one at a time, and records which there were.
type publisher struct {
	run *run

	mu       sync.Mutex // guards the fields below
	policies *cluster.Policies
	recorded int               // revisions
	doubt    *history.Revision // of which nobody knows whether it was made; nothing is published after it
}

var _ workload.Publisher = (*publisher)(nil)

func newPublisher(r *run, p *cluster.Policies) *publisher { return &publisher{run: r, policies: p} }

// Present is the newest policy.
func (p *publisher) Present() history.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.policies.Present()
}

// Number is that of the newest revision.
func (p *publisher) Number() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.policies.Revisions())
}

var errInDoubt = errors.New("it is not known whether the revision before was made: nothing is published any more")

// Apply puts a policy in force, and waits until nobody decides under an older one. When it fails the revision may have
// been made all the same, and nothing more is published.
func (p *publisher) Apply(ctx context.Context, next history.Policy) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.doubt != nil {
		return errInDoubt
	}
	began := p.run.now()
	if err := p.policies.Apply(ctx, next); err != nil {
		p.doubt = &history.Revision{
			Number: uint64(len(p.policies.Revisions()) + 1), Policy: next, Began: began, Active: history.Never,
		}
		p.run.say("policy %s: %v", next.Version, err)
		return err
	}
	if err := p.run.recorder.Event(&history.Event{
		At: began, Until: p.run.now(), Kind: "policy", What: next.Version, Value: uint64(len(p.policies.Revisions())),
	}); err != nil {
		return err
	}
	return p.recordMore()
}

// record records the revisions that there have been since it was last done, and the one that is in doubt: a decision
// under it tells that it was made.
func (p *publisher) record() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.recordMore(); err != nil || p.doubt == nil {
		return err
	}
	return p.run.recorder.Revision(p.doubt)
}

// recordMore needs mu.
func (p *publisher) recordMore() error {
	for _, v := range p.policies.Revisions()[p.recorded:] {
		if err := p.run.recorder.Revision(&v); err != nil {
			return err
		}
		p.recorded++
	}
	return nil
}
