package quotahttp

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/quorate/quorate/sdk/caller"
	"github.com/quorate/quorate/sdk/internal/verdict"
)

// Rules say what each request takes. They are a closed set: no part of a request becomes a class or a route.
type Rules struct {
	// Routes are by pattern, as http.ServeMux has them, without a host: "POST /convert", "/files/", "/users/{id}".
	Routes map[string]caller.Rule
	// Fallback is the rule of every request that no route names.
	Fallback caller.Rule
}

// table finds the route of a request.
type table struct {
	rules Rules
	// exact has the patterns; folded has them without letter case, and names those of exact.
	exact, folded *http.ServeMux
	original      map[string]string // pattern in folded → pattern in exact
	cased         bool              // a pattern is not its own likeness
}

// newTable checks the rules, all problems at once.
func newTable(rules Rules) (*table, error) {
	t := &table{
		rules: Rules{Routes: maps.Clone(rules.Routes), Fallback: rules.Fallback},
		exact: http.NewServeMux(), folded: http.NewServeMux(), original: map[string]string{},
	}
	problems := verdict.CheckRules(rules.Routes, rules.Fallback)
	for _, pattern := range slices.Sorted(maps.Keys(rules.Routes)) {
		if err := t.add(pattern); err != nil {
			problems = append(problems, fmt.Errorf("%q: %w", pattern, err))
		}
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("quotahttp: %w", errors.Join(problems...))
	}
	return t, nil
}

func (t *table) add(pattern string) error {
	method, rest := "", pattern
	if i := strings.IndexAny(pattern, " \t"); i >= 0 {
		method, rest = pattern[:i+1], strings.TrimLeft(pattern[i+1:], " \t")
	}
	if !strings.HasPrefix(rest, "/") {
		return errors.New("a pattern has no host, as a Host header is the client's to choose: begin its path with /")
	}
	if path.Clean(rest) != strings.TrimSuffix(rest, "/") && rest != "/" {
		return errors.New("the path is not clean: no request has it")
	}
	if err := register(t.exact, pattern); err != nil {
		return err
	}
	folded := method + fold(rest)
	if earlier, dup := t.original[folded]; dup {
		return fmt.Errorf("it differs from %q only in letter case or wildcards: handlers may take one for the other",
			earlier)
	}
	t.original[folded] = pattern
	t.cased = t.cased || !unfoldable(rest)
	return register(t.folded, folded)
}

// register adds a pattern that leads nowhere: only what matches counts.
func register(mux *http.ServeMux, pattern string) (err error) {
	defer func() {
		if p := recover(); p != nil { // this is how ServeMux reports a pattern that it does not take
			err = fmt.Errorf("%v", p)
		}
	}()
	mux.Handle(pattern, http.NotFoundHandler())
	return nil
}

var wildcard = regexp.MustCompile(`^\{[^$.]*(\.\.\.)?\}$`)

// fold writes a pattern's path without letter case and its wildcards by their place.
func fold(p string) string {
	segments := strings.Split(p, "/")
	for i, s := range segments {
		switch m := wildcard.FindStringSubmatch(s); {
		case m != nil:
			segments[i] = fmt.Sprintf("{w%d%s}", i, m[1])
		default:
			segments[i] = caseless(s)
		}
	}
	return strings.Join(segments, "/")
}

// rule is r's rule, or why its path is refused.
func (t *table) rule(r *http.Request) (caller.Rule, error) {
	if len(t.rules.Routes) == 0 {
		return t.rules.Fallback, nil
	}
	if err := plain(r.URL); err != nil {
		return caller.Rule{}, err
	}
	if r.Method != strings.ToUpper(r.Method) {
		return caller.Rule{}, unclear("the method must be in capitals")
	}
	p := r.URL.Path
	found := match(t.exact, r.Method, p)
	if t.resembles(r.Method, p, found) {
		return caller.Rule{}, unclear("the path looks like that of another resource: write it exactly")
	}
	if found == "" {
		return t.rules.Fallback, nil
	}
	return t.rules.Routes[found], nil
}

// resembles reports whether some handler would take p, whose route is found, for a path of another route: one that
// ignores letter case, what follows a semicolon, or a slash at the end, or that decodes once more.
func (t *table) resembles(method, p, found string) bool {
	if t.cased || !unfoldable(p) || strings.HasSuffix(p, "/") {
		if t.mistakable(method, p, found) {
			return true
		}
	}
	again, err := url.PathUnescape(p)
	if err != nil { // some decoders would take the escapes that are well formed, and leave the others
		return escape.MatchString(p)
	}
	if again == p {
		return false
	}
	return plain(&url.URL{Path: again}) != nil || t.mistakable(method, again, found)
}

