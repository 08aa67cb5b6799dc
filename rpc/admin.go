package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// DefaultAdminTimeout bounds an operator's call whose caller set no deadline.
const DefaultAdminTimeout = 30 * time.Second

// MaxAnswerBytes bounds the answer to an operator's call, so that it can be passed on.
const MaxAnswerBytes = maxMessageBytes - 4<<10

// operation is one unary method of the Admin service: how its request is made, and who answers it.
type operation struct {
	request func() proto.Message
	do      func(context.Context, Admin, Actor, proto.Message) (proto.Message, error)
	// here: it is for the node that the caller has reached, and for no other.
	here bool
	// partition: a partition's leader answers it, and not the control group's.
	partition bool
}

// operations has every unary method that Admin answers, by full name. A new one needs a line here and one in
// access.
var operations = map[string]operation{
	quoratev1.Admin_InitCluster_FullMethodName:    onlyHere(operationOf(Admin.InitCluster)),
	quoratev1.Admin_ListNodes_FullMethodName:      operationOf(Admin.ListNodes),
	quoratev1.Admin_AddNode_FullMethodName:        operationOf(Admin.AddNode),
	quoratev1.Admin_DrainNode_FullMethodName:      operationOf(Admin.DrainNode),
	quoratev1.Admin_RemoveNode_FullMethodName:     operationOf(Admin.RemoveNode),
	quoratev1.Admin_ReplaceNode_FullMethodName:    operationOf(Admin.ReplaceNode),
	quoratev1.Admin_TransferLeader_FullMethodName: ofPartition(operationOf(Admin.TransferLeader)),
	quoratev1.Admin_StartPlan_FullMethodName:      operationOf(Admin.StartPlan),
	quoratev1.Admin_AbortPlan_FullMethodName:      operationOf(Admin.AbortPlan),
	quoratev1.Admin_ListPlans_FullMethodName:      operationOf(Admin.ListPlans),
	quoratev1.Admin_ApplyPolicy_FullMethodName:    operationOf(Admin.ApplyPolicy),
	quoratev1.Admin_RollbackPolicy_FullMethodName: operationOf(Admin.RollbackPolicy),
	quoratev1.Admin_SwitchClass_FullMethodName:    operationOf(Admin.SwitchClass),
	quoratev1.Admin_ListPolicies_FullMethodName:   operationOf(Admin.ListPolicies),
	quoratev1.Admin_DiffPolicies_FullMethodName:   operationOf(Admin.DiffPolicies),
	quoratev1.Admin_PolicyStatus_FullMethodName:   operationOf(Admin.PolicyStatus),
	quoratev1.Admin_ForgiveUsage_FullMethodName:   ofPartition(operationOf(Admin.ForgiveUsage)),
	quoratev1.Admin_SearchAudit_FullMethodName:    operationOf(Admin.SearchAudit),
	quoratev1.Admin_CreateToken_FullMethodName:    operationOf(Admin.CreateToken),
	quoratev1.Admin_ListTokens_FullMethodName:     operationOf(Admin.ListTokens),
	quoratev1.Admin_RevokeToken_FullMethodName:    operationOf(Admin.RevokeToken),
}

// message is a generated message type T, used by pointer.
type message[T any] interface {
	*T
	proto.Message
}

// operationOf makes an operation of one of Admin's methods.
func operationOf[Q, R any, PQ message[Q], PR message[R]](
	method func(Admin, context.Context, Actor, PQ) (PR, error),
) operation {
	return operation{
		request: func() proto.Message { return PQ(new(Q)) },
		do: func(ctx context.Context, a Admin, who Actor, req proto.Message) (proto.Message, error) {
			own, ok := req.(PQ)
			if !ok {
				return nil, quotaerr.New(quotaerr.Internal, "a %T came where a %T belongs", req, own)
			}
			resp, err := method(a, ctx, who, own)
			if err != nil {
				return nil, err
			}
			if resp == nil {
				return nil, quotaerr.New(quotaerr.Internal, "a %T got no answer", req)
			}
			if n := proto.Size(resp); n > MaxAnswerBytes {
				return nil, quotaerr.New(quotaerr.InvalidArgument,
					"the answer has %d bytes, at most %d can be sent: ask for less at once", n, MaxAnswerBytes)
			}
			return resp, nil
		},
	}
}

// onlyHere marks an operation that is not passed on.
func onlyHere(o operation) operation {
	o.here = true
	return o
}

// ofPartition marks an operation that a partition's leader answers.
func ofPartition(o operation) operation {
	o.partition = true
	return o
}

// adminService answers operators. Its unary methods are those of operations, and ClusterStatus.
type adminService struct {
	quoratev1.UnimplementedAdminServer // of what it embeds only what is overridden is ever served: see describe
	desk                               *desk
	version                            string
}

var _ quoratev1.AdminServer = (*adminService)(nil)

// describe returns the service's description, in which each operation is served by serve.
func (s *adminService) describe() grpc.ServiceDesc {
	sd := quoratev1.Admin_ServiceDesc
	methods := make([]grpc.MethodDesc, len(sd.Methods))
	for i, m := range sd.Methods {
		name := "/" + sd.ServiceName + "/" + m.MethodName
		methods[i] = m
		if o, known := operations[name]; known {
			methods[i].Handler = s.handler(name, o)
		}
	}
	sd.Methods = methods
	return sd
}

// handler serves one operation, as generated code serves a method.
func (s *adminService) handler(name string, o operation) grpc.MethodHandler {
	return func(
		_ any, ctx context.Context, decode func(any) error, chain grpc.UnaryServerInterceptor,
	) (any, error) {
		req := o.request()
		if err := decode(req); err != nil {
			return nil, err
		}
		info := &grpc.UnaryServerInfo{Server: s, FullMethod: name}
		return chain(ctx, req, info, func(ctx context.Context, _ any) (any, error) {
			return s.serve(ctx, name, o, req)
		})
	}
}

// serve gets an operator's call answered by the node that can.
func (s *adminService) serve(
	ctx context.Context, name string, o operation, req proto.Message,
) (proto.Message, error) {
	who := actorOf(identityOf(ctx))
	done, err := s.desk.operators.take(who.Name)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := boundedBy(ctx, DefaultAdminTimeout)
	defer cancel()
	e := &errand{desk: s.desk, method: name, operation: o, who: who, request: req,
		harmless: access[name] != accessChange}
	return e.run(ctx)
}
