package backup

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// FormatVersion is the version of the format that this program writes, and the only one that it reads.
const FormatVersion = 1

// numSlots are the slots that all partitions together own.
const numSlots = 1 << 14

// Digest is the SHA-256 of a manifest. It names a backup, since the manifest has the SHA-256 of all that is in it.
type Digest [32]byte

// String is the digest in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Manifest says what a backup is of.
type Manifest struct {
	// Format is the version of the format.
	Format int `json:"format"`
	// Program is the version of the program that wrote it.
	Program string `json:"program"`
	// Cluster is the cluster's id.
	Cluster string `json:"cluster"`
	// Incarnation is the one that the cluster had.
	Incarnation uint32 `json:"incarnation"`
	// TakenAt is when it was begun, by the wall clock of the node that made it, in whole seconds.
	TakenAt time.Time `json:"taken_at"`
	// MapVersion, PolicyRevision and PolicyVersion are the cluster's. All partitions had installed that revision.
	MapVersion     uint64 `json:"map_version"`
	PolicyRevision uint64 `json:"policy_revision"`
	PolicyVersion  string `json:"policy_version"`
	// Partitions are by their number; together they own each slot once.
	Partitions []Partition `json:"partitions"`
	// Files are the others, in their order. Writer fills it in.
	Files []File `json:"files"`
}

// File is one file in a backup.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
	// SHA256 is that of its content, in hexadecimal.
	SHA256 string `json:"sha256"`
}

// Partition is one partition as it was saved.
type Partition struct {
	ID     string  `json:"id"` // pN
	Ranges []Range `json:"ranges"`
	// Keys and Records are how many principals' classes have admissions, and how many decisions are recorded.
	Keys    int64 `json:"keys"`
	Records int64 `json:"records"`
	// Index is that of the last log entry in it, Digest the state's at that index, in hexadecimal.
	Index  uint64 `json:"index"`
	Digest string `json:"digest"`
	// TimeNanos is its partition time, which nothing else can be compared with.
	TimeNanos int64 `json:"time_nanos"`
}

// Range is a range of slots, both ends in it, under the ownership epoch that it had.
type Range struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
	Epoch uint64 `json:"epoch"`
}

// encode is the manifest as it is written.
func (m *Manifest) encode() ([]byte, error) {
	b, err := json.MarshalIndent(m, "", "  ")
	if err == nil && len(b) >= maxManifestBytes {
		err = fmt.Errorf("the manifest has %d bytes: at most %d are possible", len(b), maxManifestBytes)
	}
	return append(b, '\n'), err
}

// decodeManifest reads one. A field that this program does not know is passed over: a newer program may say more in
// the same format, never something else.
func decodeManifest(b []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, err
	}
	return m, m.validate()
}

func (m *Manifest) validate() error {
	switch {
	case m.Format != FormatVersion:
		return fmt.Errorf("its format is %d", m.Format)
	case m.Cluster == "" || m.Incarnation == 0:
		return errors.New("it names no cluster")
	case m.TakenAt.Nanosecond() != 0 || m.TakenAt.Unix() < 0:
		return errors.New("it has no usable time")
	}
	return m.validateSlots()
}

// validateSlots checks that the partitions are in order and own each slot once.
func (m *Manifest) validateSlots() error {
	var owned [numSlots]bool
	count, before := 0, uint64(0)
	for i, p := range m.Partitions {
		number, ok := partitionNumber(p.ID)
		if !ok || i > 0 && number <= before {
			return fmt.Errorf("partition %.100q is none, or out of order", p.ID)
		}
		before = number
		if !isHex(p.Digest, 16) || p.Keys < 0 || p.Records < 0 {
			return fmt.Errorf("what it says of partition %s is not possible", p.ID)
		}
		for _, r := range p.Ranges {
			if r.First > r.Last || r.Last >= numSlots || r.Epoch == 0 {
				return fmt.Errorf("slots %d to %d of %s are no range", r.First, r.Last, p.ID)
			}
			for slot := r.First; slot <= r.Last; slot++ {
				if owned[slot] {
					return fmt.Errorf("slot %d has two owners", slot)
				}
				owned[slot] = true
				count++
			}
		}
	}
	if count != numSlots {
		return fmt.Errorf("%d of %d slots have an owner", count, numSlots)
	}
	return nil
}

// lists compares the manifest with the files that came before it. The error names the file that differs.
func (m *Manifest) lists(files []File) error {
	for i, f := range files {
		if i >= len(m.Files) || m.Files[i].Name != f.Name {
			return fmt.Errorf("%s is not in the manifest", f.Name)
		}
		if m.Files[i] != f {
			return fmt.Errorf("%s is not what was saved", f.Name)
		}
	}
	if len(m.Files) > len(files) {
		return fmt.Errorf("%.100q is missing", m.Files[len(files)].Name)
	}
	var partitions []File
	for _, f := range files {
		if p, _ := placeOf(f.Name); p.group == groupPartitions {
			partitions = append(partitions, f)
		}
	}
	if len(partitions) != len(m.Partitions) {
		return fmt.Errorf("it has %d partitions, and tells of %d", len(partitions), len(m.Partitions))
	}
	for i, f := range partitions {
		if PartitionDir+m.Partitions[i].ID != f.Name {
			return fmt.Errorf("the manifest tells nothing of %s", f.Name)
		}
	}
	return nil
}

// sumLine is the content of the file that has the manifest's digest.
func sumLine(d Digest) []byte { return []byte(d.String() + "  " + manifestName + "\n") }

// formatLine is the content of the first file.
func formatLine(version int) []byte { return fmt.Appendf(nil, "quorate backup %d\n", version) }

// readFormatLine tells the version; ok is false where it is none.
func readFormatLine(b []byte) (version int, ok bool) {
	if _, err := fmt.Sscanf(string(b), "quorate backup %d\n", &version); err != nil || version < 1 {
		return 0, false
	}
	return version, bytes.Equal(b, formatLine(version))
}
