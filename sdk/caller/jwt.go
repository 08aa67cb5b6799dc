package caller

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// maxTokenBytes bounds what is parsed of a token.
	maxTokenBytes = 8 << 10
	// maxLeeway is the most by which clocks may be said to differ.
	maxLeeway = 5 * time.Minute
	// PrefixSubject begins the principal of a token's subject.
	PrefixSubject = "sub:"
)

// JWT says which tokens are accepted. A token must be signed with one of the algorithms, be for this audience, come
// from this issuer, have an expiry that is not over (and a not-before that is, if any), and a subject. Claims count by
// their exact names.
type JWT struct {
	// Keyfunc gives the key that a token's signature is checked with. An error that wraps ErrUnavailable says that it
	// cannot tell at present; any other refuses the token. It sees tokens whose signature is not checked yet.
	Keyfunc jwt.Keyfunc
	// Algorithms are those accepted, as "ES256"; at least one, never "none", and not HMAC beside public keys.
	Algorithms []string
	// Issuer and Audience are what iss and aud must name. Without them the token of another service would do, so to
	// leave one out it must be said: AnyIssuer, where all keys belong to one issuer; AnyAudience, where he makes
	// tokens for nobody else.
	Issuer, Audience       string
	AnyIssuer, AnyAudience bool
	// Leeway is by how much clocks may differ, up to 5 minutes; default none.
	Leeway time.Duration
	// Now is the time; default time.Now.
	Now func() time.Time
}

// JWTSubject is the subject of the token in the header Authorization, as "sub:SUBJECT".
func JWTSubject(c JWT) Key {
	parser, err := c.parser()
	if err != nil {
		return Key{problem: err}
	}
	keyfunc := func(t *jwt.Token) (any, error) {
		if _, critical := t.Header["crit"]; critical {
			return nil, errors.New("the token has critical extensions, none of which is known here")
		}
		return c.Keyfunc(t)
	}
	return Key{find: func(r *Request) (string, error) {
		token, err := bearer(r)
		if err != nil {
			return "", err
		}
		if len(token) > maxTokenBytes {
			return "", &Error{Kind: ErrMalformed, Detail: fmt.Sprintf("the token is longer than %d bytes", maxTokenBytes)}
		}
		claims := jwt.MapClaims{} // a struct's fields would take members that are named like them but for letter case
		if _, err := parser.ParseWithClaims(token, claims, keyfunc); err != nil {
			return "", refusedToken(err)
		}
		subject, err := claims.GetSubject()
		if err == nil && subject == "" {
			err = errors.New("the token has no subject")
		}
		if err != nil {
			return "", refusedToken(err)
		}
		return PrefixSubject + subject, nil
	}}
}

func refusedToken(err error) error {
	e := &Error{
		Kind: ErrInvalid, Detail: "the token is not accepted: get a fresh one for this service",
		Challenge: challengeBearer + ` error="invalid_token"`, Cause: err,
	}
	if errors.Is(err, ErrUnavailable) {
		e.Kind, e.Detail, e.Challenge = ErrUnavailable, "try again later", ""
	}
	return e
}

// parser checks the configuration, all problems at once, and makes the parser.
func (c *JWT) parser() (*jwt.Parser, error) {
	var problems []error
	report := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("caller: JWTSubject: "+format, args...))
	}
	if c.Keyfunc == nil {
		report("Keyfunc is missing: give what finds the issuer's keys")
	}
	if len(c.Algorithms) == 0 {
		report("Algorithms is empty: name those that the issuer signs with, for instance ES256")
	}
	hmac := 0
	for _, a := range c.Algorithms {
		if a == jwt.SigningMethodNone.Alg() || jwt.GetSigningMethod(a) == nil {
			report("the algorithm %q is not accepted", a)
		}
		if strings.HasPrefix(a, "HS") {
			hmac++
		}
	}
	if hmac > 0 && hmac < len(c.Algorithms) {
		report("Algorithms mixes HMAC with public keys: a public key could be taken for a shared secret")
	}
	if (c.Issuer == "") != c.AnyIssuer {
		report("give either Issuer or AnyIssuer")
	}
	if (c.Audience == "") != c.AnyAudience {
		report("give either Audience or AnyAudience")
	}
	if c.Leeway < 0 || c.Leeway > maxLeeway {
		report("Leeway is %s: it may be 0 to %s", c.Leeway, maxLeeway)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(c.Algorithms), jwt.WithExpirationRequired(), jwt.WithStrictDecoding(),
		jwt.WithLeeway(c.Leeway),
	}
	if c.Issuer != "" {
		options = append(options, jwt.WithIssuer(c.Issuer))
	}
	if c.Audience != "" {
		options = append(options, jwt.WithAudience(c.Audience))
	}
	if c.Now != nil {
		options = append(options, jwt.WithTimeFunc(c.Now))
	}
	return jwt.NewParser(options...), nil
}
