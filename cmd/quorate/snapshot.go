package main

import (
	"fmt"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/quorate/quorate/backup"
)

func newSnapshot(o *options) *cobra.Command {
	return newGroup("snapshot", "Make, look into and restore backups", newSnapshotSave(o), newSnapshotInspect(o),
		newSnapshotRestore(o))
}

// backupView is a backup as it is printed.
type backupView struct {
	File           string          `json:"file"`
	Bytes          int64           `json:"bytes"`
	Digest         string          `json:"digest"` // names the backup; of what it holds, not of the file
	Program        string          `json:"program"`
	ClusterID      string          `json:"cluster_id"`
	Incarnation    uint32          `json:"incarnation"`
	TakenAt        time.Time       `json:"taken_at"`
	MapVersion     uint64          `json:"map_version"`
	PolicyRevision uint64          `json:"policy_revision"`
	PolicyVersion  string          `json:"policy_version"`
	Partitions     []savedView     `json:"partitions"`
	Files          []savedFileView `json:"files"`
}

// savedView is a partition in a backup.
type savedView struct {
	ID        string      `json:"id"`
	Ranges    []rangeView `json:"ranges"`
	Keys      int64       `json:"keys"`
	Records   int64       `json:"records"`
	Index     uint64      `json:"index"`
	Digest    string      `json:"digest"`
	TimeNanos int64       `json:"time_nanos"`
	Bytes     int64       `json:"bytes"`
}

// savedFileView is a file in a backup.
type savedFileView struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// verified reads all of a backup's file from its beginning, and says what it holds. shown is what the file is called.
func verified(f *os.File, shown string) (*backupView, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no file: name one that `quorate snapshot save` wrote", shown)
	}
	if _, err := f.Seek(0, 0); err != nil {
		return nil, err
	}
	m, digest, err := backup.Verify(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown, err)
	}
	v := &backupView{
		File: shown, Bytes: info.Size(), Digest: digest.String(), Program: m.Program, ClusterID: m.Cluster,
		Incarnation: m.Incarnation, TakenAt: m.TakenAt, MapVersion: m.MapVersion, PolicyRevision: m.PolicyRevision,
		PolicyVersion: m.PolicyVersion, Partitions: []savedView{}, Files: []savedFileView{},
	}
	bytesOf := map[string]int64{}
	for _, f := range m.Files {
		v.Files = append(v.Files, savedFileView{f.Name, f.Size, f.SHA256})
		bytesOf[f.Name] = f.Size
	}
	for _, p := range m.Partitions {
		s := savedView{
			ID: p.ID, Ranges: []rangeView{}, Keys: p.Keys, Records: p.Records, Index: p.Index, Digest: p.Digest,
			TimeNanos: p.TimeNanos, Bytes: bytesOf[backup.PartitionDir+p.ID],
		}
		for _, r := range p.Ranges {
			s.Ranges = append(s.Ranges, rangeView{uint32(r.First), uint32(r.Last), r.Epoch})
		}
		v.Partitions = append(v.Partitions, s)
	}
	return v, nil
}

// keys are how many the backup has in all.
func (v *backupView) keys() (keys int64) {
	for _, p := range v.Partitions {
		keys += p.Keys
	}
	return keys
}

// text is the backup in a line.
func (v *backupView) text() string {
	policy := "no policy"
	if v.PolicyRevision != 0 {
		policy = fmt.Sprintf("policy %s (%d)", v.PolicyVersion, v.PolicyRevision)
	}
	return fmt.Sprintf("of cluster %s at %s: %s, %s, %s, %s", v.ClusterID, timeText(v.TakenAt),
		count(len(v.Partitions), "partition", "partitions"), count(int(v.keys()), "key", "keys"), policy, sizeText(v.Bytes))
}

// sizeText is a size for people.
func sizeText(bytes int64) string {
	for _, unit := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if bytes >= unit.bytes {
			return fmt.Sprintf("%.1f %s", float64(bytes)/float64(unit.bytes), unit.name)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}

func newSnapshotInspect(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Verify a backup and show what it holds, without a cluster",
		Long: `inspect reads all of FILE, says in one line what is wrong with it if it is not whole and unchanged, and shows
what it holds. It needs no cluster.`,
		Args: filledArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := openBackup(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // it was only read
			v, err := verified(f, args[0])
			if err != nil {
				return err
			}
			return o.printBackup(cmd, v)
		},
	}
}

// openBackup opens a backup's file to read it.
func openBackup(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("the backup cannot be read: %w: name a file that `quorate snapshot save` wrote", err)
	}
	return f, nil
}

func (o *options) printBackup(cmd *cobra.Command, v *backupView) error {
	w := cmd.OutOrStdout()
	if o.output == outputTable {
		fmt.Fprintf(w, "%s is whole: backup %s\n%s\nby program %s, incarnation %d, map version %d\n\n",
			v.File, v.Digest, v.text(), v.Program, v.Incarnation, v.MapVersion)
	}
	return o.output.print(w, v, func(t table.Writer) {
		t.AppendHeader(table.Row{"partition", "slots", "keys", "records", "applied", "digest", "size"})
		for _, p := range v.Partitions {
			t.AppendRow(table.Row{p.ID, slotsText(p.Ranges), p.Keys, p.Records, p.Index, p.Digest, sizeText(p.Bytes)})
		}
	})
}
