package rpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// maxJSONCharges keeps a hostile list short before it is validated.
const maxJSONCharges = 64

// parseCheck reads a check from JSON, strictly: unknown, repeated and null fields, other types,
// numbers that are not written as integers, anything after the object, and strings that are not
// Unicode are refused, because guessing what was meant could charge somebody else.
func parseCheck(body []byte) (*quoratev1.CheckRequest, error) {
	if !utf8.Valid(body) {
		return nil, badJSON("the body is not UTF-8")
	}
	if err := wellFormed(body); err != nil {
		return nil, err
	}
	if loneSurrogate(body) {
		return nil, badJSON("a \\u escape is half of a surrogate pair")
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	req := &quoratev1.CheckRequest{}
	err := object(dec, "the body", func(name string) (err error) {
		switch name {
		case "principal":
			req.Principal, err = text(dec, name)
		case "api_class":
			req.ApiClass, err = text(dec, name)
		case "decision_id":
			req.DecisionId, err = text(dec, name)
		case "tier":
			req.Tier, err = text(dec, name)
		case "cost":
			req.Cost, err = integer(dec, name)
		case "policy_revision":
			req.PolicyRevision, err = natural(dec, name, 64)
		case "route_epoch":
			req.RouteEpoch, err = natural(dec, name, 64)
		case "attempt":
			var n uint64
			n, err = natural(dec, name, 32)
			req.Attempt = uint32(n)
		case "also":
			req.Also, err = charges(dec)
		default:
			err = badJSON("unknown field %.64q", name)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return req, nil
}

func badJSON(format string, args ...any) error {
	return quotaerr.New(quotaerr.InvalidArgument, format, args...)
}

func wellFormed(body []byte) error {
	var raw json.RawMessage
	if err := json.Unmarshal(body, &raw); err != nil {
		return badJSON("the body is not one JSON object: %v", err)
	}
	return nil
}

// loneSurrogate reports whether valid JSON escapes half of a surrogate pair. The decoder would put
// U+FFFD in its place, so that different names would become one.
func loneSurrogate(body []byte) bool {
	for i := 0; i < len(body); i++ {
		if body[i] != '\\' {
			continue
		}
		i++
		r, ok := unicodeEscape(body[i-1:])
		if !ok {
			continue
		}
		i += 4
		if r < 0xd800 || r > 0xdfff {
			continue
		}
		low, ok := unicodeEscape(body[i+1:])
		if r >= 0xdc00 || !ok || low < 0xdc00 || low > 0xdfff {
			return true
		}
		i += 6
	}
	return false
}

// unicodeEscape reads \uXXXX at the start of b.
func unicodeEscape(b []byte) (uint64, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	r, err := strconv.ParseUint(string(b[2:6]), 16, 32)
	return r, err == nil
}

// object reads an object and calls field at each value.
func object(dec *json.Decoder, what string, field func(name string) error) error {
	if err := delim(dec, '{', what+" must be a JSON object"); err != nil {
		return err
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return badJSON("%s is not a JSON object", what)
		}
		if seen[name] {
			return badJSON("field %.64q is given twice", name)
		}
		if len(seen) > 32 {
			return badJSON("%s has too many fields", what)
		}
		seen[name] = true
		if err := field(name); err != nil {
			return err
		}
	}
	return delim(dec, '}', what+" is not a JSON object")
}

func charges(dec *json.Decoder) ([]*quoratev1.Charge, error) {
	if err := delim(dec, '[', "also must be a list"); err != nil {
		return nil, err
	}
	var out []*quoratev1.Charge
	for dec.More() {
		if len(out) == maxJSONCharges {
			return nil, badJSON("also has too many charges")
		}
		c := &quoratev1.Charge{}
		at := fmt.Sprintf("also[%d]", len(out))
		err := object(dec, at, func(name string) (err error) {
			switch name {
			case "api_class":
				c.ApiClass, err = text(dec, at+"."+name)
			case "tier":
				c.Tier, err = text(dec, at+"."+name)
			case "cost":
				c.Cost, err = integer(dec, at+"."+name)
			default:
				err = badJSON("unknown field %.64q in %s", name, at)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, delim(dec, ']', "also must be a list")
}

func delim(dec *json.Decoder, want json.Delim, message string) error {
	if t, err := dec.Token(); err != nil || t != want {
		return badJSON("%s", message)
	}
	return nil
}

func text(dec *json.Decoder, name string) (string, error) {
	t, err := dec.Token()
	s, ok := t.(string)
	if err != nil || !ok {
		return "", badJSON("%s must be a string", name)
	}
	return s, nil
}

func number(dec *json.Decoder, name string) (string, error) {
	t, err := dec.Token()
	n, ok := t.(json.Number)
	if err != nil || !ok {
		return "", badJSON("%s must be an integer", name)
	}
	return n.String(), nil
}

func integer(dec *json.Decoder, name string) (*int64, error) {
	s, err := number(dec, name)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return nil, badJSON("%s must be an integer of 64 bits, written without fraction or exponent", name)
	}
	return &n, nil
}

func natural(dec *json.Decoder, name string, bits int) (uint64, error) {
	s, err := number(dec, name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 10, bits)
	if err != nil {
		return 0, badJSON("%s must be an integer from 0 to 2^%d-1, without fraction or exponent",
			name, bits)
	}
	return n, nil
}
