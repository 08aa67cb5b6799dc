//go:build chaos && linux

package chaos

import (
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// monotonic is CLOCK_MONOTONIC as the machine counts it, also where this process is in a time namespace.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Sprintf("CLOCK_MONOTONIC cannot be read: %v", err))
	}
	return now.Nano() - namespaceOffset()
}

// namespaceOffset is by how much the process's time namespace has CLOCK_MONOTONIC ahead. It is fixed once a process is
// in it.
var namespaceOffset = sync.OnceValue(func() int64 {
	text, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // a kernel without time namespaces
	}
	for line := range strings.Lines(string(text)) {
		var name string
		var seconds, nanos int64
		if _, err := fmt.Sscan(line, &name, &seconds, &nanos); err == nil && name == "monotonic" {
			return seconds*1_000_000_000 + nanos
		}
	}
	return 0
})
