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
and verifies it. Until that is done FILE is not there, or as it was. It has what every principal has used, and
the hashes of tokens: keep it as you keep the data directories. What is admitted after it is not in it: see snapshot
restore.`,
		Example: "  quorate snapshot save quorate-$(date +%F).backup --comment nightly",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := mayWrite(args[0], force); err != nil {
				return err
			}
			return o.withSession(cmd, func(ctx context.Context, s *session) error {
				v, err := saveBackup(ctx, s, req, args[0], force)
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

// mayWrite refuses a file that is there, unless it may be replaced.
func mayWrite(name string, force bool) error {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("the backup cannot be written: %w: name another file", err)
	case info.IsDir():
		return fmt.Errorf("%s is a directory: name a file in it", name)
	case !force:
		return fmt.Errorf("%s is there already: name another file, or replace it with --force", name)
	}
	return nil
}

// saveBackup makes a backup beside the file, verifies what was written, and gives it the file's name.
func saveBackup(
	ctx context.Context, s *session, req *quoratev1.SaveSnapshotRequest, name string, force bool,
) (v *backupView, err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*.partial") // for its owner alone
	if err != nil {
		return nil, fmt.Errorf("the backup cannot be written: %w: name a file elsewhere", err)
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil {
			err = errors.Join(err, removeIfThere(f.Name()))
		}
	}()
	if err := s.SaveSnapshot(ctx, req, &telling{to: f, tell: s.progress, name: name, told: time.Now()}); err != nil {
		if ctx.Err() != nil {
			return nil, errors.New("interrupted: no backup was kept")
		}
		return nil, fmt.Errorf("%w; no backup was kept", err)
	}
	if err := f.Sync(); err != nil {
		return nil, fmt.Errorf("the backup cannot be written: %w", err)
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
			return mayWrite(to, false)
		} // else this file system has no links
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
}

func (t *telling) Write(b []byte) (int, error) {
	n, err := t.to.Write(b)
	t.bytes += int64(n)
	if now := time.Now(); now.Sub(t.told) >= tellEvery {
		t.told = now
		fmt.Fprintf(t.tell, "%s: %s so far\n", t.name, sizeText(t.bytes))
	}
	return n, err
}
