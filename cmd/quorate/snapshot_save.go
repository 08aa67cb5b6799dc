package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// tellEvery is between two lines on how far a backup is.
const tellEvery = 5 * time.Second

func newSnapshotSave(o *options) *cobra.Command {
	req, force := &quoratev1.SaveSnapshotRequest{}, false
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Make a backup of the whole cluster, while it serves",
		Long: `save writes a consistent copy of every partition and of the control group to FILE, while the cluster serves on,
and verifies it. It begins when the plans that are under way have ended, for which it waits half a minute. Until it
is done FILE is not there, or as it was. It has what every principal has used, and
the hashes of tokens: keep it as you keep the data directories. What is admitted after it is not in it: see snapshot
restore.`,
		Example: "  quorate snapshot save quorate-$(date +%F).backup --comment nightly",
		Args:    filledArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := writable(args[0], force)
			if err != nil {
				return err
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				v, err := saveBackup(ctx, s, req, name, force)
				if err != nil {
					return err
				}
				if o.output != outputTable {
					return o.output.print(cmd.OutOrStdout(), v, nil)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is written and verified: backup %s\n%s\n", v.File, v.Digest, v.text())
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it is there")
	addComment(cmd, &req.Comment)
	return cmd
}

// writable is the file that is to be written for a name: itself, or what it is a link to. It refuses one that is there,
// unless it may be replaced, whatever is no file, and one whose directory is missing.
func writable(name string, force bool) (string, error) {
	info, err := os.Lstat(name)
	if err == nil && info.Mode()&fs.ModeSymlink != 0 && force {
		to, err := filepath.EvalSymlinks(name)
		if err != nil {
			return "", fmt.Errorf("%s is a link that cannot be followed: %w: name another file", name, cause(err))
		}
		return writable(to, force)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return name, hasDir(name)
	case err != nil:
		return "", fmt.Errorf("%s cannot be written: %w: name another file", name, cause(err))
	case info.IsDir():
		return "", fmt.Errorf("%s is a directory: name a file in it", name)
	case !force:
		return "", fmt.Errorf("%s is there already: name another file, or replace it with --force", name)
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no regular file, and is not replaced: name another file", name)
	}
	return name, nil
}

// hasDir refuses a name in a directory that is not there.
func hasDir(name string) error {
	dir := filepath.Dir(name)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("directory %s is not there: make it, or name a file elsewhere", dir)
	}
	return nil
}

// cause is err without the name of the file, which is another than the operator's.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// errUnwritten says why a backup could not be written to the file of its directory.
func errUnwritten(name string, err error) error {
	return fmt.Errorf("the backup cannot be written to %s: %w: mend that, or name a file elsewhere", filepath.Dir(name),
		cause(err))
}

// saveBackup makes a backup beside the file, verifies what was written, and gives it the file's name.
func saveBackup(
	ctx context.Context, s *session, req *quoratev1.SaveSnapshotRequest, name string, force bool,
) (v *backupView, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.partial") // for its owner alone
	if err != nil {
		return nil, errUnwritten(name, err)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, removeIfThere(f.Name()))
		}
	}()
	to := &telling{to: f, tell: s.progress, name: name, told: time.Now()}
	switch err := s.SaveSnapshot(ctx, req, to); {
	case err == nil:
	case ctx.Err() != nil:
		return nil, errors.New("interrupted: no backup was kept")
	case to.failed != nil: // no fault of the cluster's
		return nil, fmt.Errorf("%w; no backup was kept", errUnwritten(name, to.failed))
	default:
		return nil, fmt.Errorf("%w; no backup was kept", saidOnce(err))
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("%w; no backup was kept", errUnwritten(name, err))
	}
	if v, err = verified(f, name); err != nil {
		return nil, fmt.Errorf("what came is not kept: %w", err)
	}
	if err := give(f.Name(), name, force); err != nil {
		return nil, err
	}
	return v, syncDir(filepath.Dir(name))
}

// give gives a file another name; one that has appeared there meanwhile is replaced only with force.
func give(from, to string, force bool) error {
	if !force {
		err := os.Link(from, to)
		if err == nil {
			return os.Remove(from)
		}
		if errors.Is(err, fs.ErrExist) {
			_, err = writable(to, false)
			return err
		} // else this file system has no links
	}
	if _, err := writable(to, force); err != nil { // what has come to be there meanwhile
		return err
	}
	return os.Rename(from, to)
}

func removeIfThere(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncDir makes the names in a directory durable.
func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// telling is a writer that now and then tells how much was written.
type telling struct {
	to    io.Writer
	tell  io.Writer
	name  string
	bytes int64
	told  time.Time
	// failed is why the first write failed that did; nil: none.
	failed error
}

func (t *telling) Write(b []byte) (int, error) {
	n, err := t.to.Write(b)
	t.bytes += int64(n)
	if t.failed == nil {
		t.failed = err
	}
	if now := time.Now(); now.Sub(t.told) >= tellEvery {
		t.told = now
		fmt.Fprintf(t.tell, "%s: %s so far\n", t.name, sizeText(t.bytes))
	}
	return n, err
}
