// Package check judges histories. It needs no cluster and trusts as little as it can: an instant that a server tells
// counts only where a check says so.
package check
