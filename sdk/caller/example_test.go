package caller_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"

	"github.com/quorate/quorate/sdk/caller"
)

// The client's address behind two proxies of one's own. What the client wrote itself does not count.
func ExampleClientIP() {
	key := caller.ClientIP(caller.Proxies{
		TrustedHops: 2, From: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	})
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	r.RemoteAddr = "10.0.0.2:40000"
	r.Header.Set("X-Forwarded-For", "192.0.2.66, 2001:db8:1:2:3:4:5:6, 10.0.0.1")
	fmt.Println(key.Principal(caller.FromHTTP(r)))
	// Output: ip:2001:db8:1:2::/64 <nil>
}

// An account where there is a key, else the client's address. A key that is not known is refused.
func ExampleFirstOf() {
	lookup := func(_ context.Context, key string) (string, error) {
		return map[string]string{"k-1": "account:acme"}[key], nil
	}
	key := caller.FirstOf(caller.APIKey("X-Api-Key", lookup), caller.ClientIP(caller.Proxies{}))
	for _, k := range []string{"k-1", "", "guessed"} {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
		r.Header.Set("X-Api-Key", k)
		principal, err := key.Principal(caller.FromHTTP(r))
		fmt.Printf("%q %v\n", principal, err != nil)
	}
	// Output:
	// "account:acme" false
	// "ip:192.0.2.1" false
	// "" true
}

// maxLogin bounds what is read of a login's body.
const maxLogin = 4 << 10

// account is the account that a login form names, in one spelling. The handler still reads the whole body.
func account(r *caller.Request) (string, error) {
	if r.HTTP == nil {
		return "", &caller.Error{Kind: caller.ErrMissing, Detail: "log in over HTTP"}
	}
	body := r.HTTP.Body
	read, err := io.ReadAll(io.LimitReader(body, maxLogin+1))
	if err != nil || len(read) > maxLogin {
		return "", &caller.Error{Kind: caller.ErrMalformed, Detail: "send a login form of at most 4 KiB", Cause: err}
	}
	r.HTTP.Body = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(read), body}
	form, err := url.ParseQuery(string(read))
	if err != nil || len(form["account"]) != 1 || form.Get("account") == "" {
		return "", &caller.Error{Kind: caller.ErrMalformed, Detail: "send a form with one field account", Cause: err}
	}
	return "login:" + strings.ToLower(strings.TrimSpace(form.Get("account"))), nil
}

// A login is charged to the address that it comes from, and then to the account that it names: who guesses from one
// address is stopped by the first, and who guesses one account from many addresses by the second.
func ExampleKeyFunc() {
	login := caller.Rule{Charges: []caller.Charge{
		{Class: "login-address", Key: caller.ClientIP(caller.Proxies{})},
		{Class: "login-account", Key: caller.KeyFunc(account)},
	}}
	for _, form := range []string{"account=Ada&password=x", "password=x", "account=" + strings.Repeat("a", maxLogin)} {
		r := httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/login", strings.NewReader(form))
		charged, err := login.Identities(caller.FromHTTP(r))
		if err != nil {
			fmt.Println(err)
			continue
		}
		for _, one := range charged {
			fmt.Println(one.Class, one.Principal)
		}
		left, _ := io.ReadAll(r.Body)
		fmt.Println("the handler reads", string(left))
	}
	// Output:
	// login-address ip:192.0.2.1
	// login-account login:ada
	// the handler reads account=Ada&password=x
	// the request cannot be read: send a form with one field account
	// the request cannot be read: send a login form of at most 4 KiB
}
