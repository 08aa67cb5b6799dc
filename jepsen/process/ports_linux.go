package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
)

const (
	// portsPerNode is how far apart the ports of two nodes are.
	portsPerNode = 10
	// portsUsed are those of them that may be listened on.
	portsUsed = 7
)

// FreePorts finds a base with room for n nodes' ports, portsPerNode each, below those that the kernel gives to outgoing
// connections: one of these could take the port of a node that is down.
func FreePorts(n int) (int, error) {
	below := 32768
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if fields := strings.Fields(string(text)); len(fields) == 2 {
			if lowest, err := strconv.Atoi(fields[0]); err == nil {
				below = min(below, lowest)
			}
		}
	}
	const from = 12000
	if below <= from+portsPerNode*n {
		return 0, fmt.Errorf("outgoing connections take ports from %d: leave those from %d to 32767 to servers", below, from)
	}
	for range 100 {
		base := from + portsPerNode*rand.IntN((below-from)/portsPerNode-n)
		if allFree(base, n) {
			return base, nil
		}
	}
	return 0, fmt.Errorf("no free ports between %d and %d", from, below)
}

func allFree(base, n int) bool {
	for k := range n {
		for offset := range portsUsed {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+portsPerNode*k+offset))
			if err != nil {
				return false
			}
			_ = l.Close() // it listened, which was the question
		}
	}
	return true
}
