package quotahttp

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/quorate/quorate/sdk/caller"
)

// routed are rules whose classes are their routes.
func routed(patterns ...string) Rules {
	rules := Rules{Routes: map[string]caller.Rule{}, Fallback: caller.Limit("fallback", byHeader())}
	for _, p := range patterns {
		rules.Routes[p] = caller.Limit(p, byHeader())
	}
	return rules
}

// classOf is the class that a request was charged to; empty where it was refused as ambiguous.
func classOf(t testing.TB, g *guard, method, requestURI string) string {
	t.Helper()
	checker := allowing()
	copied := *g
	copied.checker = checker
	r := httptest.NewRequestWithContext(t.Context(), method, "/", nil)
	u, err := url.ParseRequestURI(requestURI)
	if err != nil {
		t.Fatal(err)
	}
	r.URL = u
	r.Header.Set("X-Api-Key", "acme")
	rec := httptest.NewRecorder()
	copied.wrap(served).ServeHTTP(rec, r)
	asked := checker.seen()
	if rec.Code == http.StatusBadRequest && len(asked) == 0 {
		return ""
	}
	if rec.Code != http.StatusOK || len(asked) != 1 {
		t.Fatalf("%s %s: %d after %d checks", method, requestURI, rec.Code, len(asked))
	}
	return asked[0][0].Class
}

