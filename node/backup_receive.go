package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/quorate/quorate/backup"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/quotaerr"
)

// restoring is a backup that a cluster is made of.
type restoring struct {
	*Node
	spool  *spool
	backup *backup.Backup
	kept   *state.Restored
}

// receive takes a backup in and reads it twice: as it comes, so that what is none is refused at once, and then as it is
// on this node's disk.
func (n *Node) receive(ctx context.Context, from io.Reader) (_ *restoring, err error) {
	file, err := n.newSpool()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close() // it has no name any more
		}
	}()
	if _, _, err := backup.Verify(io.TeeReader(&until{ctx, from}, file)); err != nil {
		return nil, backupError(err)
	}
	b, err := backup.Open(file, file.size)
	if err != nil {
		return nil, spoolError(err)
	}
	return &restoring{Node: n, spool: file, backup: b}, nil
}

// until ends a reader with its context.
type until struct {
	ctx  context.Context // of the one call that reads
	from io.Reader
}

func (u *until) Read(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.from.Read(b)
}

// backupError is the public error of reading a backup: what is wrong with it, or why it could not be read.
func backupError(err error) error {
	for _, kind := range []error{backup.ErrForeign, backup.ErrNewer, backup.ErrTruncated, backup.ErrDamaged} {
		if errors.Is(err, kind) {
			return quotaerr.Wrap(quotaerr.InvalidArgument, err, "%s", err.Error())
		}
	}
	return err
}

// unusable refuses a backup that is whole, but that no cluster can be made of.
func unusable(format string, args ...any) error {
	return quotaerr.New(quotaerr.InvalidArgument, "the backup cannot be restored: %s", fmt.Sprintf(format, args...))
}

// check reads all that is in the backup, before anything is changed: once a cluster is begun, its nodes cannot take
// another.
func (r *restoring) check(ctx context.Context) error {
	m := r.backup.Manifest()
	if m.Cluster != r.cfg.ClusterID {
		return unusable("it is of cluster %.63q, and the configuration of node %s says %s: set cluster_id on all nodes to "+
			"that of the backup, with empty data directories", m.Cluster, r.cfg.ID, r.cfg.ClusterID)
	}
	src, err := r.small(backup.ControlName)
	if err != nil {
		return err
	}
	if r.kept, err = state.DecodeRestored(src); err != nil {
		return unusable("%v", err)
	}
	r.kept.Backup = state.Digest(r.backup.Digest())
	newest := fsm.Revision(0)
	if n := len(r.kept.Revisions); n > 0 {
		newest = r.kept.Revisions[n-1].Number
	}
	if r.kept.Cluster != m.Cluster || r.kept.Incarnation != m.Incarnation || newest == 0 ||
		uint64(newest) != m.PolicyRevision {
		return unusable("its manifest and its control state are of different clusters")
	}
	has := map[string]bool{}
	for _, f := range m.Files {
		sum, isBody := strings.CutPrefix(f.Name, backup.BodyDir)
		if isBody && sum != f.SHA256 {
			return unusable("%s is another policy than its name says", f.Name)
		}
		has[sum] = isBody
	}
	if body := r.kept.Revisions[len(r.kept.Revisions)-1].Body; !has[body.String()] {
		return unusable("it lacks the policy in force")
	}
	for _, p := range m.Partitions {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := r.load(p); err != nil {
			return err
		}
	}
	return nil
}

// small reads a small file of the backup.
func (r *restoring) small(name string) ([]byte, error) {
	from, size, err := r.backup.File(name)
	if err != nil {
		return nil, unusable("%v", err)
	}
	if size > state.MaxRestoredBytes {
		return nil, unusable("%s has %d bytes, at most %d are possible", name, size, state.MaxRestoredBytes)
	}
	var out bytes.Buffer
	if _, err := out.ReadFrom(from); err != nil {
		return nil, spoolError(err)
	}
	return out.Bytes(), nil
}

// load reads the state of a partition, which must be what the manifest says.
func (r *restoring) load(p backup.Partition) (*savedState, error) {
	name := backup.PartitionDir + p.ID
	from, _, err := r.backup.File(name)
	if err != nil {
		return nil, unusable("%v", err)
	}
	s, err := loadState(bufio.NewReaderSize(from, pieceBytes))
	if err != nil {
		return nil, unusable("%s: %v", name, err)
	}
	want, st := owns{}, s.machine.Status()
	for _, o := range p.Ranges {
		want.add(fsm.SlotRange{First: fsm.Slot(o.First), Last: fsm.Slot(o.Last)}, fsm.Epoch(o.Epoch))
	}
	digest := st.Digest
	switch {
	case st.Cluster != r.kept.Cluster || st.Partition != p.ID || s.ownedBy() != want ||
		hex.EncodeToString(digest[:]) != p.Digest:
		return nil, unusable("%s is not what the manifest says", name)
	case st.Revision != r.kept.Revisions[len(r.kept.Revisions)-1].Number:
		return nil, unusable("%s has policy revision %d, not the one in force", name, st.Revision)
	case st.Level > fsm.MaxLevel:
		return nil, unusable("%s is of feature level %d, this program knows %d: use the program that wrote it", name,
			st.Level, fsm.MaxLevel)
	}
	return s, nil
}
