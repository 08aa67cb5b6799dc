package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quorate/quorate/jepsen/process"
)

const (
	// ioctlShutdown is FS_IOC_SHUTDOWN, which x/sys does not name.
	ioctlShutdown = 0x8004587d
	// shutdownNoLogFlush drops what is in memory, the journal too: nothing more reaches the disk.
	shutdownNoLogFlush = 2
	// mountOptions keep the journal from being written by time, so that only a sync makes things durable.
	mountOptions = "loop,commit=1000"
	// balloon is the file that fills an image.
	balloon = "balloon"
)

// Image is a disk: an ext4 file system in a file. It is not safe for concurrent use.
type Image struct {
	file    string
	dir     string
	mounted bool
}

// NewImage makes a file system of mib MiB in file and mounts it at dir, which it makes.
func NewImage(file, dir string, mib int64) (*Image, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(mib<<20), f.Close(), os.Mkdir(dir, 0o750)); err != nil {
		return nil, err
	}
	i := &Image{file: file, dir: dir}
	return i, i.format()
}

// format makes the file system anew and mounts it.
func (i *Image) format() error {
	// Nothing is set aside for root, so a full disk is full for the nodes as well, which run as root here.
	if err := run("mkfs.ext4", "-q", "-F", "-m", "0", i.file); err != nil {
		return err
	}
	return i.Mount()
}

// Exchange puts an empty disk in its place.
func (i *Image) Exchange(ctx context.Context) error {
	if err := i.Unmount(ctx); err != nil {
		return err
	}
	return i.format()
}

// run runs a command that says something only when it fails.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Dir is where it is mounted.
func (i *Image) Dir() string { return i.dir }

// Mount mounts it, replaying the journal.
func (i *Image) Mount() error {
	if err := run("mount", "-t", "ext4", "-o", mountOptions, i.file, i.dir); err != nil {
		return err
	}
	i.mounted = true
	return nil
}

// Unmount unmounts it; the loop device goes with the mount. What still uses it has until ctx ends.
func (i *Image) Unmount(ctx context.Context) error {
	if !i.mounted {
		return nil
	}
	var last error
	err := process.Await(ctx, "unmount "+i.dir, func() bool {
		last = unix.Unmount(i.dir, 0)
		return !errors.Is(last, unix.EBUSY)
	})
	if err = errors.Join(err, last); err == nil {
		i.mounted = false
	}
	return err
}

// Shutdown ends the file system as a power cut does: what was not synced is lost, and whatever is done
// from now on fails with EIO. Only Unmount and Mount bring it back.
func (i *Image) Shutdown() error {
	d, err := os.Open(i.dir)
	if err != nil {
		return err
	}
	err = unix.IoctlSetPointerInt(int(d.Fd()), ioctlShutdown, shutdownNoLogFlush)
	if err != nil {
		err = fmt.Errorf("shut down %s: %w", i.dir, err)
	}
	return errors.Join(err, d.Close())
}

// Sync makes all that it holds durable.
func (i *Image) Sync() error {
	d, err := os.Open(i.dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// Free is how many bytes are free.
func (i *Image) Free() (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(i.dir, &s); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", i.dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// Inflate leaves about as many bytes free as it is told, 0 none at all.
func (i *Image) Inflate(leave int64) error {
	f, err := os.OpenFile(filepath.Join(i.dir, balloon), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // what matters has been asked of the kernel
	size := int64(0)
	// The largest steps first: an allocation that fails gives back what it took, but a smaller one may fit.
	for step := int64(64 << 20); step >= 4096; {
		free, err := i.Free()
		if err != nil {
			return err
		}
		if free-step < leave {
			step /= 2
			continue
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, size, step); {
		case err == nil:
			size += step
		case errors.Is(err, unix.ENOSPC):
			step /= 2
		default:
			return fmt.Errorf("fill %s: %w", i.dir, err)
		}
	}
	return nil
}

// Deflate gives the space back.
func (i *Image) Deflate() error { return os.Remove(filepath.Join(i.dir, balloon)) }

// Remove unmounts it and deletes its file.
func (i *Image) Remove(ctx context.Context) error {
	if err := i.Unmount(ctx); err != nil {
		return err
	}
	return errors.Join(os.Remove(i.dir), os.Remove(i.file))
}

// Available reports, by trying it in dir, why images cannot be used here; nil when they can.
func Available(ctx context.Context, dir string) error {
	if os.Geteuid() != 0 {
		return errors.New("mounting a disk needs root")
	}
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		return fmt.Errorf("making a disk needs mkfs.ext4: %w", err)
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Errorf("mounting a disk needs loop devices: %w", err)
	}
	i, err := NewImage(filepath.Join(dir, "try.img"), filepath.Join(dir, "try"), 16)
	if err != nil {
		return err
	}
	return errors.Join(i.Shutdown(), i.Remove(ctx))
}
