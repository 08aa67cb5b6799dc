package policy

import (
	"strconv"
	"strings"
)

// name reads a name of at most max bytes. A scalar that YAML, in any of its versions, takes for
// something else than a string must be quoted, so that it means the same to every reader.
func (ps *parser) name(i int32, what string, max int) (name string, ok bool) {
	n := ps.at(i)
	switch {
	case n.kind == kindRefused:
		return "", false
	case n.kind != kindScalar || n.tag == tagNull && n.text == "":
		ps.problem(i, "%s must be a string, found %s", what, describe(n))
		return "", false
	case n.tag != tagString || n.plain && oldBoolean(n.text):
		ps.problem(i, "%s must be a string, found %s; write it in quotes, as %s",
			what, scalarKind(n), quoted(n.text))
		return "", false
	}
	if fault := nameFault(n.text, max); fault != "" {
		ps.problem(i, "%s %s, found %s", what, fault, quoted(n.text))
		return "", false
	}
	return n.text, true
}

// oldBoolean reports whether a plain scalar is a boolean in YAML 1.1, which later versions take for
// a string.
func oldBoolean(text string) bool {
	if len(text) > 3 {
		return false
	}
	switch strings.ToLower(text) {
	case "yes", "no", "on", "off":
		return true
	}
	return false
}

func scalarKind(n *node) string {
	switch n.tag {
	case tagNull:
		return "null"
	case tagInt, tagFloat:
		return "a number"
	case tagOther:
		return "a date or another type of YAML"
	}
	return "a boolean"
}

func (ps *parser) boolean(i int32) bool {
	n := ps.at(i)
	if n.kind == kindScalar && n.tag == tagBool {
		return strings.EqualFold(n.text, "true")
	}
	if n.kind != kindRefused {
		ps.problem(i, "this must be true or false, without quotes, found %s", describe(n))
	}
	return false
}

// integer reads a limit. Only plain decimal digits are taken: other spellings of numbers mean
// different things to different readers.
func (ps *parser) integer(i int32) int64 {
	n := ps.at(i)
	if n.kind == kindRefused {
		return 0
	}
	const plainDigits = "write plain decimal digits"
	_, rest := digits(n.text)
	switch {
	case n.kind != kindScalar || n.tag == tagNull:
		ps.problem(i, "a limit must be a whole number, found %s", describe(n))
	case !n.plain && rest == "":
		ps.problem(i, "a limit must be a number, found the string %s; write it without quotes",
			quoted(n.text))
	case !n.plain || n.tag != tagInt && n.tag != tagFloat && !octal(n.text):
		ps.problem(i, "a limit must be a whole number, found %s; %s", describe(n), plainDigits)
	case n.tag == tagFloat && rest != "":
		ps.problem(i, "a limit must be a whole number, found %s; %s without point or exponent",
			describe(n), plainDigits)
	case strings.HasPrefix(n.text, "-"):
		ps.problem(i, "a limit must not be negative, found %s", describe(n))
	case rest != "":
		ps.problem(i, "found %s; %s without sign, prefix or underscore", describe(n), plainDigits)
	case len(n.text) > 1 && n.text[0] == '0':
		ps.problem(i, "found %s, which some readers take as octal; remove the leading zero",
			describe(n))
	default:
		amount, err := strconv.ParseInt(n.text, 10, 64)
		if err != nil || amount > MaxLimit {
			ps.problem(i, "%s, found %s", limitBounds, describe(n))
		}
		return amount
	}
	return 0
}

// octal reports whether a scalar is of digits with a leading zero, such as 08, which is no number
// in YAML but looks like one.
func octal(text string) bool {
	number, rest := digits(text)
	return rest == "" && len(number) > 1 && number[0] == '0'
}

// duration reads a duration from least to most nanoseconds; bounds says what these are.
func (ps *parser) duration(i int32, least, most int64, bounds string) (nanos int64, ok bool) {
	n := ps.at(i)
	switch {
	case n.kind == kindRefused:
		return 0, false
	case n.kind != kindScalar || n.tag == tagNull:
		ps.problem(i, "a duration is expected, found %s; write 60s, 5m or 1d", describe(n))
		return 0, false
	}
	nanos, err := ParseDuration(n.text)
	switch {
	case err == nil && n.tag != tagString: // 0, which needs no unit in Go
		err = errDurationUnit
		fallthrough
	case err != nil:
		ps.problem(i, "%s %s", quoted(n.text), err)
		return 0, false
	case nanos < least || nanos > most:
		ps.problem(i, "%s, found %s", bounds, quoted(n.text))
		return 0, false
	}
	return nanos, true
}
