package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"
)

const (
	identityFile    = "identity.json"
	identityTmp     = identityFile + ".tmp"
	lockFile        = "lock"
	identityVersion = 2
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
	// Instance tells this directory from every other that the node has had or will have.
	Instance string `json:"instance"`
	// Groups are those whose stores are in the directory: they are not to be missing.
	Groups []string `json:"groups"`
	// Sum is the CRC-32C of the record with Sum 0.
	Sum uint32 `json:"crc32c"`
}

// Claimed is a data directory that this process alone may use.
type Claimed struct {
	dir   string
	lock  *os.File
	fresh bool

	mu     sync.Mutex // guards record
	record identityRecord
}

// Instance tells this directory from every other that the node has had or will have: what one of them
// voted and acknowledged is not known to another.
func (c *Claimed) Instance() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.record.Instance
}

// Disown undoes the claim of a directory that was nobody's before and holds nothing yet. It does nothing to
// any other.
func (c *Claimed) Disown() error {
	if blank := checkBlank(c.dir, identityFile) == nil; !blank || !c.fresh {
		return nil
	}
	if err := os.Remove(filepath.Join(c.dir, identityFile)); err != nil {
		return err
	}
	return syncDir(c.dir)
}

// Has reports whether the stores of a group are in the directory.
func (c *Claimed) Has(group string) bool { return slices.Contains(c.Groups(), group) }

// Groups are those whose stores are in the directory.
func (c *Claimed) Groups() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.record.Groups)
}

// Record notes durably that the stores of a group are in the directory, before anything is
// acknowledged from them.
func (c *Claimed) Record(group string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.record
	if slices.Contains(r.Groups, group) {
		return nil
	}
	r.Groups = append(slices.Clone(r.Groups), group)
	slices.Sort(r.Groups)
	if err := writeIdentity(c.dir, r); err != nil {
		return err
	}
	c.record = r
	return nil
}

// Forget notes durably that the stores of a group are not to be in the directory any more, before they are removed.
// The group must be closed, and have ended for good.
func (c *Claimed) Forget(group string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.record
	if !slices.Contains(r.Groups, group) {
		return nil
	}
	r.Groups = slices.DeleteFunc(slices.Clone(r.Groups), func(g string) bool { return g == group })
	if err := writeIdentity(c.dir, r); err != nil {
		return err
	}
	c.record = r
	return nil
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
	record, err := checkIdentity(dir, id)
	fresh := err == nil && record == nil
	if fresh {
		record = &identityRecord{
			Version: identityVersion, Cluster: id.Cluster, Node: id.Node, Instance: uuid.NewString(), Groups: []string{},
		}
		err = writeIdentity(dir, *record)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Claimed{dir: dir, lock: lock, fresh: fresh, record: *record}, nil
}

// Release gives the directory back.
func (c *Claimed) Release() error { return c.lock.Close() }

// checkIdentity reads whose dir is, nil when nobody's yet; it changes nothing.
func checkIdentity(dir string, id Identity) (*identityRecord, error) {
	path := filepath.Join(dir, identityFile)
	data, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, checkBlank(dir, lockFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	r, err := decodeIdentity(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %s cannot be read (%w), so it is unknown whose data this is; "+
			"nothing was changed: restore the file from a backup, or replace the node", ErrForeign, path, err)
	}
	if r.Cluster != id.Cluster || r.Node != id.Node {
		return nil, fmt.Errorf("%w: %s belongs to node %q of cluster %q, but this is node %q of cluster %q; "+
			"its votes and log are not this node's, so nothing was changed: "+
			"point the data directory at this node's own, or correct the configured ids",
			ErrForeign, dir, r.Node, r.Cluster, id.Node, id.Cluster)
	}
	return r, nil
}

// decodeIdentity reads what encode wrote, and nothing else.
func decodeIdentity(data []byte) (*identityRecord, error) {
	var r identityRecord
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if r.Version != identityVersion {
		return nil, fmt.Errorf("it has format %d, this program knows %d: start the program version that wrote it",
			r.Version, identityVersion)
	}
	want, err := r.encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(data, want) {
		return nil, errors.New("it is damaged: its checksum is wrong")
	}
	return &r, nil
}

// encode is the record with its checksum, the one way to write it.
func (r identityRecord) encode() ([]byte, error) {
	r.Sum = 0
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	r.Sum = crc32.Checksum(body, castagnoli)
	body, err = json.Marshal(r)
	return append(body, '\n'), err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checkBlank refuses a directory without an identity that holds anything but what a first start that
// was cut short, or a file system, leaves, and one file more.
func checkBlank(dir, also string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read data directory: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case lockFile, identityTmp, "lost+found", also:
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
func writeIdentity(dir string, r identityRecord) error {
	data, err := r.encode()
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	if err := ReplaceFile(filepath.Join(dir, identityFile), data); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	return nil
}

// ReplaceFile makes a small file whole or leaves it as it was, also through a loss of power; path.tmp may
// stay behind.
func ReplaceFile(path string, data []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// Remove removes a file, or a folder with all that is in it, durably. What is not there is removed already.
func Remove(path string) error {
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	err := syncDir(filepath.Dir(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
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
