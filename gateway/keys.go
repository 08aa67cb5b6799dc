package gateway

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/sdk/caller"
)

const (
	// keyBytes are the random bytes of a key: nobody guesses it, so a fast hash keeps it safe.
	keyBytes = 32
	// keyPrefix lets scanners for secrets recognise a key.
	keyPrefix = "qk_"
	// maxKeys bounds the keys of one file.
	maxKeys      = 100_000
	maxTierBytes = 64
)

// KeyEntry is one API key in a file of keys.
type KeyEntry struct {
	// SHA256 is the key's digest, in hexadecimal.
	SHA256 string `yaml:"sha256"`
	// Principal is whose allowance it uses. Several keys of one account have the same.
	Principal string `yaml:"principal"`
	// Tier is the principal's tier; empty for none.
	Tier string `yaml:"tier,omitempty"`
}

// keyFile is a file of keys.
type keyFile struct {
	Keys []KeyEntry `yaml:"keys"`
}

// NewKey makes a key with 256 random bits, and its entry. The error says what is wrong with principal or tier.
func NewKey(principal, tier string) (key string, entry KeyEntry, err error) {
	var secret [keyBytes]byte
	_, _ = rand.Read(secret[:]) // never fails
	key = keyPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
	sum := sha256.Sum256([]byte(key))
	entry = KeyEntry{SHA256: hex.EncodeToString(sum[:]), Principal: principal, Tier: tier}
	return key, entry, errors.Join(entry.check()...)
}

// Line is the entry as it stands in a file, below "keys:".
func (e *KeyEntry) Line() (string, error) {
	b, err := yaml.Marshal([]*KeyEntry{e})
	return strings.TrimRight(string(b), "\n"), err
}

// foreignPrefixes begin the principals of other kinds of credential.
var foreignPrefixes = []string{
	caller.PrefixSubject, caller.PrefixURI, caller.PrefixDNS, caller.PrefixCommonName, caller.PrefixIP,
}

func (e *KeyEntry) check() (out []error) {
	if err := caller.Validate(e.Principal); err != nil {
		out = append(out, fmt.Errorf("principal: write 1 to %d bytes of UTF-8 without NUL", caller.MaxPrincipalBytes))
	}
	for _, prefix := range foreignPrefixes {
		if strings.HasPrefix(e.Principal, prefix) {
			out = append(out, fmt.Errorf("principal: %q begins the callers of another kind of credential: "+
				"write another, for instance account:NAME", prefix))
		}
	}
	if len(e.Tier) > maxTierBytes || strings.ContainsRune(e.Tier, 0) {
		out = append(out, fmt.Errorf("tier: write at most %d bytes without NUL", maxTierBytes))
	}
	return out
}

type digest [sha256.Size]byte

// account is what a key stands for.
type account struct{ principal, tier string }

// parseKeys reads a file of keys, all problems at once.
func parseKeys(name string, src []byte) (map[digest]account, error) {
	var f keyFile
	d := yaml.NewDecoder(bytes.NewReader(src))
	d.KnownFields(true)
	err := d.Decode(&f)
	var p problems
	accounts := f.accounts(&p)
	if (err == nil || errors.Is(err, io.EOF)) && len(p) == 0 && oneDocument(src) == nil && endless(src).line == 0 {
		return accounts, nil
	}
	f, p = keyFile{}, nil // once more, to tell where everything stands
	s := readSource(name, src, reflect.TypeFor[keyFile](), &p)
	if s.root != nil {
		if err := s.root.Decode(&f); err != nil {
			addYAML(&p, err)
		}
		f.accounts(&p)
	}
	return nil, s.tell(p)
}

// accounts are those of the keys.
func (f *keyFile) accounts(p *problems) map[digest]account {
	if len(f.Keys) > maxKeys {
		p.add("keys", "%d keys: keep at most %d in one file", len(f.Keys), maxKeys)
		return nil
	}
	out := make(map[digest]account, len(f.Keys))
	at := map[digest]int{}
	for i := range f.Keys {
		e, place := &f.Keys[i], index("keys", i)
		for _, err := range e.check() {
			p.add(place, "%w", err)
		}
		sum, err := hex.DecodeString(e.SHA256)
		if err != nil || len(sum) != sha256.Size {
			p.add(place, "sha256: write the 64 hexadecimal digits that `quorate gateway key` prints")
			continue
		}
		key := digest(sum)
		if earlier, dup := at[key]; dup {
			p.add(place, "sha256: it is also that of keys[%d]: remove one of them", earlier)
		}
		at[key], out[key] = i, account{e.Principal, e.Tier}
	}
	return out
}

// oneDocument refuses what stands behind the first YAML document: it would not be read.
func oneDocument(src []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(src))
	var first, second yaml.Node
	if err := d.Decode(&first); err != nil {
		return nil //nolint:nilerr // whoever reads it says what is wrong
	}
	if err := d.Decode(&second); !errors.Is(err, io.EOF) {
		return fmt.Errorf("line %d: a second document begins: write all in one", max(second.Line, 1))
	}
	return nil
}

func index(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }
