package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Backup is a verified backup in a file, for its parts to be read one by one, by several readers at once.
type Backup struct {
	manifest *Manifest
	digest   Digest
	from     io.ReaderAt
	parts    map[string]part
}

type part struct {
	File
	begin int64
}

// Open reads all of a backup of a size in bytes, and refuses what is not whole.
func Open(from io.ReaderAt, size int64) (*Backup, error) {
	b := &Backup{from: from, parts: map[string]part{}}
	r, begins := NewReader(io.NewSectionReader(from, 0, size)), map[string]int64{}
	for {
		name, _, _, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		begins[name] = r.open.begin
	}
	b.manifest, b.digest = r.Manifest(), r.Digest()
	for _, f := range b.manifest.Files {
		if begin, ok := begins[f.Name]; ok {
			b.parts[f.Name] = part{f, begin}
		}
	}
	return b, nil
}

// Manifest is what the backup is of.
func (b *Backup) Manifest() *Manifest { return b.manifest }

// Digest is by what it is known.
func (b *Backup) Digest() Digest { return b.digest }

// File begins to read a file of the backup. Where its content is not what was verified, the reader says so in place
// of its end, with ErrDamaged.
func (b *Backup) File(name string) (content io.Reader, size int64, err error) {
	p, ok := b.parts[name]
	if !ok {
		return nil, 0, fmt.Errorf("the backup has no %.100q", name)
	}
	return &checked{io.NewSectionReader(b.from, p.begin, p.Size), p, sha256.New()}, p.Size, nil
}

// checked is a file that is being read again.
type checked struct {
	from io.Reader
	part part
	sum  hash.Hash
}

// Read reads on, and compares at the end.
func (c *checked) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && hex.EncodeToString(c.sum.Sum(nil)) != c.part.SHA256 {
		return n, damaged("%s has changed since it was verified", c.part.Name)
	}
	return n, err
}
