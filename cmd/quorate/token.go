package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// defaultTokenValid is how long a token is valid unless --valid says otherwise.
const defaultTokenValid = 30 * 24 * time.Hour

func newToken(o *options) *cobra.Command {
	cmd := newGroup("token", "Let people operate the cluster without a certificate",
		newTokenCreate(o), newTokenList(o), newTokenRevoke(o))
	cmd.Long = `A token is a secret by which a person, or a script, operates the cluster or looks on, without a
certificate. Commands send it with --token-file FILE or $` + tokenEnv + `, over TLS.`
	return cmd
}

func newTokenCreate(o *options) *cobra.Command {
	req, valid := &quoratev1.CreateTokenRequest{}, durationFlag(defaultTokenValid)
	cmd := &cobra.Command{
		Use:   "create NAME --role admin|viewer",
		Short: "Make a token; its secret is printed once",
		Long: `create makes a token for NAME, which the audit trail then has. Its secret is printed once and kept nowhere: put
it into a file that only its owner reads.`,
		Example: "  (umask 077; quorate token create ana --role viewer -o json | jq -r .secret > token)",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.Role != identity.Admin.String() && req.Role != identity.Viewer.String() {
				return usagef(cmd, "--role is %q: use admin, who may use all commands but check, or viewer, who looks on", req.Role)
			}
			req.Name, req.Valid = args[0], durationpb.New(time.Duration(valid))
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.CreateToken, req)
				if quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown {
					return fmt.Errorf("%w; it may be made, its secret unknown to all: look with `quorate token list`, revoke it, "+
						"and make another", err)
				}
				if err != nil {
					return err
				}
				return o.printNewToken(cmd, r)
			})
		},
	}
	cmd.Flags().StringVar(&req.Role, "role", "", "admin or viewer")
	cmd.Flags().Var(&valid, "valid", "for how long; at most a year")
	addComment(cmd, &req.Comment)
	return cmd
}

// tokenView is a token as it is printed.
type tokenView struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Role    string    `json:"role"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Revoked bool      `json:"revoked"`
}

func tokenOf(t *quoratev1.Token) tokenView {
	return tokenView{
		t.GetId(), t.GetName(), t.GetRole(), timeOf(t.GetCreated()), timeOf(t.GetExpires()), t.GetRevoked(),
	}
}

// state is whether a token counts, by this machine's clock.
func (t tokenView) state(now time.Time) string {
	switch {
	case t.Revoked:
		return "revoked"
	case !now.Before(t.Expires):
		return "expired"
	default:
		return "valid"
	}
}

// newTokenView is a token with its secret.
type newTokenView struct {
	Token  tokenView `json:"token"`
	Secret string    `json:"secret"`
}

func (o *options) printNewToken(cmd *cobra.Command, r *quoratev1.CreateTokenResponse) error {
	v, w := newTokenView{tokenOf(r.GetToken()), r.GetSecret()}, cmd.OutOrStdout()
	if o.output != outputTable {
		return o.output.print(w, v, nil)
	}
	_, err := fmt.Fprintf(w, "token %s of %s, %s, until %s\nsecret, shown only now: %s\n",
		v.Token.ID, v.Token.Name, v.Token.Role, timeText(v.Token.Expires), v.Secret)
	return err
}

// tokensView is the list of tokens as it is printed.
type tokensView struct {
	Tokens []tokenView `json:"tokens"`
}

func newTokenList(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the tokens, without their secrets",
		Args:  usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				r, err := call(ctx, s, s.ListTokens, &quoratev1.ListTokensRequest{})
				if err != nil {
					return err
				}
				v, now := tokensView{[]tokenView{}}, time.Now()
				for _, t := range r.GetTokens() {
					v.Tokens = append(v.Tokens, tokenOf(t))
				}
				return o.output.print(cmd.OutOrStdout(), v, func(t table.Writer) {
					t.AppendHeader(table.Row{"token", "name", "role", "state", "created", "expires"})
					for _, k := range v.Tokens {
						t.AppendRow(table.Row{k.ID, k.Name, k.Role, k.state(now), timeText(k.Created), timeText(k.Expires)})
					}
				})
			})
		},
	}
}

func newTokenRevoke(o *options) *cobra.Command {
	req := &quoratev1.RevokeTokenRequest{}
	cmd := &cobra.Command{
		Use:   "revoke TOKEN",
		Short: "End a token, by its id as token list shows it",
		Args:  usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Id = args[0]
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				if _, err := call(ctx, s, s.RevokeToken, req); err != nil {
					return err
				}
				return o.printChanged(cmd, changedView{Token: args[0], Done: "revoked"}, "")
			})
		},
	}
	addComment(cmd, &req.Comment)
	return cmd
}
