package caller

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// maxKeyBytes bounds what is looked up.
const maxKeyBytes = 1024

// Lookup turns an API key into the principal that it stands for. A key that it does not know is an empty principal
// without an error, or an error that wraps ErrInvalid; any other error means that it cannot tell. It is handed whatever
// a stranger sends, up to 1,024 bytes, and should compare digests, not keys. Of several keys of one account it returns
// the same principal, else a caller gets a fresh allowance with each key he makes.
type Lookup func(ctx context.Context, apiKey string) (principal string, err error)

// APIKey is what lookup says of the key in the given header, which must be there exactly once.
func APIKey(header string, lookup Lookup) Key {
	if !httpguts.ValidHeaderFieldName(header) || lookup == nil {
		return broken("APIKey needs a header's name and a lookup, not %q", header)
	}
	challenge := "ApiKey"
	return Key{find: func(r *Request) (string, error) {
		key, err := single(r.Values(header), "the header "+header, challenge)
		if err != nil {
			return "", err
		}
		return lookUp(r, lookup, key, challenge)
	}}
}

// BearerKey is what lookup says of the key in the header Authorization, as "Bearer KEY".
func BearerKey(lookup Lookup) Key {
	if lookup == nil {
		return broken("BearerKey needs a lookup")
	}
	return Key{find: func(r *Request) (string, error) {
		key, err := bearer(r)
		if err != nil {
			return "", err
		}
		return lookUp(r, lookup, key, challengeBearer)
	}}
}

// QueryKey is what lookup says of the key in the given query parameter, which must be there exactly once; HTTP only.
// URLs end up in logs and histories: prefer a header.
func QueryKey(parameter string, lookup Lookup) Key {
	if parameter == "" || lookup == nil {
		return broken("QueryKey needs a parameter's name and a lookup")
	}
	return Key{find: func(r *Request) (string, error) {
		var values []string
		if r.HTTP != nil && r.HTTP.URL != nil {
			query, err := url.ParseQuery(r.HTTP.URL.RawQuery)
			if err != nil { // part of it may have been left out, and with it a second key
				return "", &Error{Kind: ErrMalformed, Detail: "the query cannot be read"}
			}
			values = query[parameter]
		}
		key, err := single(values, "the query parameter "+parameter, "")
		if err != nil {
			return "", err
		}
		return lookUp(r, lookup, key, "")
	}}
}

const challengeBearer = "Bearer"

// bearer is the token of the header Authorization, whose scheme is compared without regard to case.
func bearer(r *Request) (string, error) {
	value, err := single(r.Values("Authorization"), "the header Authorization", challengeBearer)
	if err != nil {
		return "", err
	}
	scheme, token, _ := strings.Cut(value, " ")
	token = strings.Trim(token, " ")
	if !strings.EqualFold(scheme, challengeBearer) || token == "" {
		return "", &Error{
			Kind: ErrMissing, Detail: "send the header Authorization as: Bearer TOKEN", Challenge: challengeBearer,
		}
	}
	return token, nil
}

// single is the only value. Several are refused: who reads the first and who reads the last would see two callers.
func single(values []string, what, challenge string) (string, error) {
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "":
		return "", &Error{Kind: ErrMissing, Detail: "send " + what, Challenge: challenge}
	case len(values) > 1:
		return "", &Error{Kind: ErrMalformed, Detail: "send " + what + " once"}
	}
	return values[0], nil
}

func lookUp(r *Request, lookup Lookup, key, challenge string) (string, error) {
	if len(key) > maxKeyBytes {
		return "", &Error{Kind: ErrMalformed, Detail: fmt.Sprintf("the key is longer than %d bytes", maxKeyBytes)}
	}
	principal, err := lookup(r.Context, key)
	if err == nil && principal == "" {
		err = ErrInvalid
	}
	if err != nil {
		e := *asError(err)
		if e.Challenge == "" {
			e.Challenge = challenge
		}
		return "", &e
	}
	return principal, nil
}
