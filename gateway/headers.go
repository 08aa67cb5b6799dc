package gateway

import (
	"io"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"

	"github.com/quorate/quorate/sdk/caller"
)

// headers says what of a request's headers an upstream gets.
type headers struct {
	principal string          // tells the principal; empty for none
	removed   map[string]bool // by plainName
	proxies   string          // that the proxies in front write addresses in, beside X-Forwarded-For; empty for none
	address   caller.Key
}

// plainName is a header's name as programs see it that know it as a variable, as in CGI: one that is made of it may
// have the same sign for all that is neither letter nor digit.
func plainName(name string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		case 'A' <= c && c <= 'Z':
			return c + 'a' - 'A'
		}
		return '-'
	}, name)
}

// alwaysRemoved are headers by which callers could say who they are.
var alwaysRemoved = []string{"forwarded", "x-real-ip"}

// overriding are headers by which some servers take a request for one of another method or path than those that were
// charged for.
var overriding = []string{
	"x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url",
}

const forwardedPrefix = "x-forwarded-"

func (c *Config) compileHeaders(who *callers) *headers {
	h := &headers{
		principal: c.PrincipalHeader, proxies: c.Proxies.Header, removed: map[string]bool{}, address: who.address,
	}
	for _, name := range overriding {
		h.removed[name] = true
	}
	for _, name := range c.KeepHeaders {
		delete(h.removed, plainName(name))
	}
	own := []string{c.PrincipalHeader, c.Proxies.Header}
	for _, name := range slices.Concat(own, c.RemoveHeaders, alwaysRemoved) {
		h.removed[plainName(name)] = true
	}
	for name := range who.secret {
		h.removed[name] = true
	}
	return h
}

// rewrite makes of a caller's request that which the upstream gets.
func (h *headers) rewrite(pr *httputil.ProxyRequest) {
	on := passageOf(pr.In.Context())
	to := on.route.upstream
	pr.SetURL(to.url)
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // with what ReverseProxy cannot parse, which the upstream may
	if to.config.PreserveHost {
		pr.Out.Host = pr.In.Host
	}
	for name := range pr.Out.Header {
		plain := plainName(name)
		if h.removed[plain] || strings.HasPrefix(plain, forwardedPrefix) {
			delete(pr.Out.Header, name)
		}
	}
	pr.Out.Trailer = nil // its values come too late to be judged
	pr.SetXForwarded()
	if addr, err := h.address.Principal(caller.FromHTTP(pr.In)); err == nil {
		addr = strings.TrimPrefix(addr, caller.PrefixIP)
		pr.Out.Header.Set("X-Forwarded-For", addr)
		if h.proxies != "" {
			pr.Out.Header.Set(h.proxies, addr)
		}
	}
	if h.principal != "" && on.principal != "" {
		pr.Out.Header.Set(h.principal, visible(on.principal))
	}
	sendOnce(pr.Out)
}

// sendOnce has http.Transport send a request no second time when a connection that was used before breaks: the first
// may have been executed, and one admission is for one execution. It repeats requests without a body whose method, or
// whose key of idempotency, which callers choose, says that it may. What is sent stays the same, but for letter case.
func sendOnce(out *http.Request) {
	if out.Body != nil && out.Body != http.NoBody {
		return
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := out.Header[name]; ok { // it looks for exactly this spelling
			delete(out.Header, name)
			out.Header[strings.ToLower(name)] = values
		}
	}
	switch out.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		// Identity has it send neither a length nor a coding, and not first try, against a clock, whether there is a byte.
		out.Body, out.GetBody, out.TransferEncoding = emptyBody{}, nil, []string{"identity"}
		out.Header.Del("Expect") // it would wait to be told to go on
	}
}

// emptyBody is a body without a byte that is not http.NoBody.
type emptyBody struct{}

// Read is at the end.
func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }

// Close does nothing.
func (emptyBody) Close() error { return nil }

// visible writes bytes other than visible ASCII, and %, as %XX.
func visible(s string) string {
	const hexadecimal = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c > ' ' && c < 0x7f && c != '%' {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', hexadecimal[c>>4], hexadecimal[c&15]})
		}
	}
	return b.String()
}
