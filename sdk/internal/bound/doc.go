// Package bound has the bounds of a check that the service states and package policy does not, and says what a proper
// name is. It is what a client, its middleware and the server for tests have in common; it decides nothing.
package bound
