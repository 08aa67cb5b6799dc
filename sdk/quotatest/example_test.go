package quotatest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/quotatest"
)

// export is code that asks for an allowance: what a test is about.
func export(ctx context.Context, client *sdk.Client, account string) string {
	decision, err := client.Check(ctx, account, "export")
	switch {
	case err != nil:
		return "try later"
	case !decision.Allowed:
		return "denied: " + decision.Reason
	case !decision.Verified():
		return "exported, uncounted"
	}
	return "exported"
}

const examplePolicy = `
version: v1
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes:
  export: {limits: [{name: per-hour, limit: 2, window: 1h}], on_unavailable: allow}
`

// A server for one example or benchmark is made by New. A test calls Start, which ends it as well.
func Example() {
	server, err := quotatest.New(examplePolicy)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := sdk.New(server.Addrs(), sdk.WithDialOptions(server.DialOptions()...))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	if err := client.Ready(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		fmt.Println(export(ctx, client, "acme"))
	}
	server.Unavailable()
	fmt.Println(export(ctx, client, "globex"))
	server.Heal()
	fmt.Println(export(ctx, client, "globex"), server.Used("globex", "export", time.Hour))
	// Output:
	// exported
	// exported
	// denied: quota_exhausted
	// exported, uncounted
	// exported 1
}

// With a clock of one's own an hour takes no time. The client's clock is not moved by it: without hints it asks every
// time, and finds that there is room again.
func ExampleWithClock() {
	now := time.Now()
	server, err := quotatest.New(examplePolicy, quotatest.WithClock(func() time.Time { return now }))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	client, err := sdk.New(server.Addrs(), sdk.WithHintCapacity(0), sdk.WithDialOptions(server.DialOptions()...))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	ctx := context.Background()
	if err := client.Ready(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		fmt.Println(export(ctx, client, "acme"))
	}
	now = now.Add(time.Hour)
	fmt.Println(export(ctx, client, "acme"))
	// Output:
	// exported
	// exported
	// denied: quota_exhausted
	// exported
}

// Shows how a test uses a server: by Start, and then it says what goes wrong.
func TestExport(t *testing.T) {
	server := quotatest.Start(t, examplePolicy, quotatest.WithNodes(3))
	client := mustClient(t, server)
	if got := export(t.Context(), client, "acme"); got != "exported" {
		t.Errorf("at first: %s", got)
	}
	if err := server.Disable("export"); err != nil {
		t.Fatal(err)
	}
	server.Await(t, client)
	if got := export(t.Context(), client, "acme"); got != "denied: endpoint_disabled" {
		t.Errorf("switched off: %s", got)
	}
}
