package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/jepsen/cluster"
	"github.com/quorate/quorate/jepsen/disk"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

const (
	// imageMiB is the size of each node's disk.
	imageMiB = 256
	// endsWithin is how long a process may take to end that must.
	endsWithin = 30 * time.Second
	// refusesWithin is how long a node is watched that was started on a damaged directory.
	refusesWithin = 8 * time.Second
	// replacedWithin bounds an operator's work on a node that has lost its data.
	replacedWithin = 3 * time.Minute
)

// mounted makes a disk of a node's own, and returns the data directory on it.
func (r *run) mounted(dir, id string) (string, error) {
	image, err := disk.NewImage(filepath.Join(dir, id+".img"), filepath.Join(dir, id+".disk"), imageMiB)
	if err != nil {
		return "", err
	}
	r.images[id] = image
	return filepath.Join(image.Dir(), "data"), nil
}

// unmountAll takes the disks away, when no process uses them any more.
func (r *run) unmountAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	var errs []error
	for _, image := range r.images {
		errs = append(errs, image.Unmount(ctx))
	}
	return errors.Join(errs...)
}

// ended records that a process has ended, and that it was made to.
func (d *drawn) ended(n *cluster.Node, what, text string) error {
	return d.run.recorder.Event(&history.Event{
		At: d.run.now(), Kind: "end", What: what, Nodes: []string{n.ID}, Text: text, Injected: true,
	})
}

// powerCut cuts the power of one node, and now and then of all: what was not synced is gone.
func (d *drawn) powerCut(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	nodes := []*cluster.Node{n}
	if r.IntN(3) == 0 {
		nodes = d.members()
	}
	for _, n := range nodes { // all at once: nobody writes any more when the first process ends
		if err := d.run.images[n.ID].Shutdown(); err != nil {
			return false, err
		}
	}
	for _, n := range nodes {
		if err := errors.Join(n.Kill(), d.ended(n, "power cut", "")); err != nil {
			return false, err
		}
	}
	if len(nodes) == 1 {
		held(r)
	}
	for _, n := range nodes {
		if err := d.remount(ctx, n); err != nil {
			return false, err
		}
	}
	return true, nil
}

// remount puts a node's disk back in place and starts the node.
func (d *drawn) remount(ctx context.Context, n *cluster.Node) error {
	ctx, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	image := d.run.images[n.ID]
	if err := errors.Join(image.Unmount(ctx), image.Mount()); err != nil {
		return err
	}
	return n.Start()
}

// diskError has all that a node writes or reads fail. Its process must end by itself.
func (d *drawn) diskError(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	if err := d.run.images[n.ID].Shutdown(); err != nil {
		return false, err
	}
	within, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	status, lines, err := n.AwaitEnd(within)
	if err != nil {
		return false, fmt.Errorf("the disk of %s is dead: %w", n.ID, err)
	}
	said := strings.Join(lines, " / ")
	if status <= 0 || said == "" {
		return false, fmt.Errorf("the disk of %s is dead, and it ended with status %d and said %q", n.ID, status, said)
	}
	if err := d.ended(n, "disk error", said); err != nil {
		return false, err
	}
	held(r)
	return true, d.remount(ctx, n)
}

// diskFull leaves a node no room. It may end; with room it goes on.
func (d *drawn) diskFull(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	image := d.run.images[n.ID]
	if err := image.Inflate(0); err != nil {
		return false, err
	}
	free, err := image.Free()
	if err != nil {
		return false, err
	}
	held(r)
	if err := image.Deflate(); err != nil {
		return false, err
	}
	if !n.Ended() {
		return free == 0, nil
	}
	_, lines, err := n.AwaitEnd(ctx)
	if err == nil {
		err = d.ended(n, "disk full", strings.Join(lines, " / "))
	}
	if err != nil {
		return false, err
	}
	return true, n.Start()
}

