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
// without the owner says so by its Source, and is counted apart. A check is sent at most three times, always under the
// same id, never twice at once, within the class's timeout and at most half the replay horizon after its first send,
// and never again after a definite answer. A denial of a hint is one that the owner would give as well, under the
// policy and with the usage that are known; it is given for a first attempt only, and for five seconds at most.
//
// # Failure modes
//
// What happens when the owner cannot be reached is declared per class, in the policy:
//
//	deny   the check ends with ErrUnavailable
//	allow  it passes: Source is SourceBypass. Nobody counts it
//	local  it passes while a limit of this client's own has room: Source is SourceLocal. N gateways admit up to N times
//	       that limit, in addition to what the owners count
//
// A failure mode decides only where nobody else could: where the owner does not answer, has no majority, or nobody is
// elected to it before the check's time is over. It does not on a denial or bad input, not where the owner answers that
// it has too much to do, that the principal's slot is being moved or that the policy is changing, not for a class that
// is switched off, and not on an answer that this version does not understand. With several classes in one check the
// strictest of their modes counts. A client that has lost its configuration for longer than the grace period denies.
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
