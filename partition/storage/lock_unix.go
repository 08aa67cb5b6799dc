//go:build unix

package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockDir takes the directory's lock, which the kernel drops when the process ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of data directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("%w: %s holds %s; stop it, or give this node a directory of its own",
			ErrLocked, holder(f), dir)
	case err != nil:
		err = fmt.Errorf("lock data directory %s: %w", dir, err)
	default:
		err = f.Truncate(0)
		if err == nil {
			_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
