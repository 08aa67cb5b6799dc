// Package quotahttp is middleware for net/http that lets a request through when its caller's allowance has room.
//
//	client, err := sdk.New([]string{"127.0.0.1:7070"})
//	// …
//	key := caller.APIKey("X-Api-Key", lookup)
//	limit, err := quotahttp.New(client, quotahttp.Rules{
//		Routes: map[string]caller.Rule{
//			"POST /convert": caller.Limit("convert", key),
//			"GET /healthz":  caller.Unlimited(),
//		},
//		Fallback: caller.Limit("default", key),
//	})
//	// …
//	http.ListenAndServe(addr, limit(handler))
//
// What the caller of a refused request gets, always with Cache-Control: no-store and a body as RFC 9457 has it, whose
// member reason says which it is:
//
//	429  quota_exhausted    with Retry-After, RateLimit-Policy and RateLimit of the limit that denied
//	403  blocked            a limit of 0: no time is known
//	503  endpoint_disabled  with Retry-After: the class is switched off
//	503  unavailable        with Retry-After: nobody could decide, and the class's failure mode is deny, or local
//	                        without room; or there is too much to do; or who calls cannot be told at present
//	400  invalid_argument   what names the caller, or the path, cannot be read; or cost_exceeds_limit, which never fits
//	401  unauthenticated    no credential, or one that is not accepted
//	500  internal           this gateway may not ask what it asks; WithOnError tells why
//
// A request that is let through gets RateLimit-Policy and RateLimit added, and nothing else. One that the failure modes
// allow or local let through reaches the handler likewise, without those headers when no limit is known. How a handler
// sees the bypass is DecisionFrom(r.Context()): Verified is false, Source is sdk.SourceBypass or sdk.SourceLocal, and
// Cause is why. When to try again is never earlier than the limit has room.
//
// Guarantees:
//   - The handler runs only for a request whose every identity was allowed. It gets the ResponseWriter itself, so HEAD,
//     flushing, hijacking, trailers and HTTP/2 are as without the middleware, and its panics pass through.
//   - No path reaches the handler by another rule than that of its route. A request whose path could be taken for
//     that of another route, by a handler that cleans, decodes, trims or folds it, is refused with 400. So is what no
//     handler needs: dots, slashes, backslashes and percents that are encoded twice, encoded ? and #, blanks at a
//     segment's end, and what is no UTF-8.
//   - A client that has gone before the decision is asked for costs nothing.
//   - The public sees nothing of the cluster: no node, no epoch, no policy revision, no cause, no principal.
//
// The caller's duties: put the middleware outside of whatever changes a request's path; take the handler's own answer
// to a method or path that it does not have for what it costs, as the check comes first; give the server its timeouts.
// A credential that is not accepted is refused before anything is asked, and so costs nothing: against those who guess,
// put a second middleware outside, with the client's address for its key. Browsers' preflights count as other requests
// do, unless a route such as "OPTIONS /" says otherwise.
// A pattern with a method covers that method (GET: HEAD too) and no other: others fall back. Where the handler behind
// knows better than a pattern what a request is, wrap it alone, with Rules that have only a Fallback: then paths are
// not looked at.
//
// An admission is not given back when the handler fails. The middleware buffers nothing, retries nothing, logs nothing,
// and authenticates only as package caller says.
package quotahttp
