package caller_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"

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
