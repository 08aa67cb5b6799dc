package rpc

import (
	"context"
	"log/slog"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/tap"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	"github.com/quorate/quorate/quotaerr"
)

// guard lets through to gRPC's methods who may call them.
type guard struct {
	who      Authenticator
	backend  Backend
	attempts *attempts
	metrics  *metrics
	log      *slog.Logger
}

// pass is the authentication of each call.
func (g *guard) pass(ctx context.Context) (_ context.Context, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = caught(ctx, g.metrics, g.log, p)
		}
	}()
	method, _ := grpc.Method(ctx)
	roles, known := access[method]
	if !known {
		return nil, errUnknownMethod
	}
	id, err := g.identify(ctx)
	if err != nil {
		return nil, err
	}
	if err := authorise(id, roles, method); err != nil {
		if roles == accessChange && quotaerr.ReasonOf(err) == quotaerr.PermissionDenied {
			g.attempts.note(ctx, actorOf(id), method, err)
		}
		return nil, err
	}
	return withIdentity(ctx, id), nil
}

// identify tells who calls: whoever the token is for that the call shows, else whom the connection proves.
func (g *guard) identify(ctx context.Context) (Identity, error) {
	secret, shown, err := bearer(ctx)
	if err != nil {
		return Identity{}, err
	}
	if !shown {
		return g.who(ctx)
	}
	name, role, err := g.backend.Admin().Token(ctx, secret)
	if err != nil {
		return Identity{}, err
	}
	if name == "" || role != identity.Admin && role != identity.Viewer {
		return Identity{}, quotaerr.New(quotaerr.Internal, "a token has the name %.63q and the role %s", name, role)
	}
	return Identity{Name: name, Roles: role, Token: true, valid: func(ctx context.Context) error {
		_, _, err := g.backend.Admin().Token(ctx, secret)
		return err
	}}, nil
}

// tokenKey is the metadata that a token goes in.
const tokenKey = "authorization"

// maxTokenBytes bounds a token with its scheme.
const maxTokenBytes = 256

// bearer is the token that a call shows, if it shows one. The errors do not tell it.
func bearer(ctx context.Context) (secret string, shown bool, err error) {
	values := metadata.ValueFromIncomingContext(ctx, tokenKey)
	if len(values) == 0 {
		return "", false, nil
	}
	scheme, secret, _ := strings.Cut(values[0], " ")
	if len(values) > 1 || len(values[0]) > maxTokenBytes || !strings.EqualFold(scheme, "Bearer") || secret == "" {
		return "", false, quotaerr.New(quotaerr.Unauthenticated,
			"%s is not one token, as \"Bearer SECRET\": give the one that `quorate token create` has shown", tokenKey)
	}
	return secret, true, nil
}

// tap refuses calls on connections without an accepted certificate before anything of them is read, unless they
// show a token that counts: whoever reaches the port could have the node read and hold messages otherwise.
func (g *guard) tap(ctx context.Context, info *tap.Info) (_ context.Context, err error) {
	c := connOf(ctx)
	if c == nil || c.err == nil {
		return ctx, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = errtable.ToStatus(ctx, caught(ctx, g.metrics, g.log, p)).Err()
		}
	}()
	if _, err := g.identify(ctx); err != nil {
		if _, known := access[info.FullMethodName]; known {
			g.metrics.calls.WithLabelValues(info.FullMethodName, codes.Unauthenticated.String()).Inc()
		}
		return ctx, errtable.ToStatus(ctx, err).Err()
	}
	return ctx, nil
}
