package backup

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"time"
)

const (
	blockBytes = 512
	// endBytes are the zeros at the end of an archive.
	endBytes = 2 * blockBytes
	// tarNameBytes is what a header begins with: the name, filled with zeros.
	tarNameBytes = 100
	// largeBytes is from where on a size does not fit into the portable form of a header.
	largeBytes = int64(8) << 30
)

// header is the one header that a file of this name, size and time has.
func header(name string, size int64, at time.Time) *tar.Header {
	h := &tar.Header{
		Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: at, Format: tar.FormatUSTAR,
	}
	if size >= largeBytes {
		h.Format = tar.FormatGNU
	}
	return h
}

// errHeader: a block is no header that a backup has.
var errHeader = errors.New("it is no header of a backup's file")

// parseHeader reads one block, which must be what header would make of what it says.
func parseHeader(block []byte) (*tar.Header, error) {
	h, err := tar.NewReader(bytes.NewReader(block)).Next()
	if err != nil || h.Typeflag != tar.TypeReg || h.Size < 0 {
		return nil, errHeader
	}
	var again bytes.Buffer
	if err := tar.NewWriter(&again).WriteHeader(header(h.Name, h.Size, h.ModTime)); err != nil ||
		!bytes.Equal(again.Bytes(), block) {
		return nil, errHeader
	}
	return h, nil
}

// begins reports that a few bytes may be the beginning of the first file's header.
func begins(b []byte) bool {
	var name [tarNameBytes]byte
	copy(name[:], formatName)
	n := min(len(b), len(name))
	return bytes.Equal(b[:n], name[:n])
}

// padding is how many zeros follow a content of this size.
func padding(size int64) int64 { return -size & (blockBytes - 1) }

// isZero reports that there are only zeros.
func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

// readBlock reads one block. With fewer bytes the error is io.ErrUnexpectedEOF, with none io.EOF.
func readBlock(r io.Reader) (block [blockBytes]byte, n int, err error) {
	n, err = io.ReadFull(r, block[:])
	return block, n, err
}
