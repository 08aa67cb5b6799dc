package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
)

// maxJWKs bounds the keys of a set: a token without a key's id is tried with each.
const maxJWKs = 64

// secretMembers of a JWK are of a private or a shared key.
var secretMembers = []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"}

// parseJWKS reads a file with a set of public keys. Nothing is fetched.
func parseJWKS(name string, src []byte) (jwt.Keyfunc, error) {
	var set struct {
		Keys []map[string]json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(src, &set); err != nil {
		return nil, fmt.Errorf("%s: it is no JWK Set (RFC 7517): %w", name, err)
	}
	var p problems
	if n := len(set.Keys); n < 1 || n > maxJWKs {
		p.add("keys", "%d keys: give 1 to %d", n, maxJWKs)
	}
	ids := map[string]int{}
	for i, key := range set.Keys {
		place := index("keys", i)
		for member := range key {
			switch m := strings.ToLower(member); { // encoding/json does not tell letter case apart
			case slices.Contains(secretMembers, m):
				p.add(place, "%q: it is not a public key: a gateway needs, and should have, no other", member)
			case m == "x5u":
				p.add(place, "x5u: certificates are not fetched: write the key itself")
			}
		}
		id := string(key["kid"])
		if earlier, dup := ids[id]; dup {
			p.add(place, "kid: it is also that of keys[%d]: give each key its own", earlier)
		}
		ids[id] = i
	}
	if len(p) > 0 {
		var other problems // JSON is YAML, but for the last line's end
		return nil, readSource(name, src, nil, &other).tell(p)
	}
	var marshal jwkset.JWKSMarshal
	if err := json.Unmarshal(src, &marshal); err != nil {
		return nil, fmt.Errorf("%s: a key cannot be read: %w", name, err)
	}
	storage, err := marshal.ToStorage()
	if err != nil {
		return nil, fmt.Errorf("%s: a key cannot be read: %w", name, err)
	}
	k, err := keyfunc.New(keyfunc.Options{Storage: storage, UseWhitelist: []jwkset.USE{"", jwkset.UseSig}})
	if err != nil {
		return nil, fmt.Errorf("%s: the set cannot be used: %w", name, err)
	}
	return k.Keyfunc, nil
}