// Shows which rule each kind of path gets, and that one which could be read as another route's is refused, whichever
// leniency of a handler would read it so.
func TestRoutes(t *testing.T) {
	g := mustGuard(t, allowing(), routed("POST /convert", "GET /convert", "/files/", "/accounts/{id}", "/both", "POST /both/",
		"/Docs/{Name}", "/tree/{$}", "GET /only"))
	for _, c := range []struct{ method, uri, want string }{
		{"POST", "/convert", "POST /convert"}, {"POST", "/convert?x=/files/../..", "POST /convert"},
		{"GET", "/convert", "GET /convert"}, {"HEAD", "/convert", "GET /convert"}, {"PUT", "/convert", "fallback"},
		{"POST", "/%63onvert", "POST /convert"}, {"POST", "http://evil.example/convert", "POST /convert"},
		{"GET", "/files/", "/files/"}, {"GET", "/files", "/files/"}, {"GET", "/files/a/b", "/files/"},
		{"GET", "/files/a/b/", "/files/"}, {"GET", "/files/a%20b", "/files/"}, {"GET", "/files/a;v=1", "/files/"},
		{"GET", "/accounts/5", "/accounts/{id}"}, {"GET", "/accounts/A", "/accounts/{id}"}, {"GET", "/accounts/5;v=1", "/accounts/{id}"},
		{"GET", "/accounts/5/posts", "fallback"}, {"GET", "/accounts/100%25", "/accounts/{id}"},
		{"GET", "/both", "/both"}, {"POST", "/both/", "POST /both/"}, {"POST", "/both/x", "POST /both/"},
		{"GET", "/Docs/x", "/Docs/{Name}"}, {"GET", "/tree/", "/tree/{$}"}, {"GET", "/tree", "/tree/{$}"},
		{"GET", "/", "fallback"}, {"GET", "/other", "fallback"}, {"GET", "/other/", "fallback"},
		{"CONNECT", "/files", "/files/"}, {"CONNECT", "/files/x", "/files/"}, {"CONNECT", "/both", "/both"},

		{"POST", "//convert", ""}, {"POST", "/convert//", ""}, {"POST", "/./convert", ""}, {"POST", "/convert/.", ""},
		{"POST", "/files/../convert", ""}, {"POST", "/files/%2e%2e/convert", ""}, {"POST", "/files/%2E./convert", ""},
		{"POST", "/files/..%2fconvert", ""}, {"POST", "/%2fconvert", ""}, {"POST", "/files%2Fa", ""},
		{"POST", "/files/..;/convert", ""}, {"POST", "/files/..;x=1/convert", ""}, {"POST", "/;/convert", ""},
		{"POST", "/files/..%5cconvert", ""}, {"POST", `/files\convert`, ""}, {"POST", "/convert%00", ""},
		{"POST", "/convert%0a", ""}, {"POST", "/convert%7f", ""},
		{"GET", "/file\u017f/a", ""}, {"GET", "/file%C5%BF/a", ""}, {"GET", "/F\u0130les/a", ""}, {"GET", "/f\u0131les/a", ""},
		{"GET", "/\u212Aind", "fallback"}, {"GET", "/%E2%84%AAind", "fallback"}, {"GET", "/fi\u212Aes/a", "fallback"},
		{"POST", "/%2563onvert%25", ""}, {"GET", "/accounts/%2541%25zz", ""}, {"GET", "/accounts/50%25zz", "/accounts/{id}"},
		{"POST", "/CONVERT", ""}, {"POST", "/Convert", ""}, {"POST", "/convert/", ""}, {"POST", "/convert;x", ""},
		{"POST", "/CONVERT/", ""}, {"POST", "/convert%253b/", ""}, {"POST", "/convert;a/", ""}, {"POST", "/%2563onvert", ""}, {"POST", "/%2543onvert", ""},
		{"GET", "/files/%252e%252e/convert", ""}, {"GET", "/files/a%252fb", ""}, {"GET", "/FILES/a", ""},
		{"GET", "/accounts/5/", ""}, {"GET", "/Accounts/5", ""}, {"GET", "/docs/x", ""}, {"GET", "/both/", ""},
		{"GET", "/TREE/", ""}, {"get", "/only", ""}, {"Post", "/convert", ""},
		{"OPTIONS", "*", ""},

		{"POST", "/convert%20", ""}, {"POST", "/convert%3Fa", ""}, {"POST", "/convert%23a", ""}, {"POST", "/convert%09", ""},
		{"POST", "/files/%25252e%25252e/convert", ""}, {"POST", "/files/..%20/convert", ""}, {"POST", "/%20convert", ""},
		{"POST", "/files/%c0%ae%c0%ae/convert", ""}, {"POST", "/files/%25c0%25ae%25c0%25ae/convert", ""}, {"POST", "/convert%ff", ""},
		{"POST", "/convert%2520", ""}, {"POST", "/convert%253Fa", ""}, {"POST", "/convert%2523", ""}, {"POST", "/convert%C2%A0", ""},
		{"POST", "/convert%C2%85", ""}, {"POST", "/files/%25u002e%25u002e/convert", ""}, {"POST", "/convert%20;x", ""}, {"GET", "/files/a;v=1%20", ""},
		{"POST", "/files/..%E2%80%8B/convert", ""}, {"POST", "/files/a%255cb", ""}, {"GET", "/files/a%2525b", ""},
		{"GET", "/files/a%20b%20c.txt", "/files/"}, {"GET", "/files/%C3%A9t%C3%A9", "/files/"}, {"GET", "/files/a%26b%3Dc%2B", "/files/"},
		{"GET", "/files/5%25", "/files/"}, {"GET", "/files/%2Ehidden", "/files/"}, {"GET", "/files/a%22%3C%3E%5B%5D%7B%7D%7C%5E%60", "/files/"},
	} {
		if got := classOf(t, g, c.method, c.uri); got != c.want {
			t.Errorf("%s %s is charged to %q, want %q", c.method, c.uri, got, c.want)
		}
	}
}

