package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/quorate/quorate/sdk"
)

// The SDK in ten lines: ask before the work is done, and obey.
func Example() {
	client, err := sdk.New([]string{"127.0.0.1:7070", "127.0.0.1:7080", "127.0.0.1:7090"})
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()
	http.HandleFunc("/convert", func(w http.ResponseWriter, r *http.Request) {
		d, err := client.Check(r.Context(), "acme", "convert")
		switch {
		case err != nil: // nobody could decide, and the class does not let it pass
			http.Error(w, "try again later", http.StatusServiceUnavailable)
		case !d.Allowed:
			http.Error(w, fmt.Sprintf("try again in %s", d.RetryAfter), http.StatusTooManyRequests)
		default: // the work
		}
	})
}

// What to do with each kind of error.
func ExampleError() {
	// Nothing listens on this port: the class is not known to let anything pass, so it does not.
	client, err := sdk.New([]string{"127.0.0.1:1"})
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()
	_, err = client.Check(context.Background(), "acme", "convert")
	var e *sdk.Error
	switch {
	case errors.Is(err, sdk.ErrRefused):
		fmt.Println("fix the request")
	case errors.Is(err, sdk.ErrOverloaded):
		fmt.Println("send less")
	case errors.As(err, &e) && errors.Is(err, sdk.ErrUnavailable):
		fmt.Println("unavailable:", e.Reason)
	}
	// Output: unavailable: no_quorum
}

// An address and an account have to let a request pass: the address is asked first, and what it consumed is wasted if
// the account then denies.
func ExampleClient_CheckAll() {
	client, err := sdk.New([]string{"127.0.0.1:1"})
	if err != nil {
		panic(err)
	}
	defer func() { _ = client.Close() }()
	all, err := client.CheckAll(context.Background(), []sdk.Identity{
		{Principal: "ip:192.0.2.7", Class: "login"},
		{Principal: "account:acme", Class: "login", Tier: "pro"},
	})
	fmt.Println(all.Allowed, all.Wasted, errors.Is(err, sdk.ErrUnavailable))
	// Output: false 0 true
}
