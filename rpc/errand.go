package rpc

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// errand is one operator's call on its way to an answer. It is asked of this node, and if another one has to
// answer it, of that; again only while it has certainly changed nothing.
type errand struct {
	desk      *desk
	method    string
	operation operation
	who       Actor
	request   proto.Message
	harmless  bool // it changes nothing, so an unknown fate is no matter

	hint  string // the node that was said to be the one
	pause pause
}

// run asks until one answer settles it, or waiting is no use any more.
func (e *errand) run(ctx context.Context) (proto.Message, error) {
	patience, stop := patienceOf(ctx)
	defer stop()
	for {
		resp, err := e.once(ctx)
		if err == nil {
			return resp, nil
		}
		last := quotaerr.As(err)
		if e.settled(last) || !e.pause.wait(patience, e.hint != "", nil, nil) {
			return nil, last
		}
	}
}

// once asks the node that was named last, else this one.
func (e *errand) once(ctx context.Context) (proto.Message, error) {
	to := e.hint
	e.hint = ""
	var resp proto.Message
	var err error
	if to == "" || to == e.desk.node {
		resp, err = e.operation.do(ctx, e.desk.backend.Admin(), e.who, e.request)
	} else {
		resp, err = e.forward(ctx, to)
	}
	if failed := quotaerr.As(err); failed != nil && failed.Reason == quotaerr.NotLeader {
		e.hint = failed.Leader
	}
	return resp, err
}

// forward asks another node, which does not pass it on.
func (e *errand) forward(ctx context.Context, to string) (proto.Message, error) {
	peer, err := e.desk.peer(to)
	if err != nil {
		return nil, err
	}
	request, err := anypb.New(e.request)
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.Internal, err, "the request cannot be passed on")
	}
	if !e.operation.partition {
		leader := e.desk.backend.ControlLeader
		following, stop := whileLeading(ctx, leader(), to, leader)
		defer stop()
		ctx = following
	}
	ctx, sent := watchSent(ctx)
	answer, err := peer.ForwardAdmin(ctx, &quoratev1.ForwardAdminRequest{
		ClusterId: e.desk.cluster, FromNode: e.desk.node, Method: e.method, Request: request,
		Actor: e.who.Name, Role: e.who.Role.String(),
	})
	if err != nil {
		failed := errtable.FromStatus(err)
		if failed.Reason == quotaerr.OutcomeUnknown && !sent() {
			failed = quotaerr.Wrap(quotaerr.NoQuorum, err, "node %s cannot be reached: check that it runs", to)
		}
		e.desk.metrics.forwards.WithLabelValues(string(failed.Reason)).Inc()
		return nil, failed
	}
	e.desk.metrics.forwards.WithLabelValues("answered").Inc()
	resp, err := answer.GetResponse().UnmarshalNew()
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.Internal, err, "node %s has answered what cannot be read", to)
	}
	return resp, nil
}

// settled reports whether asking again is of no use, or could do it twice.
func (e *errand) settled(last *quotaerr.Error) bool {
	switch last.Reason {
	case quotaerr.NotLeader:
		return e.operation.here
	case quotaerr.NoQuorum:
		// A node that has no part in a cluster finds no leader by waiting.
		return e.operation.here || e.desk.backend.Waiting() != ""
	case quotaerr.OutcomeUnknown:
		return !e.harmless
	default:
		return true
	}
}

// ForwardAdmin answers an operator's call that another node has passed on.
func (s *peerService) ForwardAdmin(
	ctx context.Context, req *quoratev1.ForwardAdminRequest,
) (*quoratev1.ForwardAdminResponse, error) {
	if err := s.admit(ctx, req.GetClusterId(), req.GetFromNode()); err != nil {
		return nil, err
	}
	who, err := actorFrom(req)
	if err != nil {
		return nil, err
	}
	o, known := operations[req.GetMethod()]
	if !known || o.here {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"this node answers no %.200q for another: check that the nodes' versions agree", req.GetMethod())
	}
	// The other node has looked already, but by its own table.
	if roles := access[req.GetMethod()]; !who.Role.Is(roles) {
		err := quotaerr.New(quotaerr.PermissionDenied, "%s may not call %s: it takes the role %s", who.Name,
			req.GetMethod(), roles)
		s.desk.attempts.note(ctx, who, req.GetMethod(), err)
		return nil, err
	}
	request := o.request()
	if err := req.GetRequest().UnmarshalTo(request); err != nil {
		return nil, quotaerr.Wrap(quotaerr.InvalidArgument, err, "the request is not one of %.200q", req.GetMethod())
	}
	done, err := s.desk.forwarded.take(who.Name)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := boundedBy(ctx, DefaultAdminTimeout)
	defer cancel()
	resp, err := o.do(ctx, s.desk.backend.Admin(), who, request)
	if err != nil {
		return nil, quotaerr.As(err)
	}
	packed, err := anypb.New(resp)
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.Internal, err, "the answer cannot be sent")
	}
	return &quoratev1.ForwardAdminResponse{Response: packed}, nil
}

// maxActorBytes bounds an actor's name: a role or "token", and a name.
const maxActorBytes = 256

// actorFrom is who another node says operates.
func actorFrom(req *quoratev1.ForwardAdminRequest) (Actor, error) {
	role, known := identity.RoleNamed(req.GetRole())
	name := req.GetActor()
	if !known || name == "" || len(name) > maxActorBytes {
		return Actor{}, quotaerr.New(quotaerr.InvalidArgument,
			"a forwarded call needs an actor of at most %d bytes, and a role", maxActorBytes)
	}
	return Actor{Name: name, Role: role}, nil
}
