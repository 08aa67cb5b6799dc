package policy

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// nameFault says what is wrong with a name of at most max bytes; empty when nothing is.
func nameFault(name string, max int) string {
	switch {
	case name == "":
		return "must not be empty"
	case len(name) > max:
		return fmt.Sprintf("is %d bytes long; at most %d are allowed", len(name), max)
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	case strings.IndexByte(name, 0) >= 0:
		return "must not contain NUL"
	}
	return ""
}

// quoted is text in quotes for a message, shortened when it is long.
func quoted(text string) string {
	const most = 64
	if len(text) <= most {
		return strconv.Quote(text)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return strconv.Quote(text[:cut]) + "..."
}

// suggestion is `; did you mean "x"?` for the known name that is nearest to a mistyped one, or
// empty when none is near. Of equally near ones the first in order is taken.
func suggestion(name string, known []string) string {
	best, bestDistance := "", 3
	for _, k := range known {
		if d := distance(name, k, bestDistance); d < bestDistance && d < len(k) && d < len(name) {
			best, bestDistance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + quoted(best) + "?"
}

// distance is the Levenshtein distance of two names in bytes, or some number not below the bound
// when it is at least that.
func distance(a, b string, bound int) int {
	if len(a)-len(b) >= bound || len(b)-len(a) >= bound || len(a) > MaxPrincipalBytes {
		return bound
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
			cost := diagonal
			if a[i-1] != b[j-1] {
				cost++
			}
			diagonal = row[j]
			row[j] = min(cost, row[j]+1, row[j-1]+1)
			least = min(least, row[j])
		}
		if least >= bound {
			return bound
		}
	}
	return row[len(b)]
}
