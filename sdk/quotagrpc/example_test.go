package quotagrpc_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
	"github.com/quorate/quorate/sdk/quotagrpc"
	"github.com/quorate/quorate/sdk/quotatest"
)

const examplePolicy = `
version: v1
default: {limits: [{name: default, limit: 100, window: 60s}]}
classes:
  probe: {limits: [{name: per-hour, limit: 2, window: 1h}]}
`

// A gRPC service behind the interceptors: two calls an hour for each client address.
func ExampleNew() {
	quota, err := quotatest.New(examplePolicy)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer quota.Close()
	client, err := sdk.New(quota.Addrs(), sdk.WithDialOptions(quota.DialOptions()...))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	address := caller.ClientIP(caller.Proxies{})
	limit, err := quotagrpc.New(client, quotagrpc.Rules{
		Methods:  map[string]caller.Rule{"/grpc.health.v1.Health/Check": caller.Limit("probe", address)},
		Fallback: caller.Limit("default", address),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	go func() { _ = server.Serve(listener) }() // ends with Stop
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	for range 3 {
		_, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
		st := status.Convert(err)
		fmt.Println(st.Code())
		for _, d := range st.Details() {
			switch d := d.(type) {
			case *errdetails.RetryInfo:
				fmt.Println("a wait is told:", d.GetRetryDelay().AsDuration() > 0)
			case *errdetails.QuotaFailure:
				fmt.Println("the limit", d.GetViolations()[0].GetQuotaId(), "denied")
			}
		}
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
	// a wait is told: true
	// the limit per-hour denied
}
