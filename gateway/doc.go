// Package gateway is the reference gateway: a reverse proxy that finds out who calls, asks the cluster by the SDK
// whether the caller's allowance has room, and hands what may pass to an upstream. `quorate gateway` runs it.
//
//	cfg, err := gateway.Load("gateway.yaml", os.Environ())
//	// …
//	g, err := gateway.Start(cfg, gateway.Options{Logger: logger})
//	// …
//	err = g.Run(ctx, hangups)
//
// Guarantees:
//   - A request reaches an upstream only by a route of the configuration, after every charge of that route was allowed,
//     or by a route that says unlimited. What no route names is answered 404, unless there is a fallback. A class that
//     the policy does not list counts by the rules of its class default: that is told, see Config.Warnings.
//   - Who calls is the first credential, in the configured order, that the request shows. One that is not accepted is
//     401: no other kind is tried, and nothing is consumed.
//   - What has two readings is refused: see package wire for HTTP/1, quotahttp for paths, with a fallback alone too.
//     CONNECT, TRACE and methods, hosts and upgrades that are not listed are refused or, upgrades, ignored.
//   - What has passed is sent to the upstream once: with no method, and no Idempotency-Key, is it sent again when a
//     connection breaks.
//   - The upstream gets X-Forwarded-For, -Host and -Proto as this gateway saw them, and nothing of what the caller sent
//     under a name that begins with X-Forwarded-, or in Forwarded, X-Real-IP, the header that names the principal, the
//     API keys' headers, and those of remove_headers; with other signs for hyphens neither. proxies.header has the
//     address that was found. Headers that some servers take for the method or the path are removed too
//     (X-HTTP-Method-Override and others: see keep_headers), as what they say was not charged for.
//   - The query is passed on as it came, whether it can be parsed or not; it must be visible ASCII.
//   - Bodies, both ways, are passed on as they come, and so are the bytes after a change of protocol.
//   - A request that was sent whole is answered, whatever follows it on its connection, and when the caller then
//     sends no more. One who has gone altogether ends his request at the upstream: at once when his connection
//     breaks, or ends over TLS, as it does for each stream of HTTP/2. Without TLS one who has closed his connection
//     looks like one who waits for the answer: then when writing to him fails, and at the upstream's timeout at the
//     latest.
//   - What is wrong with a caller's own body is told to him, as 400, 408 or 413, and is no failure of the upstream.
//   - Connections, requests, changed protocols, headers, bodies, and each wait have a bound. One address has a share of
//     the connections, one caller a share of the changed protocols; beyond it nothing is charged. Where nobody pays no
//     protocol is changed, unless the route says so.
//   - A changed configuration is put in force as a whole, with the files that it names, or refused as a whole, with
//     all that is wrong with it logged. Requests that are under way end by the one that they began with. What still
//     changes, or ends in the middle of a line or of a certificate, does not count.
//   - Callers' certificates are judged by tls.client_ca as it is now: a connection from before a change ends with its
//     next answer, which is 421 when the connection could not be made any more.
//   - Neither log nor metric nor answer names a principal or shows a credential.
//
// The caller's duties: read the health paths and metrics at the address `admin`, and leave that one private; count the
// proxies in front (proxies.trusted_hops) right, and name where they connect from; rename finished files into
// place; make keys with NewKey, as they are kept by a fast hash.
//
// What it does not do: share out requests under way (max_requests) among callers, balance between several addresses
// of an upstream, speak HTTP/2 or gRPC to one, retry, cache, rewrite bodies or paths, pass on what follows a request's
// body (trailers), fetch a JWKS. X-Forwarded-Proto tells of the connection here, whatever a proxy in front says.
package gateway
