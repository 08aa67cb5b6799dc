// Package raftlog lets hashicorp's libraries, which log with hclog, log to slog. Debug and trace lines are
// dropped: Raft writes several for each request.
package raftlog
