//go:build !linux

package group

import "net"

// setUserTimeout does nothing here: keepalive and the deadlines of each call must do.
func setUserTimeout(*net.TCPConn) error { return nil }