// damage stops a node, damages what it has, and starts it. It may refuse, or find nothing wrong, and is then replaced
// as an operator would: by an empty directory.
func (d *drawn) damage(ctx context.Context, n *cluster.Node, what string, how func() error) (bool, error) {
	if err := errors.Join(n.Kill(), d.ended(n, what, "")); err != nil {
		return false, err
	}
	if err := how(); err != nil {
		return false, err
	}
	if err := n.Start(); err != nil {
		return false, err
	}
	within, cancel := context.WithTimeout(ctx, refusesWithin)
	defer cancel()
	_, lines, err := n.AwaitEnd(within)
	said := "it started"
	if err == nil {
		said = strings.Join(lines, " / ")
	}
	if err := errors.Join(n.Kill(), d.ended(n, what, said)); err != nil {
		return false, err
	}
	return d.replaceNode(ctx, n, nil)
}

// replaceNode gives a node that has lost its data a new beginning.
func (d *drawn) replaceNode(ctx context.Context, n *cluster.Node, _ *rand.Rand) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, replacedWithin)
	defer cancel()
	if n.Up() {
		if err := errors.Join(n.Kill(), d.ended(n, "replaced", "")); err != nil {
			return false, err
		}
	}
	var last error
	err := process.Await(ctx, n.ID+" is replaced", func() bool {
		_, last = d.run.cluster.Command(ctx, "node", "replace", n.ID)
		return last == nil
	})
	if err != nil {
		return false, errors.Join(err, last)
	}
	err = process.Await(ctx, "no group counts "+n.ID, func() bool {
		s, err := d.run.cluster.Status(ctx)
		return err == nil && !slices.ContainsFunc(s.Groups(), func(g *cluster.GroupState) bool {
			return g.Leader == "" || slices.ContainsFunc(g.Replicas, func(r cluster.ReplicaState) bool { return r.Node == n.ID })
		})
	})
	if err := errors.Join(err, n.LoseData()); err != nil {
		return false, err
	}
	if err := n.Start(); err != nil {
		return false, err
	}
	return true, d.run.cluster.AwaitNode(ctx, n.ID, "is one of the cluster again", func(i cluster.NodeInfo) bool {
		return i.State == "active" && i.Control != ""
	})
}

// someFile draws a file of a node's logs and snapshots.
func someFile(n *cluster.Node, r *rand.Rand) (string, error) {
	var files []string
	err := filepath.WalkDir(filepath.Join(n.DataDir, "groups"), func(file string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			files = append(files, file)
		}
		return err
	})
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("node %s has no files", n.ID)
	}
	if err != nil {
		return "", err
	}
	return files[r.IntN(len(files))], nil
}

func (d *drawn) bitFlip(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	return d.damage(ctx, n, "bit flip", func() error {
		file, err := someFile(n, r)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil || len(text) == 0 {
			return err
		}
		text[r.IntN(min(len(text), 64<<10))] ^= 1 << r.IntN(8) // near the beginning, where there is something
		return os.WriteFile(file, text, 0o600)
	})
}

func (d *drawn) truncate(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	return d.damage(ctx, n, "truncation", func() error {
		file, err := someFile(n, r)
		if err != nil {
			return err
		}
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.Truncate(file, r.Int64N(min(info.Size(), 64<<10)+1))
	})
}

// rollback puts back what a node had some seconds ago.
func (d *drawn) rollback(ctx context.Context, n *cluster.Node, r *rand.Rand) (bool, error) {
	if err := errors.Join(n.Kill(), d.ended(n, "copied", "")); err != nil {
		return false, err
	}
	old := n.DataDir + ".old"
	if err := os.CopyFS(old, os.DirFS(n.DataDir)); err != nil {
		return false, err
	}
	if err := n.Start(); err != nil {
		return false, err
	}
	held(r)
	return d.damage(ctx, n, "rollback", func() error {
		return errors.Join(os.RemoveAll(n.DataDir), os.Rename(old, n.DataDir))
	})
}

func (d *drawn) deleteData(ctx context.Context, n *cluster.Node, _ *rand.Rand) (bool, error) {
	return d.damage(ctx, n, "deletion", func() error { return os.RemoveAll(n.DataDir) })
}
