package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine is where it was measured.
type machine struct {
	CPU       string        `json:"cpu"`
	Cores     int           `json:"cores"`
	Kernel    string        `json:"kernel"`
	Go        string        `json:"go"`
	Date      string        `json:"date"`
	Sync      time.Duration `json:"sync_ns"` // the median of a 4 KiB write with fdatasync
	Load      string        `json:"load"`    // of the machine, before
	LoadAfter string        `json:"load_after"`
}

func aboutMachine(dir string) (m machine, err error) {
	m = machine{
		Cores: runtime.NumCPU(), Go: runtime.Version(), Date: time.Now().UTC().Format(time.DateOnly), Load: loadAverage(),
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, err
	}
	m.Kernel = "Linux " + unix.ByteSliceToString(u.Release[:])
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	m.CPU = "unknown processor"
	for _, line := range strings.Split(string(info), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	m.Sync, err = syncTime(dir)
	return m, err
}

// loadAverage is that of the last minute, as the kernel writes it.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// syncTime is how long the disk takes to keep 4 KiB.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "sync"))
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it is in the way of nothing
	defer f.Close()           //nolint:errcheck // nothing is to be kept
	const times = 101
	var took []time.Duration
	block := make([]byte, 4096)
	for range times {
		begin := time.Now()
		if _, err := f.Write(block); err != nil {
			return 0, err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return 0, fmt.Errorf("fdatasync: %w", err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	return took[times/2], nil
}
