// Package quotagrpc has interceptors for grpc-go servers that let a call through when its caller's allowance has room.
//
//	limit, err := quotagrpc.New(client, quotagrpc.Rules{
//		Methods: map[string]caller.Rule{
//			"/media.v1.Convert/Start": caller.Limit("convert", key),
//			"/grpc.health.v1.Health/*": caller.Unlimited(),
//		},
//		Fallback: caller.Limit("default", key),
//	})
//	// …
//	server := grpc.NewServer(grpc.UnaryInterceptor(limit.Unary), grpc.StreamInterceptor(limit.Stream))
//
// What the caller of a refused call gets, with google.rpc.ErrorInfo of domain "quorate":
//
//	RESOURCE_EXHAUSTED  quota_exhausted    with RetryInfo and QuotaFailure, which names the limit
//	PERMISSION_DENIED   blocked            a limit of 0: no time is known
//	UNAVAILABLE         endpoint_disabled  with RetryInfo: the class is switched off
//	UNAVAILABLE         unavailable        with RetryInfo: nobody could decide, and the class's failure mode is deny, or
//	                                       local without room; or there is too much to do
//	INVALID_ARGUMENT    invalid_argument   what names the caller cannot be read; or cost_exceeds_limit, which never fits
//	UNAUTHENTICATED     unauthenticated    no credential, or one that is not accepted
//	INTERNAL            internal           this gateway may not ask what it asks; WithOnError tells why
//	CANCELED, DEADLINE_EXCEEDED            the call ended before it was decided
//
// The headers ratelimit-policy and ratelimit are added where limits are known, as in HTTP.
//
// Guarantees: a handler runs only for a call whose every identity was allowed; a stream is decided once, at its start,
// before its handler and before any message; a call that has ended before the decision is asked for costs nothing; the
// public sees nothing of the cluster. Waits are never shorter than the limit's.
//
// The caller's duties: chain the interceptors before those that do work, and after those that recover from panics;
// charge long streams by other means, as their messages are not counted. A credential that is not accepted is refused
// before anything is asked, and so costs nothing: against those who guess, chain a second limiter before this one, with
// the client's address for its key.
//
// An admission is not given back when the handler fails. Nothing is retried or logged here.
package quotagrpc
