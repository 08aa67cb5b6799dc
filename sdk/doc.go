// Package sdk is the gateway's side of Quorate: it asks the owner of a caller's allowance whether a request may go on,
// and knows what to do when the owner is away.
//
//	client, err := sdk.New([]string{"127.0.0.1:7070", "127.0.0.1:7080", "127.0.0.1:7090"})
//	…
//	d, err := client.Check(ctx, "acme", "convert")
//	switch {
//	case err != nil: // nobody could decide, and the class does not let it pass: 503
//	case !d.Allowed: // a denial: 429, and d.RetryAfter to wait
//	default: // go on
//	}
//
// # Guarantees
//
// A Decision whose Verified is true is an admission that a majority of replicas holds. What the client has let pass
// without the owner says so by its Source, and is counted apart. A check leaves this process at most three times,
// always under the same id, never twice at once, within the class's timeout and at most half the replay horizon after
// its first send, and never again after a definite answer. A denial of a hint is one that the owner would give as well,
// under the policy and with the usage that are known; it is given for a first attempt only, and for five seconds at
// most.
//
// # Failure modes
//
// What happens when the owner cannot be reached is declared per class, in the policy:
//
//	deny   the check ends with ErrUnavailable
//	allow  it passes: Source is SourceBypass. Nobody counts it
//	local  it passes while a limit of this client's own for that principal has room: Source is SourceLocal. The policy's
//	       local_limit is per gateway and principal: N gateways let a principal pass up to N times that limit, in
//	       addition to what the owners count
//
// A failure mode decides only where nobody else could: where the owner does not answer, has no majority, or nobody is
// elected to it before the check's time is over. It does not on a denial or bad input, not where the owner answers that
// it has too much to do, that the principal's slot is being moved or that the policy is changing, not for a class that
// is switched off, and not on an answer that this version does not understand. With several classes in one check the
// strictest of their modes counts. A client that has lost its configuration for longer than the grace period denies.
//
// Load can cause a failure mode to decide. An owner that is there and does not answer a check within its class's
// timeout cannot be told, for that check, from one that is away: it was sent, and what came of it is not known. So with
// allow and local give the timeout room for the busiest second. A check whose time ends while it still waits to be
// sent, to a node that takes what it is sent, is ErrOverloaded and no case for a failure mode; and of one principal no
// more than WithPrincipalInFlight checks are under way at once, so that a caller's own burst lets no more than those
// pass.
//
// What could not be sent at all, because nodes refuse connections, is tried again at other replicas, with short waits
// that grow, until the class's timeout is over; only then the failure mode decides. A class with a timeout of some
// seconds so outlasts a failover, or a restart of the nodes.
//
// # One cluster
//
// A client is of one cluster for its life: the first that tells it a configuration. If another one appears at the same
// addresses, as after its data was thrown away, the client takes nothing of it; its log, at WARN, and Stats, by
// WatchError, say so. Make a new client then.
//
// # The caller's duties
//
// Take principal and class from what was authenticated and from a closed set of routes, not from what the public caller
// may write freely. Give Check a context whose deadline the public caller cannot shorten: a deadline that ends before
// the class's timeout counts as the timeout, so that whoever sets it could choose the failure mode. Close the client.
//
// # What it does not do
//
// It authenticates no callers and knows no HTTP: package quotahttp does the latter. It imports nothing of the server.
package sdk
