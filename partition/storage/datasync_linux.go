package storage

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/hashicorp/raft-wal/types"
	"golang.org/x/sys/unix"
)

// syncsData says that syncData is less than a full sync.
const syncsData = true

// syncData makes what was written to a file durable, and what it takes to read it again.
func syncData(f types.WritableFile) error {
	raw, ok := f.(syscall.Conn)
	if !ok {
		return f.Sync()
	}
	conn, err := raw.SyscallConn()
	if err != nil {
		return err
	}
	var synced error
	err = conn.Control(func(fd uintptr) {
		for {
			if synced = unix.Fdatasync(int(fd)); !errors.Is(synced, unix.EINTR) {
				return
			}
		}
	})
	if err == nil && synced != nil {
		err = fmt.Errorf("fdatasync: %w", synced)
	}
	return err
}
