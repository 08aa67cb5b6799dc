package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// A token's secret is the prefix, its id, an underscore, and 32 random bytes in URL-safe base64. What is stored is
// the SHA-256 of the whole: 256 random bits need no slow hash.
const (
	tokenPrefix  = "qt_"
	tokenIDBytes = 8 // characters
	maxValid     = time.Duration(state.MaxTokenNanos)
	maxTokenName = 63
)

var (
	tokenName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	tokenIDs  = base32.NewEncoding("abcdefghijkmnpqrstuvwxyz23456789").WithPadding(base32.NoPadding)
)

// newSecret draws a token's id and its secret.
func newSecret() (id, secret string) {
	var random [5 + 32]byte
	_, _ = rand.Read(random[:]) // never fails
	id = tokenIDs.EncodeToString(random[:5])
	return id, tokenPrefix + id + "_" + base64.RawURLEncoding.EncodeToString(random[5:])
}

// tokenIDOf is the id in a secret.
func tokenIDOf(secret string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(secret, tokenPrefix)
	if !ok || len(rest) <= tokenIDBytes || rest[tokenIDBytes] != '_' {
		return "", false
	}
	return rest[:tokenIDBytes], true
}

// Token tells whose token secret is and what it allows, by what this node has applied and its wall clock.
func (a *Admin) Token(_ context.Context, secret string) (name string, role identity.Role, err error) {
	refused := quotaerr.New(quotaerr.Unauthenticated, "the token is unknown, expired or revoked: ask an admin for another")
	c, err := a.cluster.Control()
	if err != nil {
		return "", 0, quotaerr.Wrap(quotaerr.Unauthenticated, err, "this node knows no tokens yet: ask another")
	}
	id, ok := tokenIDOf(secret)
	if !ok {
		return "", 0, refused
	}
	t, ok := c.State().Token(id)
	hash := sha256.Sum256([]byte(secret))
	if !ok || subtle.ConstantTimeCompare(hash[:], t.Hash[:]) != 1 || !t.Valid(a.now().UnixNano()) {
		return "", 0, refused
	}
	switch t.Role {
	case state.RoleAdmin:
		return t.Name, identity.Admin, nil
	case state.RoleViewer:
		return t.Name, identity.Viewer, nil
	}
	return "", 0, refused
}

// CreateToken makes a token. The answer has the secret, which is kept nowhere.
func (a *Admin) CreateToken(
	ctx context.Context, who rpc.Actor, req *quoratev1.CreateTokenRequest,
) (*quoratev1.CreateTokenResponse, error) {
	c, _, err := a.leading(ctx)
	if err != nil {
		return nil, err
	}
	valid := req.GetValid().AsDuration()
	switch {
	case !tokenName.MatchString(req.GetName()) || len(req.GetName()) > maxTokenName:
		err = quotaerr.New(quotaerr.InvalidArgument, "name %.63q: use letters, digits, '.', '_' and '-', at most %d",
			req.GetName(), maxTokenName)
	case req.GetRole() != state.RoleAdmin && req.GetRole() != state.RoleViewer:
		err = quotaerr.New(quotaerr.InvalidArgument, "role %.63q: use %s or %s", req.GetRole(), state.RoleAdmin,
			state.RoleViewer)
	case req.GetValid() == nil || req.GetValid().CheckValid() != nil || valid < time.Second || valid > maxValid:
		err = quotaerr.New(quotaerr.InvalidArgument, "valid: say for how long, between 1s and %.0f days", maxValid.Hours()/24)
	}
	if err != nil {
		return nil, a.refuse(ctx, who, "token.create", "token of "+req.GetName(), err)
	}
	id, secret := newSecret()
	t := &state.Token{
		ID: id, Name: req.GetName(), Role: req.GetRole(), Hash: sha256.Sum256([]byte(secret)),
		CreatedNanos: a.now().UnixNano(),
	}
	t.ExpiresNanos = t.CreatedNanos + int64(valid)
	_, err = a.propose(ctx, who, &state.Command{
		Kind: state.KindPutToken, Token: t, WallNanos: t.CreatedNanos, Comment: req.GetComment(),
		Difference: fmt.Sprintf("+ token %s of %s: %s, until %s", id, t.Name, t.Role,
			time.Unix(0, t.ExpiresNanos).UTC().Format(time.RFC3339)),
	}, c.Propose)
	if err != nil {
		return nil, err
	}
	return &quoratev1.CreateTokenResponse{Token: tokenOf(t), Secret: secret}, nil
}

func tokenOf(t *state.Token) *quoratev1.Token {
	return &quoratev1.Token{
		Id: t.ID, Name: t.Name, Role: t.Role, Created: timestamppb.New(time.Unix(0, t.CreatedNanos)),
		Expires: timestamppb.New(time.Unix(0, t.ExpiresNanos)), Revoked: t.Revoked,
	}
}

// ListTokens tells which tokens there are, valid or not.
func (a *Admin) ListTokens(
	ctx context.Context, _ rpc.Actor, _ *quoratev1.ListTokensRequest,
) (*quoratev1.ListTokensResponse, error) {
	_, s, _, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	out := &quoratev1.ListTokensResponse{}
	for _, t := range s.Tokens {
		out.Tokens = append(out.Tokens, tokenOf(t))
	}
	return out, nil
}

// RevokeToken ends a token. Asking again is harmless.
func (a *Admin) RevokeToken(
	ctx context.Context, who rpc.Actor, req *quoratev1.RevokeTokenRequest,
) (*quoratev1.RevokeTokenResponse, error) {
	c, s, err := a.leading(ctx)
	if err != nil {
		return nil, err
	}
	t, ok := s.Token(req.GetId())
	if !ok {
		return nil, a.refuse(ctx, who, "token.revoke", "token "+idOf(req.GetId()), quotaerr.New(quotaerr.InvalidArgument,
			"token %.16q is not there: see `quorate token list`", idOf(req.GetId())))
	}
	_, err = a.propose(ctx, who, &state.Command{
		Kind: state.KindRevokeToken, TokenID: t.ID, Comment: req.GetComment(),
		Difference: fmt.Sprintf("- token %s of %s: %s", t.ID, t.Name, t.Role),
	}, c.Propose)
	var refused *state.Refusal
	if errors.As(err, &refused) && refused.Code == state.CodeNotFound {
		err = nil // it has made room for another: it is as good as revoked
	}
	if err != nil {
		return nil, err
	}
	return &quoratev1.RevokeTokenResponse{}, nil
}

// idOf is what may be told of a text that should be a token's id: not a secret that was sent by mistake.
func idOf(text string) string {
	if id, ok := tokenIDOf(text); ok {
		return id
	}
	return text[:min(len(text), tokenIDBytes)]
}
