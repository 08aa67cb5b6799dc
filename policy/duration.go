package policy

import (
	"errors"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// units are the units of a duration in nanoseconds, the largest first.
var units = []struct {
	name  string
	nanos uint64
}{
	{"d", 24 * 3600 * 1_000_000_000},
	{"h", 3600 * 1_000_000_000},
	{"m", 60 * 1_000_000_000},
	{"s", 1_000_000_000},
	{"ms", 1_000_000},
	{"us", 1_000},
	{"ns", 1},
}

var (
	errDurationSyntax = errors.New("is not a duration; write 60s, 5m or 1d")
	errDurationUnit   = errors.New("has no unit or an unknown one; write 60s, 5m or 1d")
	errDurationFine   = errors.New("is finer than a nanosecond; write whole nanoseconds")
	errDurationRange  = errors.New("is too long for a duration")
)

// ParseDuration reads a duration as Go writes it ("60s", "1h30m", "2500ms", "1.5h") with the unit
// "d" for 24 hours besides, and returns nanoseconds. It is exact: what is not a whole number of
// nanoseconds is an error.
func ParseDuration(text string) (nanos int64, err error) {
	rest, negative := text, false
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		negative = rest[0] == '-'
		rest = rest[1:]
	}
	if rest == "0" {
		return 0, nil
	}
	if rest == "" {
		return 0, errDurationSyntax
	}
	var sum uint64
	for rest != "" {
		var part uint64
		if part, rest, err = parseDurationPart(rest); err != nil {
			return 0, err
		}
		if part > 1<<63-sum {
			return 0, errDurationRange
		}
		sum += part
	}
	if negative {
		return -int64(sum), nil // right for 1<<63 too
	}
	if sum > math.MaxInt64 {
		return 0, errDurationRange
	}
	return int64(sum), nil
}

// parseDurationPart reads one number with its unit. The result is at most 1<<63.
func parseDurationPart(text string) (nanos uint64, rest string, err error) {
	whole, rest := digits(text)
	fraction := ""
	if strings.HasPrefix(rest, ".") {
		fraction, rest = digits(rest[1:])
	}
	if whole == "" && fraction == "" {
		return 0, "", errDurationSyntax
	}
	name := rest
	if end := strings.IndexAny(rest, ".0123456789"); end >= 0 {
		name = rest[:end]
	}
	unit := unitNanos(name)
	if unit == 0 {
		return 0, "", errDurationUnit
	}
	rest = rest[len(name):]
	if whole != "" {
		n, err := strconv.ParseUint(whole, 10, 64)
		high, low := bits.Mul64(n, unit)
		if err != nil || high != 0 || low > 1<<63 {
			return 0, "", errDurationRange
		}
		nanos = low
	}
	part, err := fractionNanos(strings.TrimRight(fraction, "0"), unit)
	if err != nil {
		return 0, "", err
	}
	if nanos += part; nanos > 1<<63 {
		return 0, "", errDurationRange
	}
	return nanos, rest, nil
}

// fractionNanos is 0.fraction units, exactly. The fraction does not end in 0; one of more than 16
// digits is never whole, since no unit has more than sixteen factors 2 or eleven factors 5.
func fractionNanos(fraction string, unit uint64) (uint64, error) {
	if fraction == "" {
		return 0, nil
	}
	if len(fraction) > 16 {
		return 0, errDurationFine
	}
	n, _ := strconv.ParseUint(fraction, 10, 64)
	scale := uint64(1)
	for range len(fraction) {
		scale *= 10
	}
	high, low := bits.Mul64(n, unit)
	quotient, remainder := bits.Div64(high, low, scale)
	if remainder != 0 {
		return 0, errDurationFine
	}
	return quotient, nil
}

func digits(text string) (number, rest string) {
	end := 0
	for end < len(text) && '0' <= text[end] && text[end] <= '9' {
		end++
	}
	return text[:end], text[end:]
}

// unitNanos is 0 for an unknown unit. Micro is written with u, the micro sign or the Greek mu.
func unitNanos(name string) uint64 {
	if name == "µs" || name == "μs" {
		name = "us"
	}
	for _, u := range units {
		if u.name == name {
			return u.nanos
		}
	}
	return 0
}

// FormatDuration writes nanoseconds canonically: whole numbers of d, h, m, s, ms, us and ns, the
// largest first, without zero parts ("1d12h", "2s500ms", "0s"). ParseDuration reads it back.
func FormatDuration(nanos int64) string {
	if nanos == 0 {
		return "0s"
	}
	var b []byte
	rest := uint64(nanos)
	if nanos < 0 {
		b = append(b, '-')
		rest = -rest
	}
	for _, u := range units {
		if n := rest / u.nanos; n > 0 {
			b = append(strconv.AppendUint(b, n, 10), u.name...)
			rest %= u.nanos
		}
	}
	return string(b)
}
