package partition

import (
	"github.com/quorate/quorate/clock"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/guard"
	"github.com/quorate/quorate/quotaerr"
)

// PolicyLease is a node's permission to decide: while it runs, no revision above Revision is taken for active
// everywhere. A leader may stamp checks while the partition's revision is at least Revision and Lease is valid
// at a reading that was not taken before the stamp was drawn.
type PolicyLease struct {
	Revision fsm.Revision
	Lease    clock.Lease // the zero lease never runs
	// Disowned: as the node knows the cluster, the partition owns no slot. It takes back what was granted before.
	Disowned bool
}

// permitted is why this node may not stamp checks now; nil when it may. It is to be asked after the stamp has
// been drawn.
//
// A lease for a revision that the partition has yet to install takes nothing back: the last one for which the
// partition was new enough is good until its own end, so the install of a revision interrupts nothing.
func (o *owner) permitted() error {
	if !guard.On(guard.PolicyLease) {
		return nil
	}
	now, installed := o.source.Read(), o.replica.Revision()
	lease := o.lease()
	disowned := lease.Disowned
	lease.Disowned = false
	o.disowned.Store(disowned)
	held := o.held.Load()
	if lease.Revision <= installed && (held == nil || *held != lease) {
		fresh := lease
		o.held.Store(&fresh)
	}
	switch {
	case disowned:
		o.unpermitted.Store(false)
		return quotaerr.New(quotaerr.WrongEpoch,
			"the partition owns no slots, as the cluster has it: re-route, with the same decision id")
	case lease.Revision <= installed:
	case held != nil && held.Lease.Valid(now):
		lease = *held
	default:
		o.unpermitted.Store(true)
		return quotaerr.New(quotaerr.PolicyLeaseExpired,
			"the partition is at policy revision %d and has yet to install %d: nothing was consumed", installed, lease.Revision)
	}
	if !lease.Lease.Valid(now) {
		o.unpermitted.Store(true)
		return quotaerr.New(quotaerr.PolicyLeaseExpired,
			"the leader has not been told lately that its policy is the present one: nothing was consumed")
	}
	o.unpermitted.Store(false)
	return nil
}

// refuseChecks answers the checks of a batch with err, and returns the rest.
func refuseChecks(batch []*request, err error) (peeks []*request) {
	var checks []*request
	for _, r := range batch {
		if r.check != nil {
			checks = append(checks, r)
		} else {
			peeks = append(peeks, r)
		}
	}
	answer(checks, outcome{err: err})
	return peeks
}
