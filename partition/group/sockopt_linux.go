package group

import (
	"net"

	"golang.org/x/sys/unix"
)

// setUserTimeout ends a connection whose sent bytes stay unacknowledged for userTimeout. Without it
// the kernel goes on retransmitting, ever more rarely, and a healed partition stays dead for as long.
func setUserTimeout(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(userTimeout.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return inner
}
