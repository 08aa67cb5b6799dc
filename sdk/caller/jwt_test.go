package caller

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var tokenTime = time.Unix(1_800_000_000, 0)

func mustKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// mustSign signs good claims, changed; a nil value removes a claim.
func mustSign(t *testing.T, method jwt.SigningMethod, key any, change jwt.MapClaims) string {
	t.Helper()
	claims := jwt.MapClaims{"iss": "https://issuer.example", "aud": "convert", "sub": "alice",
		"exp": tokenTime.Add(time.Minute).Unix()}
	maps.Copy(claims, change)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	s, err := jwt.NewWithClaims(method, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func bearing(token string) http.Header { return header("Authorization", "Bearer "+token) }

// Shows that a good token is its subject, and that every way in which one is not good, forged, for somebody else, out
// of its time or without end, names nobody.
func TestJWTSubject(t *testing.T) {
	signer, stranger := mustKey(t), mustKey(t)
	key := JWTSubject(JWT{
		Keyfunc: func(tok *jwt.Token) (any, error) {
			if tok.Header["kid"] == "away" {
				return nil, fmt.Errorf("fetching keys: %w", ErrUnavailable)
			}
			return &signer.PublicKey, nil
		},
		Algorithms: []string{"ES256"}, Issuer: "https://issuer.example", Audience: "convert",
		Now: func() time.Time { return tokenTime },
	})
	if err := key.Err(); err != nil {
		t.Fatal(err)
	}
	es := jwt.SigningMethodES256
	good := mustSign(t, es, signer, nil)
	if got, err := key.Principal(mustHTTP(t, "", bearing(good))); got != "sub:alice" || err != nil {
		t.Errorf("a good token: %q, %v", got, err)
	}
	list := mustSign(t, es, signer, jwt.MapClaims{"aud": []string{"other", "convert"}})
	if got, err := key.Principal(mustHTTP(t, "", bearing(list))); got != "sub:alice" || err != nil {
		t.Errorf("a good token for several: %q, %v", got, err)
	}
	with := func(name string, value any) string {
		tok := jwt.NewWithClaims(es, jwt.MapClaims{"iss": "https://issuer.example", "aud": "convert", "sub": "alice",
			"exp": tokenTime.Add(time.Minute).Unix()})
		tok.Header[name] = value
		s, err := tok.SignedString(signer)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, other := range []string{"SUB", "Sub", "\u017fub"} { // the last one folds to sub as well
		two := mustSign(t, es, signer, jwt.MapClaims{other: "bob", "EXP": 0, "ISS": "x", "AUD": "x", "NBF": 9999999999})
		if got, err := key.Principal(mustHTTP(t, "", bearing(two))); got != "sub:alice" || err != nil {
			t.Errorf("a good token with %s as well: %q, %v", other, got, err)
		}
	}
	parts := strings.Split(good, ".")
	other := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"bob","aud":"convert","iss":"https://issuer.example","exp":9999999999}`))
	for name, c := range map[string]struct {
		token string
		kind  error
	}{
		"alg none":        {mustSign(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, nil), ErrInvalid},
		"no signature":    {parts[0] + "." + parts[1] + ".", ErrInvalid},
		"other claims":    {parts[0] + "." + other + "." + parts[2], ErrInvalid},
		"public as HMAC":  {mustSign(t, jwt.SigningMethodHS256, elliptic.MarshalCompressed(elliptic.P256(), signer.X, signer.Y), nil), ErrInvalid},
		"a stranger's":    {mustSign(t, es, stranger, nil), ErrInvalid},
		"no exp":          {mustSign(t, es, signer, jwt.MapClaims{"exp": nil}), ErrInvalid},
		"expired":         {mustSign(t, es, signer, jwt.MapClaims{"exp": tokenTime.Unix()}), ErrInvalid},
		"exp is a word":   {mustSign(t, es, signer, jwt.MapClaims{"exp": "never"}), ErrInvalid},
		"not yet":         {mustSign(t, es, signer, jwt.MapClaims{"nbf": tokenTime.Add(time.Second).Unix()}), ErrInvalid},
		"wrong audience":  {mustSign(t, es, signer, jwt.MapClaims{"aud": "billing"}), ErrInvalid},
		"no audience":     {mustSign(t, es, signer, jwt.MapClaims{"aud": nil}), ErrInvalid},
		"wrong issuer":    {mustSign(t, es, signer, jwt.MapClaims{"iss": "https://issuer.example/"}), ErrInvalid},
		"no issuer":       {mustSign(t, es, signer, jwt.MapClaims{"iss": nil}), ErrInvalid},
		"no subject":      {mustSign(t, es, signer, jwt.MapClaims{"sub": nil}), ErrInvalid},
		"empty subject":   {mustSign(t, es, signer, jwt.MapClaims{"sub": ""}), ErrInvalid},
		"subject a list":  {mustSign(t, es, signer, jwt.MapClaims{"sub": []string{"alice"}}), ErrInvalid},
		"only SUB":        {mustSign(t, es, signer, jwt.MapClaims{"sub": nil, "SUB": "bob"}), ErrInvalid},
		"only \u017fub":   {mustSign(t, es, signer, jwt.MapClaims{"sub": nil, "\u017fub": "bob"}), ErrInvalid},
		"only EXP":        {mustSign(t, es, signer, jwt.MapClaims{"exp": nil, "EXP": tokenTime.Add(time.Minute).Unix()}), ErrInvalid},
		"only ISS":        {mustSign(t, es, signer, jwt.MapClaims{"iss": nil, "ISS": "https://issuer.example"}), ErrInvalid},
		"only AUD":        {mustSign(t, es, signer, jwt.MapClaims{"aud": nil, "AUD": "convert"}), ErrInvalid},
		"critical":        {with("crit", []string{"exp"}), ErrInvalid},
		"keys away":       {with("kid", "away"), ErrUnavailable},
		"long subject":    {mustSign(t, es, signer, jwt.MapClaims{"sub": strings.Repeat("s", 509)}), ErrMalformed},
		"NUL in subject":  {mustSign(t, es, signer, jwt.MapClaims{"sub": "a\x00"}), ErrMalformed},
		"not a token":     {"a.b", ErrInvalid},
		"dots":            {strings.Repeat(".", 8000), ErrInvalid},
		"huge":            {strings.Repeat("a", 1<<20), ErrMalformed},
		"one and a space": {good + " " + good, ErrInvalid},
	} {
		got, err := key.Principal(mustHTTP(t, "", bearing(c.token)))
		wantKind(t, name, got, err, c.kind)
	}
	got, err := key.Principal(mustHTTP(t, "", header("Authorization", "Bearer "+good, "Bearer "+good)))
	wantKind(t, "two tokens", got, err, ErrMalformed)
	longest := mustSign(t, es, signer, jwt.MapClaims{"sub": strings.Repeat("s", 508)})
	if got, err := key.Principal(mustHTTP(t, "", bearing(longest))); len(got) != MaxPrincipalBytes || err != nil {
		t.Errorf("the longest subject: %d bytes, %v", len(got), err)
	}
}

// Shows that a missing token challenges for one, and a wrong one says so, as RFC 6750 has it.
func TestJWTChallenges(t *testing.T) {
	key := JWTSubject(JWT{
		Keyfunc:    func(*jwt.Token) (any, error) { return []byte(t.Name() + " is at least 32 bytes"), nil },
		Algorithms: []string{"HS256"}, AnyIssuer: true, AnyAudience: true,
	})
	challenge := func(value string) string {
		_, err := key.Principal(mustHTTP(t, "", header("Authorization", value)))
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("%q: %v", value, err)
		}
		return e.Challenge
	}
	if got := challenge(""); got != "Bearer" {
		t.Errorf("without a token the challenge is %q", got)
	}
	if got := challenge("Bearer x"); got != `Bearer error="invalid_token"` {
		t.Errorf("for a wrong token the challenge is %q", got)
	}
}

// Shows that a configuration which would take the wrong tokens is refused, all problems at once.
func TestJWTIsChecked(t *testing.T) {
	keyfunc := func(*jwt.Token) (any, error) { return nil, errors.New("never asked") }
	base := JWT{Keyfunc: keyfunc, Algorithms: []string{"ES256"}, Issuer: "i", Audience: "a"}
	for name, change := range map[string]func(*JWT){
		"no keys": func(c *JWT) { c.Keyfunc = nil }, "no algorithms": func(c *JWT) { c.Algorithms = nil },
		"none": func(c *JWT) { c.Algorithms = []string{"none"} }, "unknown": func(c *JWT) { c.Algorithms = []string{"XX"} },
		"mixed":     func(c *JWT) { c.Algorithms = []string{"HS256", "RS256"} },
		"no issuer": func(c *JWT) { c.Issuer = "" }, "no audience": func(c *JWT) { c.Audience = "" },
		"both issuers": func(c *JWT) { c.AnyIssuer = true }, "leeway": func(c *JWT) { c.Leeway = time.Hour },
		"negative leeway": func(c *JWT) { c.Leeway = -1 },
	} {
		c := base
		change(&c)
		if JWTSubject(c).Err() == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if err := JWTSubject(JWT{}).Err(); err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("an empty configuration gives %v, want four problems", err)
	}
	if err := JWTSubject(base).Err(); err != nil {
		t.Error(err)
	}
}
