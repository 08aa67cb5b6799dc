package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

const (
	forgiveAction = "usage.forgive"
	// maxForgiveTries bounds how often one call tries to be the next to begin an act that was not done before.
	maxForgiveTries = 16
)

var forgiveID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$`)

// forgiveness is one act of forgiving. The audit trail has its beginning before anything is dropped, under a
// command id that is made of the act's own, so that only one beginning is the first; and its end. An act that
// was begun before is done again only if the trail says that it was certainly not done.
type forgiveness struct {
	who    rpc.Actor
	id     string
	fsm    fsm.Forgive
	reason string
	call   string // tells this call's beginning from another's
	tries  int    // earlier beginnings, which ended without being done
}

// object is what the trail calls it; a search for the principal's name alone finds it.
func (f *forgiveness) object() string { return "principal " + f.fsm.Principal }

func (f *forgiveness) what() string {
	if f.fsm.Class == "" {
		return "all classes"
	}
	return "class " + strconv.Quote(f.fsm.Class)
}

// line is how the trail's message about this try begins.
func (f *forgiveness) line(verb string) string {
	return fmt.Sprintf("%s %s/%d: %s", verb, f.id, f.tries, f.what())
}

// mark tells the beginning of this call from that of another.
func (f *forgiveness) mark() string { return ", call " + f.call }

// read is what a message of the trail says of this act: the verb, at which try, and what follows. The verb is empty
// where it says nothing of it.
func (f *forgiveness) read(message string) (verb string, try int, rest string) {
	for _, verb := range []string{verbBegin, verbDone, verbNotDone, verbUnknown} {
		tail, is := strings.CutPrefix(message, verb+" "+f.id+"/")
		number, tail, _ := strings.Cut(tail, ": ")
		try, err := strconv.Atoi(number)
		if rest, same := strings.CutPrefix(tail, f.what()); is && same && err == nil {
			return verb, try, rest
		}
	}
	return "", 0, ""
}

// note is a line of the trail about this try.
func (f *forgiveness) note(verb, rest string) *state.Command {
	c := &state.Command{
		Kind: state.KindNote, Comment: f.reason,
		Act: &state.Act{
			Action: forgiveAction, Object: f.object(), Message: words(f.line(verb)+rest, state.MaxMessageBytes),
		},
	}
	h := sha256.Sum256([]byte(strings.Join([]string{f.object(), f.line(verb)}, "\x00")))
	copy(c.ID[:], h[:])
	return c
}

// The words by which a message in the trail begins.
const (
	verbBegin   = "begin"
	verbDone    = "done"
	verbNotDone = "not done"
	verbUnknown = "unknown whether done"
)

// ForgiveUsage drops a principal's usage.
func (a *Admin) ForgiveUsage(
	ctx context.Context, who rpc.Actor, req *quoratev1.ForgiveUsageRequest,
) (*quoratev1.ForgiveUsageResponse, error) {
	c, err := a.cluster.Control()
	if err != nil {
		return nil, err
	}
	f := &forgiveness{
		who: who, id: req.GetForgiveId(), reason: req.GetReason(), call: randomText(),
		fsm: fsm.Forgive{Principal: req.GetPrincipal(), Class: req.GetApiClass()},
	}
	if err := f.check(); err != nil {
		return nil, a.refuse(ctx, who, forgiveAction, f.object(), err)
	}
	if err := a.mayForgive(c.State(), f); err != nil {
		return nil, err
	}
	for range maxForgiveTries {
		out, was, err := a.begin(ctx, c, f)
		switch {
		case err != nil || was == wasDone:
			return out, err
		case was == wasBegun:
			return a.forgive(ctx, f)
		}
		f.tries++
	}
	return nil, quotaerr.New(quotaerr.NoQuorum, "others try forgive_id %s too, and none has done it: try again", f.id)
}

// check refuses what is malformed.
func (f *forgiveness) check() error {
	if err := fsm.ValidateForgive(&f.fsm); err != nil {
		return quotaerr.New(quotaerr.InvalidArgument, "%v", err)
	}
	if err := checkWhy("reason", f.reason); err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(f.reason) == "":
		return quotaerr.New(quotaerr.InvalidArgument, "reason: say why, for the audit trail")
	case f.id == "":
		f.id = randomText()
	case !forgiveID.MatchString(f.id):
		return quotaerr.New(quotaerr.InvalidArgument, "forgive_id: use letters, digits, '.', '_', ':' and '-', at most 64")
	}
	return nil
}

func randomText() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// mayForgive looks, before anything is noted, whether this node leads the principal's partition, and under which
// epoch.
func (a *Admin) mayForgive(s *state.State, f *forgiveness) error {
	slot := fsm.SlotOf(s.Seed, f.fsm.Principal)
	for _, p := range s.Partitions {
		for _, r := range p.Ranges {
			if slot < r.First || slot > r.Last {
				continue
			}
			f.fsm.RouteEpoch = r.Epoch
			leader, ok := a.cluster.Leader(p.ID.String())
			switch {
			case !ok:
				return quotaerr.New(quotaerr.NoQuorum, "no leader of partition %s is known: try again", p.ID)
			case leader != a.cluster.Self():
				return notLeader(s, p.ID.String(), leader)
			}
			return nil
		}
	}
	return quotaerr.New(quotaerr.NoQuorum, "no partition owns this principal yet: see `quorate partition list`")
}

// earlier is what the trail says of a try.
type earlier int

const (
	wasBegun   earlier = iota // by this call
	wasDone                   // by an earlier one
	wasNotDone                // at the last try, for certain
)

// begin notes that the act is about to be done. Where this try had been begun before it says what became of the last
// one, and makes that this one.
func (a *Admin) begin(
	ctx context.Context, c *control.Control, f *forgiveness,
) (*quoratev1.ForgiveUsageResponse, earlier, error) {
	begun, err := a.propose(ctx, f.who, f.note(verbBegin, f.mark()), a.cluster.Propose)
	var refused *state.Refusal
	switch {
	case errors.As(err, &refused):
		return nil, 0, err
	case quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown:
		return nil, 0, quotaerr.Wrap(quotaerr.OutcomeUnknown, err,
			"nothing was dropped, since it may not be in the audit trail: repeat it with another forgive_id")
	case err != nil:
		return nil, 0, notNoted(err)
	case begun.Repeated: // by this call, when it did not hear of the first time, or by another
		return a.earlier(ctx, c, f)
	}
	return nil, wasBegun, nil
}

// forgive does it and notes how it ended.
func (a *Admin) forgive(ctx context.Context, f *forgiveness) (*quoratev1.ForgiveUsageResponse, error) {
	answer, err := a.cluster.Forgive(ctx, f.fsm)
	if err == nil && answer.Reason != fsm.ReasonAllowed {
		err = forgiveRefusal(answer)
	}
	end := f.note(verbDone, "")
	switch quotaerr.ReasonOf(err) {
	case "":
		end.Difference = amounts(answer.Amounts)
	case quotaerr.OutcomeUnknown, quotaerr.Internal:
		end = f.note(verbUnknown, ": "+quotaerr.As(err).Message)
	default:
		end = f.note(verbNotDone, ": "+quotaerr.As(err).Message)
	}
	a.noteEnd(ctx, f.who, end)
	if err != nil {
		return nil, err
	}
	return forgivenOf(answer.Amounts), nil
}

// earlier finds in the trail what became of the last try.
func (a *Admin) earlier(
	ctx context.Context, c *control.Control, f *forgiveness,
) (*quoratev1.ForgiveUsageResponse, earlier, error) {
	if err := a.catchUp(ctx, c); err != nil {
		return nil, 0, err
	}
	query := audit.Query{Action: forgiveAction, Object: f.object(), Limit: audit.MaxFound}
	unknown := quotaerr.New(quotaerr.OutcomeUnknown, "forgive_id %s was begun before, and whether it was done is "+
		"not known: look with `quorate peek`, then use another id", f.id)
	for more := true; more && ctx.Err() == nil; more = query.Before != 0 {
		found, next, err := c.Audit(query)
		if err != nil {
			return nil, 0, quotaerr.Wrap(quotaerr.Internal, err, "the audit trail cannot be read; see the node's log")
		}
		for _, r := range found {
			verb, try, rest := f.read(r.Message)
			switch {
			case verb == "" || r.Object != f.object():
				continue
			case verb == verbDone:
				return forgivenOf(amountsOf(r.Difference)), wasDone, nil
			case verb == verbNotDone:
				f.tries = try
				return nil, wasNotDone, nil
			case verb == verbBegin && strings.HasPrefix(rest, f.mark()):
				return nil, wasBegun, nil
			}
			return nil, 0, unknown
		}
		query.Before = next
	}
	return nil, 0, unknown
}

// forgiveRefusal is the public error of a refusal by the state machine.
func forgiveRefusal(f fsm.Forgiven) error {
	e := &quotaerr.Error{Reason: quotaerr.Reason(f.Reason.String()), Message: f.Detail, Epoch: uint64(f.Epoch)}
	switch {
	case f.Reason == fsm.ReasonStaleTerm || f.Reason == fsm.ReasonUnborn:
		e.Reason = quotaerr.NotLeader
	case !e.Reason.Known() || e.Reason.IsDecision():
		e.Reason = quotaerr.Internal
	}
	if e.Message == "" {
		e.Message = "the partition did not forgive: try again"
	}
	return e
}

func forgivenOf(list []fsm.ClassAmount) *quoratev1.ForgiveUsageResponse {
	out := &quoratev1.ForgiveUsageResponse{}
	for _, c := range list {
		out.Forgiven = append(out.Forgiven, &quoratev1.ForgivenUsage{ApiClass: c.Class, Amount: c.Amount})
	}
	return out
}

// amounts are what was dropped, a line each, as the trail has it; as many lines as it takes.
func amounts(list []fsm.ClassAmount) string {
	var b strings.Builder
	for _, c := range list {
		line := fmt.Sprintf("- %q: %d\n", c.Class, c.Amount)
		if b.Len()+len(line) > state.MaxDifferenceBytes {
			break
		}
		b.WriteString(line)
	}
	return b.String()
}

// amountsOf reads what amounts writes.
func amountsOf(text string) (out []fsm.ClassAmount) {
	for line := range strings.Lines(text) {
		quoted, err := strconv.QuotedPrefix(strings.TrimPrefix(line, "- "))
		if err != nil {
			continue
		}
		class, err := strconv.Unquote(quoted)
		_, number, ok := strings.Cut(line[len("- ")+len(quoted):], ": ")
		amount, nerr := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err == nil && ok && nerr == nil {
			out = append(out, fsm.ClassAmount{Class: class, Amount: amount})
		}
	}
	return out
}
