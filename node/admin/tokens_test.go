package admin

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows a token's life: its secret, and no other, tells its name and role until it expires by the wall clock or is
// revoked; its secret is nowhere but in the answer; and what no token can be is refused.
func TestTokens(t *testing.T) {
	c := newCluster(t, 1)
	n := c.leader(t)
	create := func(name, role string, valid time.Duration) (*quoratev1.CreateTokenResponse, error) {
		return n.CreateToken(t.Context(), ops, &quoratev1.CreateTokenRequest{Name: name, Role: role, Valid: durationpb.New(valid)})
	}
	ana, err := create("ana", "admin", time.Hour)
	must(t, err)
	board, err := create("board", "viewer", 2*time.Hour)
	must(t, err)
	wantRole := func(secret, name string, role identity.Role) {
		t.Helper()
		if got, r, err := n.Token(t.Context(), secret); err != nil || got != name || r != role {
			t.Errorf("%q %v %v, want %q", got, r, err, name)
		}
	}
	wantNone := func(secret, what string) {
		t.Helper()
		got, role, err := n.Token(t.Context(), secret)
		wantReason(t, err, quotaerr.Unauthenticated, what)
		if got != "" || role != 0 {
			t.Errorf("%s: %q %v", what, got, role)
		}
	}
	wantRole(ana.GetSecret(), "ana", identity.Admin)
	wantRole(board.GetSecret(), "board", identity.Viewer)
	id := ana.GetToken().GetId()
	if s := ana.GetSecret(); len(s) != 3+8+1+43 || !strings.HasPrefix(s, "qt_"+id+"_") {
		t.Errorf("secret %q of %s", s, id)
	}
	for what, secret := range map[string]string{
		"empty": "", "only the id": "qt_" + id, "no secret": "qt_" + id + "_", "another": "qt_" + id + board.GetSecret()[11:],
		"longer": ana.GetSecret() + "A", "unknown id": "qt_aaaaaaaa" + ana.GetSecret()[11:],
	} {
		wantNone(secret, what)
	}
	n.wall = n.wall.Add(time.Hour - time.Nanosecond)
	wantRole(ana.GetSecret(), "ana", identity.Admin)
	n.wall = n.wall.Add(time.Nanosecond)
	wantNone(ana.GetSecret(), "expired")
	revoke := func(id string) error {
		return second(n.RevokeToken(t.Context(), ops, &quoratev1.RevokeTokenRequest{Id: id}))
	}
	wantRole(board.GetSecret(), "board", identity.Viewer)
	must(t, revoke(board.GetToken().GetId()))
	wantNone(board.GetSecret(), "revoked")
	must(t, revoke(board.GetToken().GetId()))
	wantReason(t, revoke("aaaaaaaa"), quotaerr.InvalidArgument, "an unknown id")
	wantReason(t, revoke(ana.GetSecret()), quotaerr.InvalidArgument, "a secret for an id")

	for _, c := range []struct {
		name, role string
		valid      time.Duration
	}{
		{"", "admin", time.Hour}, {"a/b", "admin", time.Hour}, {strings.Repeat("n", 64), "admin", time.Hour},
		{"ana", "node", time.Hour}, {"ana", "", time.Hour}, {"ana", "admin", 0}, {"ana", "admin", -time.Hour},
		{"ana", "admin", 367 * 24 * time.Hour},
	} {
		_, err := create(c.name, c.role, c.valid)
		wantReason(t, err, quotaerr.InvalidArgument, c.name+" "+c.role+" "+c.valid.String())
	}
	list, err := n.ListTokens(t.Context(), ops, &quoratev1.ListTokensRequest{})
	must(t, err)
	revoked := map[string]bool{}
	for _, k := range list.GetTokens() {
		revoked[k.GetName()] = k.GetRevoked()
	}
	if len(revoked) != 2 || revoked["ana"] || !revoked["board"] {
		t.Errorf("listed: %v", list)
	}
	found, err := n.SearchAudit(t.Context(), ops, &quoratev1.SearchAuditRequest{Action: "token"})
	must(t, err)
	if text := found.String() + list.String(); strings.Contains(text, ana.GetSecret()[12:]) || len(found.GetRecords()) != 14 {
		t.Errorf("%d records: %s", len(found.GetRecords()), text)
	}
}
