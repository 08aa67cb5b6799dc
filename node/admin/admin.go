package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

const (
	// lookWithin bounds the wait for an answer that is up to date.
	lookWithin = 3 * time.Second
	// noteWithin bounds the wait until a refusal, or how something ended, is in the audit trail.
	noteWithin = 2 * time.Second
	// againAfter is the pause before a command of unknown fate is proposed again.
	againAfter = 100 * time.Millisecond
)

// ItselfName is the actor of what the cluster does to keep itself in order. Of its hand-overs of leadership, which may
// be many, only the log has a word; no operator is called so.
const ItselfName = "cluster"

// Admin answers operators. All methods may be called at once.
type Admin struct {
	cluster    Cluster
	logger     *slog.Logger
	now        func() time.Time
	publishing chan struct{} // held by the one who puts a policy in force
}

var _ rpc.Admin = (*Admin)(nil)

// New makes an Admin on a node.
func New(cluster Cluster, logger *slog.Logger) *Admin {
	return &Admin{cluster: cluster, logger: logger, now: time.Now, publishing: make(chan struct{}, 1)}
}

// leading is the control group's replica and its state as of after the call, where this node leads it; else
// not_leader.
func (a *Admin) leading(ctx context.Context) (*control.Control, *state.State, error) {
	c, err := a.cluster.Control()
	if err != nil {
		return nil, nil, err
	}
	s, err := c.Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	return c, s, nil
}

