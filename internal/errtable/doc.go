// Package errtable is the one table that says, for each public reason, which gRPC code and which
// HTTP status it has, whether the check may have been consumed, and what a client does about it; and
// it carries a quotaerr.Error over gRPC and back.
//
// Guarantees: every reason of package quotaerr has exactly one row; a status that the table does not
// know becomes an error that never reads as a decision; a transport failure becomes outcome_unknown,
// because the request may have been decided.
//
// It decides nothing and imports no server package, so that clients can use it.
package errtable
