package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

func newSnapshotRestore(o *options) *cobra.Command {
	first := &quoratev1.RestoreSnapshotRequest{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a cluster of a backup, once, on blank nodes",
		Long: `restore makes a cluster of the backup in FILE, in place of cluster init: the nodes run with the cluster id of
the backup and blank data directories, and the node at the first of --addr has them in its list of whom to join.
What was admitted after the backup is not known. So each principal is denied until its longest window has passed since
the restore; with --accept-loss it is not, and may be admitted more than its limits allow. Gateways that have an older
map are refused until they have the new one. When it was cut short, repeat it with the same file: it goes on where it
was.`,
		Example: "  quorate snapshot restore quorate.backup --addr 10.0.0.1:7070 --comment \"fire in zone a\"",
		Args:    filledArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			addrs, err := o.addrs(cmd)
			if err != nil {
				return err
			}
			f, err := openBackup(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // it was only read
			v, err := verified(f, args[0])
			if err != nil {
				return err
			}
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
			return o.withSessionOf(cmd, addrs[:1], func(ctx context.Context, s *session) error {
				r, err := restoreBackup(ctx, s, first, f)
				if err != nil {
					return err
				}
				return o.printRestored(cmd, restoredOf(r, v, first.GetAcceptLoss()))
			})
		},
	}
	cmd.Flags().BoolVar(&first.AcceptLoss, "accept-loss", false, "deny nothing for what may have been admitted since")
	addComment(cmd, &first.Comment)
	return cmd
}

// restoreBackup sends a backup, and says how its plans go on until the cluster is made.
func restoreBackup(
	ctx context.Context, s *session, first *quoratev1.RestoreSnapshotRequest, from io.Reader,
) (*quoratev1.RestoreSnapshotResponse, error) {
	watching, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watchRestore(watching, s)
	}()
	r, err := s.RestoreSnapshot(ctx, first, from)
	stop()
	<-ended
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil:
		return nil, errors.New("interrupted: repeat it with the same file; if it has begun it goes on where it was")
	case quotaerr.ReasonOf(err) == quotaerr.OutcomeUnknown:
		return nil, quotaerr.New(quotaerr.OutcomeUnknown, "no answer came: see that the node at --addr runs, then repeat it "+
			"with the same file; if it has begun it goes on where it was")
	case retryable(err) && hasBegun(ctx, s):
		return nil, fmt.Errorf("%w: repeat it with the same file, it goes on where it was", err)
	}
	return nil, saidOnce(err)
}

// hasBegun reports whether the node has something of a cluster.
func hasBegun(ctx context.Context, s *session) bool {
	r, err := clusterStatus(ctx, s)
	return err == nil && r.GetControl() != nil
}

// watchRestore says how the plans of a restore stand, as far as the node tells, until ctx ends.
func watchRestore(ctx context.Context, s *session) {
	progress := newLines(s.progress)
	tick := time.NewTicker(lookPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r, err := call(ctx, s, s.ListPlans, &quoratev1.ListPlansRequest{})
		if err != nil {
			continue // there is no cluster yet
		}
		plans := plansOf(r)
		for i := range plans {
			if p := &plans[len(plans)-1-i]; p.Kind == "restore" { // the oldest first
				text := fmt.Sprintf("%s %s: %s", p.Destination, p.Phase, plainText(p.note()))
				progress.say(p.name(), "%s", strings.TrimSuffix(text, ": "))
			}
		}
	}
}

// restoredView is a cluster that was made of a backup, as it is printed.
type restoredView struct {
	ClusterID   string   `json:"cluster_id"`
	Incarnation uint32   `json:"incarnation"`
	Nodes       []string `json:"nodes"`
	Partitions  []string `json:"partitions"`
	Backup      string   `json:"backup"` // its digest
	AcceptLoss  bool     `json:"accept_loss"`
}

func restoredOf(r *quoratev1.RestoreSnapshotResponse, of *backupView, acceptLoss bool) restoredView {
	return restoredView{
		ClusterID: r.GetClusterId(), Incarnation: r.GetIncarnation(), Nodes: append([]string{}, r.GetNodes()...),
		Partitions: append([]string{}, r.GetPartitions()...), Backup: of.Digest, AcceptLoss: acceptLoss,
	}
}

func (o *options) printRestored(cmd *cobra.Command, v restoredView) error {
	w := cmd.OutOrStdout()
	if o.output != outputTable {
		return o.output.print(w, v, nil)
	}
	denied := "each principal is denied until its longest window has passed from now, as admissions may be missing"
	if v.AcceptLoss {
		denied = "the loss was accepted: what was admitted after the backup is given up, and the audit trail says so"
	}
	_, err := fmt.Fprintf(w, "cluster %s is restored from backup %s, as incarnation %d\nnodes: %s\npartitions: %s\n%s\n",
		v.ClusterID, v.Backup, v.Incarnation, strings.Join(v.Nodes, " "), strings.Join(v.Partitions, " "), denied)
	return err
}
