package state

// The roles that a token can have.
const (
	RoleAdmin  = "admin"
	RoleViewer = "viewer"
)

// Token lets a person operate the cluster without a certificate. Of the secret only its hash is known here.
type Token struct {
	ID   string // the beginning of the secret
	Name string // who uses it, for the audit trail
	Role string // RoleAdmin or RoleViewer
	Hash [32]byte
	// CreatedNanos and ExpiresNanos are wall times in nanoseconds since 1970: from when, and until when
	// exclusive, it is valid.
	CreatedNanos, ExpiresNanos int64
	Revoked                    bool
}

// Valid reports whether the token may be used at a wall time.
func (t *Token) Valid(wallNanos int64) bool { return !t.Revoked && wallNanos < t.ExpiresNanos }

// Token is the token with this id, valid or not.
func (s *State) Token(id string) (*Token, bool) { return find(s.Tokens, id, tokenID) }

func tokenID(t *Token) string { return t.ID }

// putToken makes a token known. At the bound one that had ended by the command's wall time goes.
func (ch *change) putToken(t *Token, wallNanos int64) *Refusal {
	if r := t.check(); r != nil {
		return r
	}
	if t.Revoked {
		return refuse(CodeInvalid, "the token would never be valid: do not revoke it yet")
	}
	if _, known := ch.Token(t.ID); known {
		return refuse(CodeConflict, "token %s is there already: draw another id", t.ID)
	}
	if len(ch.Tokens) >= MaxTokens && !ch.dropToken(wallNanos) {
		return refuse(CodeBound, "there are %d tokens, and all are valid: revoke some", MaxTokens)
	}
	own := *t
	ch.setToken(&own)
	ch.message = "for " + t.Name + ", role " + t.Role
	return nil
}

// check refuses a token that cannot be.
func (t *Token) check() *Refusal {
	for _, f := range []struct{ name, text string }{{"token id", t.ID}, {"token name", t.Name}} {
		if r := checkID(f.name, f.text, false); r != nil {
			return r
		}
	}
	switch {
	case t.Role != RoleAdmin && t.Role != RoleViewer:
		return refuse(CodeInvalid, "role %.64q: a token is for %s or %s", t.Role, RoleAdmin, RoleViewer)
	case t.Hash == ([32]byte{}):
		return refuse(CodeInvalid, "the token has no hash of its secret")
	case t.CreatedNanos < 0 || t.ExpiresNanos <= t.CreatedNanos:
		return refuse(CodeInvalid, "the token would never be valid: give it a time to live")
	case t.ExpiresNanos-t.CreatedNanos > MaxTokenNanos:
		return refuse(CodeInvalid, "the token would be valid for more than a year: make that shorter")
	}
	return nil
}

// dropToken forgets the token that is no longer valid and would have ended first; false when there is none.
func (ch *change) dropToken(wallNanos int64) bool {
	var first *Token
	for _, t := range ch.Tokens {
		if !t.Valid(wallNanos) && (first == nil || t.ExpiresNanos < first.ExpiresNanos) {
			first = t
		}
	}
	if first == nil {
		return false
	}
	ch.elements.sub(hashOf(tagToken, first, (*codec).token))
	ch.Tokens = without(ch.Tokens, first.ID, tokenID)
	return true
}

// revokeToken ends a token; one that is revoked already stays so.
func (ch *change) revokeToken(id string) *Refusal {
	t, known := ch.Token(id)
	if !known {
		return refuse(CodeNotFound, "token %.64q is not there: see token list", id)
	}
	next := *t
	next.Revoked = true
	ch.setToken(&next)
	ch.message = "of " + t.Name
	return nil
}