func (t *table) mistakable(method, p, found string) bool {
	likeness := bare(caseless(p))
	if t.original[match(t.folded, method, likeness)] != found {
		return true
	}
	without := strings.TrimSuffix(likeness, "/")
	if without == likeness || without == "" {
		return false
	}
	other := t.original[match(t.folded, method, without)]
	return other != found && !subtree(other) && !twins(other, found) // twins are routes of their own, both
}

var escape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// caseless is s without letter case: what upper case, lower case and Unicode's simple folding make of one another
// is the same. Of the letters that fold together it has the one with the least code: capitals in ASCII.
func caseless(s string) string {
	return strings.Map(func(r rune) rune {
		r = unicode.ToLower(unicode.ToUpper(r))
		least := r
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			least = min(least, other)
		}
		return least
	}, s)
}

// unfoldable reports whether s is ASCII without capitals and semicolons. Two that are have the same likeness only
// if they are the same.
func unfoldable(s string) bool {
	for i := range len(s) {
		if c := s[i]; c >= utf8.RuneSelf || c >= 'A' && c <= 'Z' || c == ';' {
			return false
		}
	}
	return true
}

// match is the pattern that a path matches, also where ServeMux would redirect to it for a missing slash; empty for
// none.
func match(mux *http.ServeMux, method, p string) string {
	find := func(p string) string {
		_, pattern := mux.Handler(&http.Request{Method: method, URL: &url.URL{Path: p}})
		return pattern
	}
	pattern := find(p)
	if method == http.MethodConnect && pattern != "" && strings.HasPrefix(pattern, "/") && pattern == p+"/" {
		return find(p + "/") // for CONNECT it names the place, not the pattern
	}
	return pattern
}

// subtree reports whether a pattern matches more than one path of the same depth on; none matches nothing else.
func subtree(pattern string) bool {
	return pattern == "" || strings.HasSuffix(pattern, "/") || strings.HasSuffix(pattern, "...}")
}

// twins reports whether the paths of two patterns are the same but for the slash at the end.
func twins(without, with string) bool {
	a, b := fold(pathOf(without)), fold(pathOf(with))
	return b == a+"/" || b == a+"/{$}"
}

// pathOf is a pattern without its method.
func pathOf(pattern string) string { return pattern[max(0, strings.IndexByte(pattern, '/')):] }

func unclear(detail string) error { return &caller.Error{Kind: caller.ErrMalformed, Detail: detail} }

// plain refuses a path that has more than one reading: what cleaning or trimming would change, and what decoding, once
// more than is right or more laxly, would make a separator, a dot segment or the path's end.
func plain(u *url.URL) error {
	if !strings.HasPrefix(u.Path, "/") {
		return unclear("the path must begin with /")
	}
	for i := 0; i < len(u.Path); i++ {
		switch c := u.Path[i]; {
		case c < ' ' || c == 0x7f || c == '\\':
			return unclear("the path must not have control characters or backslashes")
		case c == '?' || c == '#':
			return unclear("the path must not have an encoded ? or #")
		}
	}
	if !utf8.ValidString(u.Path) { // some decoders take overlong forms of dots and slashes
		return unclear("the path must be UTF-8")
	}
	if strings.Contains(u.Path, "%") && structural.MatchString(u.Path) {
		return unclear("the path must not have dots, slashes, backslashes or percents that are encoded twice")
	}
	if u.RawPath != "" && strings.Count(u.EscapedPath(), "/") != strings.Count(u.Path, "/") {
		return unclear("the path must not have encoded slashes")
	}
	segments := strings.Split(u.Path[1:], "/")
	for i, s := range segments {
		name, _, _ := strings.Cut(s, ";")
		if name == "." || name == ".." || name == "" && (s != "" || i < len(segments)-1) {
			return unclear("the path must not have empty segments, . or ..")
		}
		if strings.TrimFunc(s, invisible) != s || strings.TrimFunc(name, invisible) != name {
			return unclear("the path must not have blanks at a segment's end")
		}
	}
	return nil
}

// structural are the escapes, in either way of writing them, that are left after decoding and would change where a path
// leads if somebody decoded again.
var structural = regexp.MustCompile(`(?i)%(?:u00)?(?:2e|2f|5c|25)`)

// invisible are the characters that some systems take off a name's end.
func invisible(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
}

// bare is a path without what follows a semicolon in each segment.
func bare(p string) string {
	if !strings.Contains(p, ";") {
		return p
	}
	segments := strings.Split(p, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	return strings.Join(segments, "/")
}
