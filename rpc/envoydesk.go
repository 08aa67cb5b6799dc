package rpc

import (
	"context"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/rpc/envoy"
)

// envoyDesk is the desk as Envoy's protocol uses it.
type envoyDesk struct{ desk *desk }

var _ envoy.Desk = (*envoyDesk)(nil)

func (e *envoyDesk) MayAsk(ctx context.Context, apiClass string) error {
	return identityOf(ctx).mayAsk(apiClass)
}

func (e *envoyDesk) Check(ctx context.Context, req *quoratev1.CheckRequest) (*quoratev1.Decision, error) {
	return e.desk.check(ctx, identityOf(ctx), req, protocolEnvoy)
}

func (e *envoyDesk) Peek(ctx context.Context, req *quoratev1.PeekRequest) (*quoratev1.PeekResponse, error) {
	return e.desk.peek(ctx, identityOf(ctx), req)
}

// Policy counts as an unanswered check while it waits.
func (e *envoyDesk) Policy(ctx context.Context) (*policy.Policy, error) {
	if err := e.desk.enter(); err != nil {
		return nil, err
	}
	defer e.desk.leave()
	return e.desk.backend.Policy(ctx)
}
