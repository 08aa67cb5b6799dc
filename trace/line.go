package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/quorate/quorate/fsm"
)

// The keys of a line. keyAt belongs to both kinds.
const (
	keyAt             = "at"
	keyPolicy         = "policy"
	keyPrincipal      = "principal"
	keyClass          = "api_class"
	keyDecisionID     = "decision_id"
	keyCost           = "cost"
	keyGateway        = "gateway"
	keyTier           = "tier"
	keyPolicyRevision = "policy_revision"
)

func isCheckKey(key string) bool {
	switch key {
	case keyPrincipal, keyClass, keyDecisionID, keyCost, keyGateway, keyTier, keyPolicyRevision:
		return true
	}
	return false
}

// parseLine reads one line. Its errors are those that end the run.
func parseLine(text []byte) (*Line, error) {
	values, err := parseObject(text)
	if err != nil {
		return nil, err
	}
	rawAt, ok := values[keyAt]
	if !ok {
		return nil, errors.New(`the line has no "at": give each line its time`)
	}
	line := new(Line)
	if line.At, err = parseAt(rawAt); err != nil {
		return nil, err
	}
	raw, isPolicy := values[keyPolicy]
	for key := range values {
		if isPolicy && isCheckKey(key) {
			return nil, fmt.Errorf("the line has both %q and %q: write two lines", keyPolicy, key)
		}
	}
	if isPolicy {
		if raw[0] != '{' {
			return nil, errors.New(`"policy" is not an object`)
		}
		line.Policy = raw
		return line, nil
	}
	line.Check, line.Malformed = parseCheck(values)
	return line, nil
}

// parseObject splits a JSON object into its values. encoding/json alone would let repeated keys,
// keys in another case and whatever follows the object pass.
func parseObject(text []byte) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil {
		return nil, notJSON(err)
	} else if open != json.Delim('{') {
		return nil, errors.New("the line is not a JSON object")
	}
	values := make(map[string]json.RawMessage, 8)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		key, ok := token.(string)
		if !ok {
			return nil, errors.New("the line is not JSON: a key is not a string")
		}
		if key != keyAt && key != keyPolicy && !isCheckKey(key) {
			return nil, fmt.Errorf("unknown key %q", key)
		}
		if _, repeated := values[key]; repeated {
			return nil, fmt.Errorf("key %q appears twice", key)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, notJSON(err)
		}
		values[key] = raw
	}
	if _, err := d.Token(); err != nil {
		return nil, notJSON(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the JSON object: write one object per line")
	}
	return values, nil
}

func notJSON(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the line is not JSON: %w", err)
}

// RFC 3339 as written by every program; time.Parse alone takes more than that.
var atFormat = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?` +
	`(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// The years that a trace may lie in, first and last included; nanoseconds of all of them, with the
// longest window on top, fit an int64.
const (
	firstYear = 1970
	lastYear  = 2200
)

func parseAt(raw json.RawMessage) (fsm.Time, error) {
	text, err := parseString(raw)
	if err != nil {
		return 0, fmt.Errorf(`"at" %w`, err)
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || !atFormat.MatchString(text) {
		return 0, fmt.Errorf(`"at" is %q: write it like 2026-09-22T12:00:00.5Z`, text)
	}
	at = at.UTC()
	if at.Year() < firstYear || at.Year() > lastYear {
		return 0, fmt.Errorf(`"at" is %q: the years %d to %d are possible`, text, firstYear, lastYear)
	}
	return fsm.Time(at.UnixNano()), nil
}

// parseCheck returns the check and what is wrong with it.
func parseCheck(values map[string]json.RawMessage) (*fsm.Check, error) {
	c := &fsm.Check{Gateway: Insecure, Charge: fsm.Charge{Cost: 1}}
	var wrong error
	text := func(key string, to *string) {
		raw, ok := values[key]
		if !ok {
			return
		}
		s, err := parseString(raw)
		if err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("%s %w", key, err))
			return
		}
		*to = s
	}
	text(keyDecisionID, &c.DecisionID)
	text(keyPrincipal, &c.Principal)
	text(keyClass, &c.Class)
	text(keyTier, &c.Tier)
	text(keyGateway, &c.Gateway)
	if raw, ok := values[keyCost]; ok {
		cost, err := strconv.ParseInt(string(raw), 10, 64)
		if err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("cost is %.40s: send a whole number from 1 to 2^53", raw))
		}
		c.Cost = cost
	}
	if raw, ok := values[keyPolicyRevision]; ok {
		revision, err := strconv.ParseUint(string(raw), 10, 64)
		if err != nil {
			wrong = errors.Join(wrong, fmt.Errorf("policy_revision is %.40s: send a revision or 0", raw))
		}
		c.PolicyRevision = fsm.Revision(revision)
	}
	if wrong == nil {
		wrong = fsm.ValidateCheck(c)
	}
	return c, wrong
}

// parseString reads a JSON string without replacing what is no Unicode text.
func parseString(raw json.RawMessage) (string, error) {
	if raw[0] != '"' {
		return "", errors.New("is not a string")
	}
	if !utf8.Valid(raw) {
		return "", errors.New("is not valid UTF-8")
	}
	if unpairedSurrogate(raw) {
		return "", errors.New("has half a surrogate pair")
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	return s, nil
}

// unpairedSurrogate reports whether a syntactically right JSON string has an escape that stands for
// no character, which encoding/json replaces.
func unpairedSurrogate(raw []byte) bool {
	high := false // the escape just before was a high surrogate
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			if high {
				return true
			}
			i++
			continue
		}
		if raw[i+1] != 'u' {
			if high {
				return true
			}
			i += 2
			continue
		}
		unit, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 16)
		if err != nil {
			return true
		}
		low := unit >= 0xDC00 && unit <= 0xDFFF
		if high != low {
			return true
		}
		high = utf16.IsSurrogate(rune(unit)) && !low
		i += 6
	}
	return high
}
