package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// The names of the files in a backup.
const (
	ControlName  = "control"
	AuditName    = "audit.jsonl"
	BodyDir      = "bodies/"
	PartitionDir = "partitions/"

	formatName   = "format"
	manifestName = "manifest.json"
	sumName      = "manifest.sha256"
)

// The bounds of a backup: no cluster comes near them, so what is beyond is damage or a trick.
const (
	// MaxFiles bounds the files in one backup.
	MaxFiles = 1 << 14
	// MaxControlBytes, MaxBodyBytes, MaxAuditBytes and MaxPartitionBytes bound each of them.
	MaxControlBytes   = int64(256) << 20
	MaxBodyBytes      = int64(1) << 30
	MaxAuditBytes     = int64(256) << 30
	MaxPartitionBytes = int64(4) << 40

	maxFormatBytes   = 64
	maxManifestBytes = 32 << 20
	sumBytes         = 2*sha256.Size + 2 + int64(len(manifestName)) + 1
)

// place is where a file belongs in a backup.
type place struct {
	group    int    // of files, in their order
	number   uint64 // of a partition
	maxBytes int64
}

// The groups of files, in their order.
const (
	groupFormat = iota
	groupControl
	groupAudit
	groupBodies
	groupPartitions
	groupManifest
	groupSum
)

// placeOf is where the file of a name belongs; ok is false where there is no such file.
func placeOf(name string) (p place, ok bool) {
	switch name {
	case formatName:
		return place{groupFormat, 0, maxFormatBytes}, true
	case ControlName:
		return place{groupControl, 0, MaxControlBytes}, true
	case AuditName:
		return place{groupAudit, 0, MaxAuditBytes}, true
	case manifestName:
		return place{groupManifest, 0, maxManifestBytes}, true
	case sumName:
		return place{groupSum, 0, sumBytes}, true
	}
	if sum, body := strings.CutPrefix(name, BodyDir); body {
		return place{groupBodies, 0, MaxBodyBytes}, isHex(sum, sha256.Size)
	}
	id, _ := strings.CutPrefix(name, PartitionDir)
	number, ok := partitionNumber(id)
	return place{groupPartitions, number, MaxPartitionBytes}, ok && PartitionDir+id == name
}

// partitionNumber is N of the partition pN, which is written in one way only.
func partitionNumber(id string) (uint64, bool) {
	digits, ok := strings.CutPrefix(id, "p")
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, ok && err == nil && strconv.FormatUint(n, 10) == digits
}

// isHex reports that text is so many bytes in lower-case hexadecimal.
func isHex(text string, size int) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == size && hex.EncodeToString(b) == text
}

// follows refuses a file that must not come after another, the one before it; "" before the first. The error is of
// no kind yet.
func follows(name, before string) error {
	p, ok := placeOf(name)
	if !ok {
		return fmt.Errorf("%.100q is no file of a backup", name)
	}
	last, _ := placeOf(before)
	switch {
	case before == "" && p.group == groupFormat:
		return nil
	case before == "":
		return fmt.Errorf("it begins with %s", name)
	case name == before:
		return fmt.Errorf("%s is in it twice", name)
	case p.group == last.group+1, p.group == groupPartitions && last.group == groupAudit,
		p.group == groupPartitions && p.group == last.group && p.number > last.number,
		p.group == groupBodies && p.group == last.group && name > before:
		return nil
	}
	return fmt.Errorf("%s comes after %s: it is out of order, or in it twice", name, before)
}
