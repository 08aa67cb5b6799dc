package storage

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	identityFile    = "identity.json"
	identityTmp     = identityFile + ".tmp"
	lockFile        = "lock"
	identityVersion = 1
	// maxIdentityBytes bounds what is read of a file that may be anything.
	maxIdentityBytes = 4096
)

// Why a data directory is refused.
var (
	// ErrForeign: the directory is another node's, another cluster's, or not a data directory.
	ErrForeign = errors.New("data directory refused")
	// ErrLocked: another process uses the directory.
	ErrLocked = errors.New("data directory is in use")
)

// Identity says whose a data directory is.
type Identity struct {
	Cluster string // cluster id, made when the cluster is made
	Node    string // node id, unique in the cluster
}

// identityRecord is the format of identity.json.
type identityRecord struct {
	Version int    `json:"version"`
	Cluster string `json:"cluster"`
	Node    string `json:"node"`
}

// Claimed is a data directory that this process alone may use.
type Claimed struct {
	lock *os.File
}

// Claim takes a data directory for a node, and writes into an empty one, once and durably, whose it
// is. A directory that is missing is made. A directory of another node or cluster, or one that holds
// other files, is refused with ErrForeign and left as it is; one that another process holds, with
// ErrLocked. The lock ends with Release, or with the process however that ends.
func Claim(dir string, id Identity) (*Claimed, error) {
	if id.Cluster == "" || id.Node == "" {
		return nil, fmt.Errorf("%w: cluster id and node id must be set before %s is opened", ErrForeign, dir)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	if _, err := checkIdentity(dir, id); err != nil {
		return nil, err
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	// Another process may have claimed it between the look and the lock.
	written, err := checkIdentity(dir, id)
	if err == nil && !written {
		err = writeIdentity(dir, id)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Claimed{lock: lock}, nil
}

// Release gives the directory back.
func (c *Claimed) Release() error { return c.lock.Close() }

// checkIdentity reports whether dir is already marked as id's; it changes nothing.
func checkIdentity(dir string, id Identity) (written bool, err error) {
	path := filepath.Join(dir, identityFile)
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, checkBlank(dir)
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	var r identityRecord
	if err := json.Unmarshal(data, &r); err != nil {
		return false, fmt.Errorf("%w: %s cannot be read (%w), so it is unknown whose data this is; "+
			"nothing was changed: restore the file from a backup, or replace the node", ErrForeign, path, err)
	}
	if r.Version != identityVersion {
		return false, fmt.Errorf("%w: %s has format %d, this program knows %d; nothing was changed: "+
			"start the program version that wrote it", ErrForeign, path, r.Version, identityVersion)
	}
	if r.Cluster != id.Cluster || r.Node != id.Node {
		return false, fmt.Errorf("%w: %s belongs to node %q of cluster %q, but this is node %q of cluster %q; "+
			"its votes and log are not this node's, so nothing was changed: "+
			"point the data directory at this node's own, or correct the configured ids",
			ErrForeign, dir, r.Node, r.Cluster, id.Node, id.Cluster)
	}
	return true, nil
}

// checkBlank refuses a directory without an identity that holds anything but what a first start that
// was cut short, or a file system, leaves.
func checkBlank(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read data directory: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockFile, identityTmp, "lost+found":
		default:
			return fmt.Errorf("%w: %s holds %q but no %s, so it is not a data directory; nothing was changed: "+
				"use an empty directory, or restore %s from a backup",
				ErrForeign, dir, e.Name(), identityFile, identityFile)
		}
	}
	return nil
}

func readBounded(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxIdentityBytes {
		return nil, fmt.Errorf("it has %d bytes, expected at most %d", info.Size(), maxIdentityBytes)
	}
	return os.ReadFile(path)
}

// writeIdentity makes identity.json whole or not at all, also through a power loss.
func writeIdentity(dir string, id Identity) error {
	data, err := json.Marshal(identityRecord{Version: identityVersion, Cluster: id.Cluster, Node: id.Node})
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	tmp := filepath.Join(dir, identityTmp)
	if err := writeSynced(tmp, append(data, '\n')); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, identityFile)); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// holder is what the lock file says of the process that holds it.
func holder(f *os.File) string {
	buf := make([]byte, 32)
	n, _ := f.ReadAt(buf, 0) // only for the message
	if pid := strings.TrimSpace(string(buf[:n])); pid != "" {
		return "process " + pid
	}
	return "another process"
}
