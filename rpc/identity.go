package rpc

import "context"

// InsecureName is the gateway identity of every caller while there is no transport security.
const InsecureName = "insecure"

// Identity is who a connection has proven to be.
type Identity struct {
	// Name is the gateway's identity, as decisions are recorded under it.
	Name string
	// Node says that it is a node of this cluster and may use the Peer service.
	Node bool
}

// Authenticator tells who is behind a call from what its connection carries. It returns an error of
// reason unauthenticated for a caller that it does not accept.
type Authenticator func(ctx context.Context) (Identity, error)

// Plaintext accepts everybody as InsecureName. It is for loopback listeners only.
func Plaintext(context.Context) (Identity, error) {
	return Identity{Name: InsecureName, Node: true}, nil
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
