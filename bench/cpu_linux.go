package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the kernel's unit for processors' time in /proc, 1/100 s on every platform of Go.
const tick = 10 * time.Millisecond

// OwnCPU is the processors' time that this process has used.
func OwnCPU() (time.Duration, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// CPU is the processors' time that another process of this machine has used, its ended children aside, to 10 ms.
func CPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("process %d: %w", pid, err)
	}
	// The name, in parentheses, may hold anything; what follows has utime and stime as the 12th and 13th.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("process %d: its /proc entry is not understood", pid)
	}
	var total time.Duration
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("process %d: its /proc entry is not understood: %w", pid, err)
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}
