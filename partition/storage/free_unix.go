//go:build linux || darwin

package storage

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FreeBytes is how many bytes this user can still write to the file system that holds dir.
func FreeBytes(dir string) (uint64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("ask for free space in %s: %w", dir, err)
	}
	return s.Bavail * uint64(s.Bsize), nil
}
