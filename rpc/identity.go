package rpc

import (
	"context"

	"github.com/quorate/quorate/internal/identity"
)

// InsecureName is the gateway identity of every caller while there is no transport security.
const InsecureName = "insecure"

// Identity is who a connection, or a token, has proven to be.
type Identity struct {
	// Name is the gateway's identity, as decisions are recorded under it; a node's id, an admin's, viewer's or
	// token's name.
	Name string
	// Roles say which methods it may call.
	Roles identity.Role
	// Classes are the API classes that it may ask for; none: all.
	Classes []string
	// Token says that a token has proven it, not a certificate.
	Token bool

	// valid asks again whether a token counts; nil where it is none.
	valid func(context.Context) error
}

// String is who it is as logs, errors and the audit trail have it.
func (id Identity) String() string {
	switch {
	case id.Token:
		return "token/" + id.Name
	case id.Name == InsecureName:
		return InsecureName
	default:
		return id.Roles.String() + "/" + id.Name
	}
}

// Authenticator tells who is behind a call from what its connection carries. It returns an error of
// reason unauthenticated for a caller that it does not accept.
type Authenticator func(ctx context.Context) (Identity, error)

// Plaintext accepts everybody as InsecureName. It is for loopback listeners only.
func Plaintext(context.Context) (Identity, error) {
	return Identity{Name: InsecureName, Roles: identity.AnyRole}, nil
}

type identityKey struct{}

func withIdentity(ctx context.Context, id Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, id)
}

// identityOf returns the identity that the auth interceptor left; the zero value, which may nothing,
// where there is none.
func identityOf(ctx context.Context) Identity {
	id, _ := ctx.Value(identityKey{}).(Identity)
	return id
}