// look is leading for a call that changes nothing: while the control group has no leader, it is the state as this
// node has it, and old says why.
func (a *Admin) look(ctx context.Context) (c *control.Control, s *state.State, old, err error) {
	if c, err = a.cluster.Control(); err != nil {
		return nil, nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	s, old = c.Read(ctx)
	switch quotaerr.ReasonOf(old) {
	case "":
		return c, s, nil, nil
	case quotaerr.NoQuorum:
		return c, c.State(), old, nil
	default:
		return nil, nil, nil, old
	}
}

// catchUp waits until this node has applied what was applied by the leader before the call, wherever that is.
func (a *Admin) catchUp(ctx context.Context, c *control.Control) error {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	r, err := a.cluster.Propose(ctx, &state.Command{Kind: state.KindConfirm})
	if err != nil {
		return err
	}
	enough := errors.New("it is there")
	err = c.Watch(ctx, func(s *state.State) error {
		if s.Version >= r.Version {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		return nil
	}
	return quotaerr.Wrap(quotaerr.NoQuorum, err, "node %s is behind the control group: ask another", a.cluster.Self())
}

// propose has a command applied in an operator's name. One whose fate is unknown is proposed again, the same, so
// that it is applied once, until the fate is known or there is no time left.
func (a *Admin) propose(
	ctx context.Context, who rpc.Actor, cmd *state.Command,
	by func(context.Context, *state.Command) (state.Result, error),
) (state.Result, error) {
	cmd.Actor = who.Name
	var unknown error
	for {
		r, err := by(ctx, cmd)
		switch quotaerr.ReasonOf(err) {
		case quotaerr.OutcomeUnknown:
			unknown = err
		case quotaerr.NotLeader, quotaerr.NoQuorum:
			var refused *state.Refusal
			if unknown != nil && !errors.As(err, &refused) {
				return state.Result{}, unknown // a no to the second says nothing about the first
			}
			return r, err
		default:
			return r, err
		}
		select {
		case <-ctx.Done():
			return state.Result{}, unknown
		case <-time.After(againAfter):
		}
	}
}

// refuse notes in the audit trail what was refused before it became a command, and returns why. What is not the
// operator's to change, as a leader that is gone, is not noted.
func (a *Admin) refuse(ctx context.Context, who rpc.Actor, action, object string, err error) error {
	return a.refuseAsked(ctx, who, asked{action: action, object: object}, err)
}

// asked is what somebody wanted to have done: about what, why, and what it would have changed.
type asked struct {
	action, object, comment, difference string
}

// refuseAsked is refuse for what can say more of itself.
func (a *Admin) refuseAsked(ctx context.Context, who rpc.Actor, what asked, err error) error {
	switch quotaerr.ReasonOf(err) {
	case quotaerr.InvalidArgument, quotaerr.PolicyStale, quotaerr.PermissionDenied:
		a.noteAttempt(ctx, who, what, quotaerr.As(err).Message)
	default:
	}
	return err
}

// attempt notes a refusal of an action.
func (a *Admin) attempt(ctx context.Context, who rpc.Actor, action, object, reason string) {
	a.noteAttempt(ctx, who, asked{action: action, object: object}, reason)
}

// noteAttempt notes a refusal as well as it can; who is refused cannot end that by hanging up.
func (a *Admin) noteAttempt(ctx context.Context, who rpc.Actor, what asked, reason string) {
	action, object := what.action, what.object
	if who.Name == ItselfName {
		a.logger.Info("the cluster could not keep itself in order", "action", action, "object", object, "reason", reason)
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteWithin)
	defer cancel()
	_, err := a.propose(ctx, who, &state.Command{
		Kind: state.KindAttempt, Comment: words(what.comment, state.MaxCommentBytes),
		Difference: words(what.difference, state.MaxDifferenceBytes),
		Attempt: &state.Attempt{
			Action: words(action, state.MaxActionBytes), Object: words(object, state.MaxObjectBytes),
			Reason: words(reason, state.MaxCommentBytes),
		},
	}, a.cluster.Propose)
	if err != nil {
		a.logger.Warn("a refusal is not in the audit trail", "actor", who.Name, "action", action, "object", object,
			"reason", reason, "error", err)
	}
}

// noteEnd notes how something ended, as well as it can, even if the caller has gone.
func (a *Admin) noteEnd(ctx context.Context, who rpc.Actor, cmd *state.Command) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteWithin)
	defer cancel()
	if _, err := a.propose(ctx, who, cmd, a.cluster.Propose); err != nil {
		a.logger.Warn("the end of an act is not in the audit trail", "actor", who.Name, "action", cmd.Act.Action,
			"object", cmd.Act.Object, "message", cmd.Act.Message, "error", err)
	}
}

// checkWhy refuses a text that the audit trail does not take as the reason for something.
func checkWhy(field, text string) error {
	if len(text) > state.MaxCommentBytes || words(text, len(text)) != text {
		return quotaerr.New(quotaerr.InvalidArgument, "%s: use at most %d bytes of UTF-8", field, state.MaxCommentBytes)
	}
	return nil
}

// words are s as the audit trail takes it.
func words(s string, maxBytes int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
	if len(s) <= maxBytes {
		return s
	}
	for maxBytes > 0 && !utf8.RuneStart(s[maxBytes]) {
		maxBytes--
	}
	return s[:maxBytes]
}

// actions are what the audit trail calls the methods that change something.
var actions = map[string]string{
	quoratev1.Admin_InitCluster_FullMethodName:     "cluster.init",
	quoratev1.Admin_AddNode_FullMethodName:         "node.put",
	quoratev1.Admin_DrainNode_FullMethodName:       "node.state",
	quoratev1.Admin_RemoveNode_FullMethodName:      "node.state",
	quoratev1.Admin_ReplaceNode_FullMethodName:     "node.replace",
	quoratev1.Admin_TransferLeader_FullMethodName:  "partition.transfer-leader",
	quoratev1.Admin_StartPlan_FullMethodName:       "plan.start",
	quoratev1.Admin_AbortPlan_FullMethodName:       "plan.abort",
	quoratev1.Admin_SaveSnapshot_FullMethodName:    "snapshot.save",
	quoratev1.Admin_RestoreSnapshot_FullMethodName: "cluster.restore",
	quoratev1.Admin_UploadPolicy_FullMethodName:    "policy.upload",
	quoratev1.Admin_ApplyPolicy_FullMethodName:     "policy.publish",
	quoratev1.Admin_RollbackPolicy_FullMethodName:  "policy.rollback",
	quoratev1.Admin_SwitchClass_FullMethodName:     "class.switch",
	quoratev1.Admin_ForgiveUsage_FullMethodName:    "usage.forgive",
	quoratev1.Admin_CreateToken_FullMethodName:     "token.create",
	quoratev1.Admin_RevokeToken_FullMethodName:     "token.revoke",
}

// Attempt notes that who was refused a call of method, a full name, at the door.
func (a *Admin) Attempt(ctx context.Context, who rpc.Actor, method, reason string) {
	action, known := actions[method]
	if !known {
		action = "call" + strings.ReplaceAll(method, "/", ".")
	}
	a.attempt(ctx, who, action, "", reason)
}

// InitCluster makes the cluster on this node. The comment is in a record of its own, as it belongs to many commands.
func (a *Admin) InitCluster(
	ctx context.Context, who rpc.Actor, req *quoratev1.InitClusterRequest,
) (*quoratev1.InitClusterResponse, error) {
	const action = "cluster.init"
	err := checkWhy("comment", req.GetComment())
	var nodes, parts []string
	if err == nil {
		nodes, parts, err = a.cluster.Init(ctx, who.Name, int(req.GetPartitions()))
	}
	c, unmade := a.cluster.Control()
	switch {
	case err != nil && unmade != nil:
		return nil, err // there is no audit trail yet
	case err != nil:
		return nil, a.refuse(ctx, who, action, "cluster "+c.State().Cluster, err)
	case unmade != nil:
		return nil, unmade
	}
	id := c.State().Cluster
	if req.GetComment() != "" {
		a.noteEnd(ctx, who, &state.Command{Kind: state.KindNote, Comment: req.GetComment(), Act: &state.Act{
			Action: action, Object: "cluster " + id, Message: fmt.Sprintf("%d nodes, %d partitions", len(nodes), len(parts)),
		}})
	}
	return &quoratev1.InitClusterResponse{ClusterId: id, Nodes: nodes, Partitions: parts}, nil
}
