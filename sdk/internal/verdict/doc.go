// Package verdict asks for a request's decision and says, for HTTP and gRPC alike, what the public caller is told.
//
// Guarantees: a request passes only if every one of its identities was allowed, by somebody; whatever else comes back,
// unknown reasons and sources included, refuses it. What the public is told has nothing of the cluster in it: no node,
// leader or epoch, no cause, no principal.
//
// It writes no answer; quotahttp and quotagrpc do.
package verdict
