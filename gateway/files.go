package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
)

// maxFileBytes bounds each file that is read.
const maxFileBytes = 16 << 20

// files are those of one attempt to load a configuration, each read once, so that what was judged and what is compared
// later are the same bytes.
type files struct{ seen map[string]file }

type file struct {
	content []byte
	err     error
}

func newFiles() *files { return &files{seen: map[string]file{}} }

// read is a file's content.
func (f *files) read(path string) ([]byte, error) {
	got, ok := f.seen[path]
	if !ok {
		got.content, got.err = readFile(path)
		f.seen[path] = got
	}
	return got.content, got.err
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	switch {
	case err != nil:
	case len(b) > maxFileBytes:
		err = fmt.Errorf("%s has more than %d bytes", path, maxFileBytes)
	case cutPEM(b):
		err = fmt.Errorf("%s: a block of PEM begins and does not end as it should: the file may be half-written", path)
	}
	return b, err
}

// cutPEM reports whether some block of PEM is not whole. Who reads certificates passes over such a block in silence.
func cutPEM(b []byte) bool {
	begun := bytes.Count(b, []byte("-----BEGIN "))
	for begun > 0 {
		block, rest := pem.Decode(b)
		if block == nil {
			return true
		}
		b = rest
		begun--
	}
	return false
}

type fingerprint [sha256.Size]byte

// fingerprint is of all that was read.
func (f *files) fingerprint() fingerprint {
	sum := sha256.New()
	part := func(b []byte) {
		_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b)))) // never fails
		_, _ = sum.Write(b)
	}
	for _, path := range slices.Sorted(maps.Keys(f.seen)) {
		one := f.seen[path]
		part([]byte(path))
		part(one.content)
		if one.err != nil {
			part([]byte(one.err.Error()))
		}
	}
	return fingerprint(sum.Sum(nil))
}

// again reads the same files as they are now.
func (f *files) again() *files {
	out := newFiles()
	for path := range f.seen {
		_, _ = out.read(path) // its error is part of the fingerprint
	}
	return out
}

// forget drops the contents and keeps the names.
func (f *files) forget() *files {
	out := newFiles()
	for path := range f.seen {
		out.seen[path] = file{}
	}
	return out
}