// lenient are the ways in which handlers read a path that is not written as they expect.
var lenient = map[string]func(*url.URL) string{
	"raw":      func(u *url.URL) string { return u.EscapedPath() },
	"decoding": func(u *url.URL) string { return u.Path },
	"cleaning": func(u *url.URL) string { return path.Clean(u.Path) },
	"folding":  func(u *url.URL) string { return strings.ToLower(path.Clean(u.Path)) },
	"folding simply": func(u *url.URL) string { // as strings.EqualFold does
		return equalFold(path.Clean(u.Path), "/convert", "/admin/keys")
	},
	"folding up": func(u *url.URL) string { return strings.ToLower(strings.ToUpper(path.Clean(u.Path))) },
	"decoding in part": func(u *url.URL) string {
		return path.Clean(decodeLeniently(u.Path))
	},
	"decoding in part, parametric": func(u *url.URL) string { return path.Clean(bare(decodeLeniently(u.Path))) },
	"decoding in part and folding": func(u *url.URL) string {
		return equalFold(path.Clean(decodeLeniently(u.Path)), "/convert", "/admin/keys")
	},
	"slashing":     func(u *url.URL) string { return strings.TrimSuffix(u.Path, "/") },
	"backslashing": func(u *url.URL) string { return path.Clean(strings.ReplaceAll(u.Path, `\`, "/")) },
	"truncating":   func(u *url.URL) string { p, _, _ := strings.Cut(u.Path, "\x00"); return p },
	"parametric":   func(u *url.URL) string { return path.Clean(bare(u.Path)) },
	"parametric, raw": func(u *url.URL) string {
		p, err := url.PathUnescape(bare(u.EscapedPath()))
		if err != nil {
			return u.Path
		}
		return path.Clean(p)
	},
	"decoding twice": func(u *url.URL) string {
		p, err := url.PathUnescape(u.Path)
		if err != nil {
			return u.Path
		}
		return path.Clean(p)
	},
	"decoding three times": func(u *url.URL) string {
		p := u.Path
		for range 3 {
			p = decodeLeniently(p)
		}
		return path.Clean(p)
	},
	"taking blanks off": func(u *url.URL) string { return path.Clean(trimSegments(u.Path)) },
	"decoding and taking blanks off": func(u *url.URL) string {
		return path.Clean(trimSegments(decodeLeniently(u.Path)))
	},
	"ending at a question": func(u *url.URL) string { return path.Clean(endAt(u.Path, "?#")) },
	"decoding, ending at a question": func(u *url.URL) string {
		return path.Clean(endAt(decodeLeniently(u.Path), "?#"))
	},
	"taking overlong forms":           func(u *url.URL) string { return path.Clean(overlong.Replace(u.Path)) },
	"decoding, taking overlong forms": func(u *url.URL) string { return path.Clean(overlong.Replace(decodeLeniently(u.Path))) },
	"dropping what is no UTF-8":       func(u *url.URL) string { return path.Clean(strings.ToValidUTF8(u.Path, "")) },
	"decoding as some scripts do": func(u *url.URL) string {
		return path.Clean(strings.NewReplacer("%u002e", ".", "%u002f", "/", "%u002E", ".", "%u002F", "/").Replace(u.Path))
	},
	"everything": func(u *url.URL) string {
		p, err := url.PathUnescape(u.Path)
		if err != nil {
			p = u.Path
		}
		return strings.ToLower(path.Clean(bare(strings.ReplaceAll(p, `\`, "/"))))
	},
}

// overlong writes out dots and slashes that are no UTF-8, as careless decoders do.
var overlong = strings.NewReplacer("\xc0\xae", ".", "\xc0\xaf", "/", "\xc1\x9c", `\`, "\xe0\x80\xae", ".", "\xe0\x80\xaf", "/")

// trimSegments takes blanks off the ends of each segment.
func trimSegments(p string) string {
	segments := strings.Split(p, "/")
	for i, s := range segments {
		segments[i] = strings.TrimSpace(s)
	}
	return strings.Join(segments, "/")
}

// endAt is p up to the first of some characters.
func endAt(p, chars string) string {
	if i := strings.IndexAny(p, chars); i >= 0 {
		return p[:i]
	}
	return p
}

// equalFold is the name that s is but for letter case, else s.
func equalFold(s string, names ...string) string {
	for _, n := range names {
		if strings.EqualFold(s, n) {
			return n
		}
	}
	return s
}

// decodeLeniently decodes what is well formed and leaves the rest as it is.
func decodeLeniently(p string) string {
	return escape.ReplaceAllStringFunc(p, func(e string) string {
		if s, err := url.PathUnescape(e); err == nil {
			return s
		}
		return e
	})
}

// Shows that letter case counts for nothing, whoever folds: upper case, lower case and simple folding of any letter are
// its likeness, and so are those of what they make of it.
func TestCaseless(t *testing.T) {
	for r := rune(0); r <= unicode.MaxRune; r++ {
		want := caseless(string(r))
		for _, other := range []rune{unicode.ToUpper(r), unicode.ToLower(r), unicode.ToTitle(r), unicode.SimpleFold(r)} {
			if got := caseless(string(other)); got != want {
				t.Errorf("%U is like %U, which it makes %U, like %U", r, []rune(want), other, []rune(got))
			}
		}
	}
}

// Shows, for paths made of every trick, that a handler of any leniency which ends up serving a listed resource does so
// only for a request that was charged to that resource's rule.
func TestNoPathReachesAnothersResource(t *testing.T) {
	g := mustGuard(t, allowing(), routed("/convert", "/admin/keys", "/files/"))
	pieces := []string{"/", "/", "//", "convert", "Convert", "CONVERT", "admin", "keys", "files", "x", ".", "..", ";", ";a=1",
		"%2f", "%2F", "%5c", `\`, "%2e", "%2E%2e", "%00", "%63", "%2563", "%252f", "%252e", "%3b", "%253b", "%25", "/../", "/./",
		"%C5%BF", "\u017f", "key%C5%BF", "%2573", "%25%2573", "%2563onvert", ";%25", "%E2%84%AA", "eys", "\u0131", "\u0130",
		"%20", "%20/", "%09", "%3F", "%3Fx", "%23", "%253F", "%2520", "%25252e", "%c0%ae", "%c0%af", "%e0%80%ae", "%25c0%25ae", "%ff",
		"%25u002e", "%25u002f", "%C2%A0", "/.. /", "/..%20/"}
	known := []string{"/admin/key%C5%BF", "/adm%C4%B0n/keys", "/adm%C4%B1n/%E2%84%AAeys", "/%2563onvert;%25", "/%2541dmin/keys;%25", "/convert%20", "/convert%3Fa",
		"/files/%25252e%25252e/convert", "/files/..%20/convert", "/files/%c0%ae%c0%ae/convert", "/convert%2520", "/convert%253F", "/convert%ff",
		"/files/%25u002e%25u002e/convert", "/files/%25c0%25ae%25c0%25ae/convert", "/convert%23", "/x%c0%af..%c0%af/convert"}
	rapid.Check(t, func(rt *rapid.T) {
		raw := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 1, 8).Draw(rt, "pieces"), "")
		switch n := rapid.IntRange(0, 3*len(known)).Draw(rt, "known"); {
		case n < len(known):
			raw = known[n] + raw[1:]
		case n < 2*len(known):
			raw = known[n-len(known)]
		}
		u, err := url.ParseRequestURI(raw)
		if err != nil {
			return // no server accepts it
		}
		charged := classOf(t, g, "GET", raw)
		if charged == "" {
			return
		}
		for name, read := range lenient {
			resource := read(u)
			for _, listed := range []string{"/convert", "/admin/keys"} {
				if resource == listed && charged != listed {
					rt.Fatalf("%q is charged to %q, and a handler that is %s serves %s", raw, charged, name, listed)
				}
			}
			if strings.HasPrefix(resource, "/files/") && charged != "/files/" {
				rt.Fatalf("%q is charged to %q, and a handler that is %s serves %s", raw, charged, name, resource)
			}
		}
	})
}

// Shows that http.ServeMux itself, behind the middleware with the same patterns, always serves the pattern that was
// charged.
func TestServeMuxAgrees(t *testing.T) {
	patterns := []string{"POST /convert", "/convert", "/files/", "GET /files/{name}", "/accounts/{id}/posts", "/a/{rest...}"}
	mux := http.NewServeMux()
	servedBy := ""
	for _, p := range append([]string{"/"}, patterns...) {
		mux.HandleFunc(p, func(http.ResponseWriter, *http.Request) { servedBy = p })
	}
	checker := allowing()
	handler := mustGuard(t, checker, routed(patterns...)).wrap(mux)
	segments := []string{"convert", "files", "accounts", "5", "posts", "a", "b%20c", "%61", "x", ""}
	rapid.Check(t, func(rt *rapid.T) {
		raw := "/" + strings.Join(rapid.SliceOfN(rapid.SampledFrom(segments), 1, 4).Draw(rt, "segments"), "/")
		r := mustRequest(t, rapid.SampledFrom([]string{"GET", "HEAD", "POST", "PUT"}).Draw(rt, "method"), "/", "acme")
		u, err := url.ParseRequestURI(raw)
		if err != nil {
			rt.Fatal(err)
		}
		r.URL, servedBy = u, ""
		before := len(checker.seen())
		rec := httptest.NewRecorder()
		handler.ServeHTTP(rec, r)
		asked := checker.seen()[before:]
		if servedBy == "" {
			return // refused, or redirected to where it will be asked again
		}
		if want := strings.Replace(servedBy, "/", "fallback", 1); len(asked) != 1 ||
			asked[0][0].Class != servedBy && (servedBy != "/" || asked[0][0].Class != want) {
			rt.Fatalf("%s %s is served by %q and charged to %+v", r.Method, raw, servedBy, asked)
		}
	})
}

// Shows that without routes the path does not matter: the handler is wrapped alone.
func TestWrappedAlone(t *testing.T) {
	g := mustGuard(t, allowing(), oneRule())
	for _, uri := range []string{"/", "//x", "/a%2Fb/..", "*"} {
		if got := classOf(t, g, "OPTIONS", uri); got != "convert" {
			t.Errorf("%s is charged to %q", uri, got)
		}
	}
}

// Shows that an attacker's segments make no class: any number of paths is charged to one fallback.
func TestInventedPathsShareTheFallback(t *testing.T) {
	g := mustGuard(t, allowing(), routed("/convert"))
	for _, uri := range []string{"/a", "/b", "/convert2", "/c/convert", "/" + strings.Repeat("z", 4000)} {
		if got := classOf(t, g, "GET", uri); got != "fallback" {
			t.Errorf("%.20s is charged to %q", uri, got)
		}
	}
}

// Shows that rules which could be read in two ways, or are missing, are refused when the middleware is made, all
// problems at once.
func TestRulesAreChecked(t *testing.T) {
	for name, rules := range map[string]Rules{
		"no fallback":    {Routes: routed("/convert").Routes},
		"a host":         routed("example.com/convert"),
		"a host, method": routed("POST example.com/convert"),
		"no path":        routed("POST"),
		"no pattern":     routed(""),
		"not clean":      routed("/a//b"),
		"dots":           routed("/a/../b"),
		"conflict":       routed("/{a}/b", "/a/{b}"),
		"letter case":    routed("/convert", "/Convert"),
		"wildcard":       routed("/{a"),
		"same":           routed("/accounts/{id}", "/accounts/{name}"),
		"empty rule":     {Routes: map[string]caller.Rule{"/convert": {}}, Fallback: caller.Unlimited()},
	} {
		if _, err := New(allowing(), rules); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	bad := routed("example.com/a", "/a//b")
	bad.Routes["/c"] = caller.Rule{}
	_, err := New(nil, bad, WithRetryJitter(-1), WithOnError(nil))
	if err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("got %v, want six problems", err)
	}
}
