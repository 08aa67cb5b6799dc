package storage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// The format of raft-wal's segments: a header, then frames of type and length, or checksum, padded to eight.
const (
	segmentHeaderBytes = 32
	frameBytes         = 8
)

// segmentEnd is where what is committed in a segment ends.
type segmentEnd struct {
	offset     int64  // behind the last commit, 0 without one
	entries    uint64 // up to there
	indexStart uint64 // of the index, which is the last before the commit of a segment that has ended; 0 none
}

// endSegment finishes what a crash left undone at the end of raft-wal's newest segment. An append that fills the
// segment ends it, and the list of segments is brought up to date afterwards; raft-wal does not make up for it when
// it is opened, and refuses every append from then on. The same if of such an append only a part was written,
// the index included. So a segment that has ended is entered in the list, which is changed, and what is
// behind the last commit, which was never acknowledged, is wiped.
func endSegment(dir string, s *types.PersistentState) (changed bool, err error) {
	if len(s.Segments) == 0 {
		return false, nil
	}
	tail := &s.Segments[len(s.Segments)-1]
	if !tail.SealTime.IsZero() {
		return false, nil
	}
	path := filepath.Join(dir, segment.FileName(*tail))
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // raft-wal makes it
	}
	if err != nil {
		return false, err
	}
	end, torn := scanSegment(b)
	switch {
	case end.indexStart == 0 && torn:
		return false, wipe(path, b, end.offset)
	case end.indexStart == 0:
		return false, nil
	}
	// Else the list would be durable before what it lists.
	if err := syncFile(path); err != nil {
		return false, err
	}
	now := time.Now()
	tail.SealTime, tail.IndexStart, tail.MaxIndex = now, end.indexStart, tail.BaseIndex+end.entries-1
	next := tail.MaxIndex + 1
	s.Segments = append(s.Segments, types.SegmentInfo{
		ID: s.NextSegmentID, BaseIndex: next, MinIndex: next,
		SizeLimit: tail.SizeLimit, Codec: tail.Codec, CreateTime: now,
	})
	s.NextSegmentID++
	return true, nil
}

// scanSegment finds the end of a segment as raft-wal's own recovery does. torn says that there is an index
// behind it.
func scanSegment(b []byte) (end segmentEnd, torn bool) {
	var before, last segmentEnd
	var entries, index uint64
	defer func() { torn = index != end.indexStart }()
	var commit, sum int64
	for offset := int64(segmentHeaderBytes); offset+frameBytes <= int64(len(b)); {
		kind, word := b[offset], binary.LittleEndian.Uint32(b[offset+4:])
		size := int64(frameBytes)
		switch kind {
		case segment.FrameEntry, segment.FrameIndex:
			size += (int64(word) + frameBytes - 1) / frameBytes * frameBytes
			if kind == segment.FrameEntry {
				entries++
			} else {
				index = uint64(offset) + frameBytes
			}
		case segment.FrameCommit:
			before, commit, sum = last, offset, int64(word)
			last = segmentEnd{offset: offset + frameBytes, entries: entries, indexStart: index}
		default:
			offset = int64(len(b)) // zeros, or a frame that was not written whole
			continue
		}
		offset += size
	}
	if last.offset == 0 || last.entries < entries {
		return last, false // entries behind it were written, so it was acknowledged
	}
	if int64(crc32.Checksum(b[before.offset:commit], crc32.MakeTable(crc32.Castagnoli))) != sum {
		return before, false
	}
	return last, false
}

// wipe zeroes a file from an offset on, if it is not zero there.
func wipe(path string, b []byte, from int64) error {
	rest := b[from:]
	if len(bytes.Trim(rest, "\x00")) == 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, len(rest)), from)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("wipe what is behind the last commit of %s: %w", path, err)
	}
	return nil
}
