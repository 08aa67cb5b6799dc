package gateway

import (
	"fmt"
	"strings"
	"time"
)

// problems collects all that is wrong with a configuration, each with its place.
type problems []error

func (p *problems) add(place, format string, args ...any) {
	*p = append(*p, &finding{place: place, err: fmt.Errorf(format, args...)})
}

// nest adds what several lines of an error say, each with the place.
func (p *problems) nest(place string, err error) {
	for line := range strings.Lines(err.Error()) {
		p.add(place, "%s", strings.TrimSpace(line))
	}
}

// between wants a number within bounds.
func between[N int | int64](p *problems, place string, n, least, most N) {
	if n < least || n > most {
		p.add(place, "%d: set it between %d and %d", n, least, most)
	}
}

// lasting wants a time within bounds.
func lasting(p *problems, place string, d, least, most time.Duration) {
	if d < least || d > most {
		p.add(place, "%s: set it between %s and %s", d, least, most)
	}
}

// oneOf wants one of some words.
func oneOf(p *problems, place, v string, of ...string) {
	for _, o := range of {
		if v == o {
			return
		}
	}
	p.add(place, "%q: write one of %s", v, strings.Join(of, ", "))
}
