package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

// Reader reads a backup from its beginning to its end.
type Reader struct {
	from  io.Reader
	at    int64 // bytes read
	taken time.Time

	open *content // of the file that Next told last; nil when it was read to its end
	last string
	// before are the files that came before the manifest.
	before   []File
	manifest *Manifest
	digest   Digest
	err      error // that stays; io.EOF at the end
}

// NewReader begins to read a backup.
func NewReader(from io.Reader) *Reader { return &Reader{from: from} }

// Next goes on to the next file between format and manifest, passing over what was not read of the one before, and
// gives its name, its size in bytes and its content, which is not proven yet. The error is io.EOF when all was read
// and is whole; then Manifest and Digest may be used.
func (r *Reader) Next() (name string, size int64, from io.Reader, err error) {
	for r.err == nil {
		var c *content
		if c, r.err = r.next(); r.err != nil {
			break
		}
		switch c.place.group {
		case groupFormat:
			r.err = r.readFormat(c)
		case groupManifest:
			r.err = r.readManifest(c)
		case groupSum:
			if r.err = r.readSum(c); r.err == nil {
				r.err = r.readEnd()
			}
		default:
			return c.name, c.size, c, nil
		}
	}
	return "", 0, nil, r.err
}

// Manifest is the manifest, once Next has said io.EOF.
func (r *Reader) Manifest() *Manifest { return r.manifest }

// Digest is by what the backup is known, once Next has said io.EOF.
func (r *Reader) Digest() Digest { return r.digest }

// content is what is left of a file.
type content struct {
	r     *Reader
	name  string
	place place
	size  int64
	begin int64 // in the backup
	left  int64
	sum   hash.Hash
}

// next ends the file before and reads a header.
func (r *Reader) next() (*content, error) {
	if r.open != nil {
		if _, err := io.Copy(io.Discard, r.open); err != nil {
			return nil, err
		}
	}
	block, n, err := readBlock(r.from)
	r.at += int64(n)
	switch {
	case errors.Is(err, io.EOF) && r.last == "":
		return nil, foreign("it is empty")
	case errors.Is(err, io.ErrUnexpectedEOF) && r.last == "" && !begins(block[:n]):
		return nil, foreign("it begins with something else")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, r.cut("")
	case err != nil:
		return nil, err
	}
	h, err := parseHeader(block[:])
	switch {
	case err != nil && r.last == "":
		return nil, foreign("it begins with something else")
	case err != nil:
		return nil, damaged("what follows %s, at byte %d, is not what was saved", r.last, r.at-blockBytes)
	}
	if err := follows(h.Name, r.last); err != nil {
		if r.last == "" {
			return nil, foreign("%v", err)
		}
		return nil, damaged("%v", err)
	}
	c := &content{r: r, name: h.Name, size: h.Size, left: h.Size, begin: r.at, sum: sha256.New()}
	c.place, _ = placeOf(h.Name)
	switch {
	case h.Size > c.place.maxBytes:
		return nil, damaged("%s is said to have %d bytes, at most %d are possible", h.Name, h.Size, c.place.maxBytes)
	case len(r.before) >= MaxFiles:
		return nil, damaged("it has more than %d files", MaxFiles)
	case r.last == "":
		r.taken = h.ModTime
	case !h.ModTime.Equal(r.taken):
		return nil, damaged("%s has another time than the files before it", h.Name)
	}
	r.open, r.last = c, h.Name
	return c, nil
}

// cut is the error of an end that came too early.
func (r *Reader) cut(within string) error {
	switch {
	case within != "":
		return truncated(r.at, "within "+within)
	case r.last == "":
		return truncated(r.at, "within its first header")
	}
	return truncated(r.at, "after "+r.last)
}

// Read reads on; at the content's end it reads what fills its last block.
func (c *content) Read(b []byte) (int, error) {
	r := c.r
	if r.open != c {
		return 0, io.EOF
	}
	if r.err != nil {
		return 0, r.err
	}
	if c.left == 0 {
		if r.err = c.end(); r.err != nil {
			return 0, r.err
		}
		return 0, io.EOF
	}
	n, err := r.from.Read(b[:min(int64(len(b)), c.left)])
	c.sum.Write(b[:n])
	c.left -= int64(n)
	r.at += int64(n)
	switch {
	case err == nil, c.left == 0:
		return n, nil
	case errors.Is(err, io.EOF):
		r.err = r.cut(c.name)
	default:
		r.err = err
	}
	return n, r.err
}

func (c *content) end() error {
	r := c.r
	pad := make([]byte, padding(c.size))
	n, err := io.ReadFull(r.from, pad)
	r.at += int64(n)
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return r.cut(c.name)
	case err != nil:
		return err
	case !isZero(pad):
		return damaged("what fills the last block of %s is not what was saved", c.name)
	}
	r.open = nil
	if c.place.group < groupManifest {
		r.before = append(r.before, File{c.name, c.size, hex.EncodeToString(c.sum.Sum(nil))})
	}
	return nil
}

// all reads a small file whole. Its size is bounded by its place.
func (c *content) all() ([]byte, error) {
	var b bytes.Buffer // grows with what is there
	_, err := io.Copy(&b, c)
	return b.Bytes(), err
}

func (r *Reader) readFormat(c *content) error {
	line, err := c.all()
	if err != nil {
		return err
	}
	version, ok := readFormatLine(line)
	switch {
	case !ok:
		return foreign("it does not say so in its first file")
	case version > FormatVersion:
		return fmt.Errorf("%w: it is of format %d, this program knows %d: use the program that wrote it, or a newer one",
			ErrNewer, version, FormatVersion)
	}
	return nil
}

func (r *Reader) readManifest(c *content) error {
	src, err := c.all()
	if err != nil {
		return err
	}
	m, err := decodeManifest(src)
	switch {
	case err != nil:
		return damaged("%s: %v", manifestName, err)
	case !m.TakenAt.Equal(r.taken):
		return damaged("%s: it has another time than the files", manifestName)
	}
	if err := m.lists(r.before); err != nil {
		return damaged("%v", err)
	}
	r.manifest, r.digest = m, sha256.Sum256(src)
	return nil
}

func (r *Reader) readSum(c *content) error {
	line, err := c.all()
	if err == nil && !bytes.Equal(line, sumLine(r.digest)) {
		err = damaged("%s is not what was saved", manifestName)
	}
	return err
}

// readEnd checks that what is left is the archive's end.
func (r *Reader) readEnd() error {
	var end [endBytes + 1]byte
	n, err := io.ReadFull(r.from, end[:])
	r.at += int64(n)
	switch {
	case !isZero(end[:n]) || n > endBytes:
		return damaged("something follows its end")
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case n < endBytes:
		return r.cut("")
	}
	return io.EOF
}

// Verify reads a backup to its end and tells what it is, if all of it is whole.
func Verify(from io.Reader) (*Manifest, Digest, error) {
	r := NewReader(from)
	for {
		switch _, _, _, err := r.Next(); {
		case errors.Is(err, io.EOF):
			return r.Manifest(), r.Digest(), nil
		case err != nil:
			return nil, Digest{}, err
		}
	}
}
