package control

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/partition/group"
	"github.com/quorate/quorate/quotaerr"
)

// Propose has a command applied. It fills in what the command lacks of id, wall time and basis, so that the
// same command can be proposed again when the outcome is unknown. Errors are of type *quotaerr.Error; one
// whose cause is a *state.Refusal was decided by the state machine, and comes with its result.
func (c *Control) Propose(ctx context.Context, cmd *state.Command) (state.Result, error) {
	if cmd.ID == (state.CommandID{}) {
		_, _ = rand.Read(cmd.ID[:]) // never fails
	}
	if cmd.WallNanos == 0 {
		cmd.WallNanos = c.cfg.WallNanos()
	}
	applied, err := c.propose(ctx, cmd)
	if err != nil {
		return state.Result{}, err
	}
	if refused := applied.Result.Refused; refused != nil {
		return applied.Result, quotaerr.Wrap(refused.Reason(), refused, "%s", refused.Message)
	}
	return applied.Result, nil
}

// propose hands a command to the log and waits for what Apply made of it.
func (c *Control) propose(ctx context.Context, cmd *state.Command) (*Applied, error) {
	if err := ctx.Err(); err != nil {
		return nil, quotaerr.Wrap(quotaerr.NoQuorum, err, "the control group was not asked: there was no time left")
	}
	cmd.Basis = c.replica.basis()
	data := state.AppendCommand(nil, cmd)
	if most := cmd.Kind.MaxBytes(); len(data) > most {
		return nil, quotaerr.New(quotaerr.InvalidArgument, "the command has %d bytes: at most %d are possible",
			len(data), most)
	}
	p := c.group.Propose(data)
	select {
	case <-p.Done():
	case <-ctx.Done():
		return nil, quotaerr.Wrap(quotaerr.OutcomeUnknown, ctx.Err(),
			"the control group has not answered in time: propose the same command again")
	}
	out, err := p.Result()
	if err != nil {
		return nil, c.failure(err)
	}
	applied, ok := out.(*Applied)
	if !ok || applied == nil {
		return nil, quotaerr.New(quotaerr.OutcomeUnknown, "this node has stopped applying: ask another")
	}
	return applied, nil
}

// Leading is nil while this node leads the control group, else the error with which Propose would answer: that it
// does not, and who does.
func (c *Control) Leading() error {
	if c.group.Leadership().Term != 0 {
		return nil
	}
	return c.failure(group.ErrNotLeader)
}

// failure is the public error of a proposal without a result.
func (c *Control) failure(err error) error {
	if !errors.Is(err, group.ErrNotLeader) {
		return quotaerr.Wrap(quotaerr.OutcomeUnknown, err,
			"the fate of the command is not known: propose the same command again")
	}
	leader, known := c.group.Leader()
	if !known {
		return quotaerr.Wrap(quotaerr.NoQuorum, err, "no leader of the control group is known: try again")
	}
	e := quotaerr.Wrap(quotaerr.NotLeader, err, "node %s leads the control group: ask it", leader.ID)
	e.Leader = leader.ID
	if n, ok := c.State().Node(leader.ID); ok {
		e.LeaderAddr = n.GRPC
	}
	return e
}

// Read is the state as of an entry that was committed after the call began.
func (c *Control) Read(ctx context.Context) (*state.State, error) {
	applied, err := c.confirm.ask(ctx)
	if err != nil {
		return nil, err
	}
	return applied.State, nil
}

// Confirmation is a policy revision that was in force after the call to Confirm began.
type Confirmation struct {
	Revision *state.Revision // nil before the first publish
	Version  uint64          // of the state
	Map      uint64          // map version
	Index    uint64          // of the entry that proved it
}

// Confirm tells which policy revision is in force, as of an entry that was committed after the call began.
// It is what a policy lease rests on.
func (c *Control) Confirm(ctx context.Context) (Confirmation, error) {
	applied, err := c.confirm.ask(ctx)
	if err != nil {
		return Confirmation{}, err
	}
	return Confirmation{
		Revision: applied.State.InForce(), Version: applied.State.Version, Map: applied.State.MapVersion,
		Index: applied.Result.Index,
	}, nil
}
