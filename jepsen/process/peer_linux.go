package process

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// errGone says that the other end of a connection is not open any more.
var errGone = errors.New("the other end has gone")

// peerOf is the node whose process has the other end of a connection, which is on this machine; nil when it is none
// of the nodes.
func peerOf(conn net.Conn, nodes []*Node) (*Node, error) {
	there, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return nil, err
	}
	here, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return nil, err
	}
	inode, err := inodeOf(there, here)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		pid := n.PID()
		if pid == 0 {
			continue
		}
		if has, err := holds(pid, inode); err == nil && has {
			return n, nil
		}
	}
	// A process that has just ended took it along; one that runs and is no node is a command.
	if _, err := inodeOf(there, here); err != nil {
		return nil, err
	}
	return nil, nil
}

// inodeOf is the inode of the socket at one end of a connection.
func inodeOf(end, other netip.AddrPort) (string, error) {
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read from
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && fields[1] == kernelAddr(end) && fields[2] == kernelAddr(other) && fields[9] != "0" {
			return fields[9], nil
		}
	}
	return "", errors.Join(errGone, lines.Err())
}

// kernelAddr writes an address as /proc/net/tcp does.
func kernelAddr(a netip.AddrPort) string {
	ip := a.Addr().Unmap().As4()
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(ip[:]), a.Port())
}

// holds reports whether a process has a socket open.
func holds(pid int, inode string) (bool, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	want := "socket:[" + inode + "]"
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == want {
			return true, nil
		}
	}
	return false, nil
}
