//go:build !linux

package storage

import "github.com/hashicorp/raft-wal/types"

const syncsData = false

// syncData makes a file durable.
func syncData(f types.WritableFile) error { return f.Sync() }
