package backup

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"
)

// Writer writes a backup. The first error stays.
type Writer struct {
	tar   *tar.Writer
	at    time.Time
	files []File
	err   error
}

// NewWriter begins a backup that is taken at an instant.
func NewWriter(to io.Writer, at time.Time) *Writer {
	w := &Writer{tar: tar.NewWriter(to), at: at.UTC().Truncate(time.Second)}
	line := formatLine(FormatVersion)
	_ = w.Add(formatName, int64(len(line)), bytes.NewReader(line)) // the error stays
	return w
}

// Add writes a file of a size, which content must have to the byte. The order is that of the format.
func (w *Writer) Add(name string, size int64, content io.Reader) error {
	if w.err == nil {
		w.err = w.add(name, size, content)
	}
	return w.err
}

func (w *Writer) add(name string, size int64, content io.Reader) error {
	if err := follows(name, w.last()); err != nil {
		return fmt.Errorf("write backup: %w", err)
	}
	if p, _ := placeOf(name); size < 0 || size > p.maxBytes || len(w.files) >= MaxFiles {
		return fmt.Errorf("write backup: %s has %d bytes and is file %d: at most %d bytes and %d files are possible",
			name, size, len(w.files)+1, p.maxBytes, MaxFiles)
	}
	if err := w.tar.WriteHeader(header(name, size, w.at)); err != nil {
		return fmt.Errorf("write backup: %s: %w", name, err)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w.tar, sum), io.LimitReader(content, size))
	if err == nil && n == size {
		var more int64
		more, err = io.Copy(io.Discard, io.LimitReader(content, 1))
		n += more
	}
	switch {
	case err != nil:
		return fmt.Errorf("write backup: %s: %w", name, err)
	case n != size:
		return fmt.Errorf("write backup: %s does not have the %d bytes that it should have", name, size)
	}
	w.files = append(w.files, File{name, size, hex.EncodeToString(sum.Sum(nil))})
	return nil
}

func (w *Writer) last() string {
	if len(w.files) == 0 {
		return ""
	}
	return w.files[len(w.files)-1].Name
}

// Close ends the backup with its manifest, whose Format, TakenAt and Files it fills in, and tells by which digest the
// backup is known. It does not close what is below.
func (w *Writer) Close(m *Manifest) (d Digest, _ error) {
	if w.err == nil {
		d, w.err = w.close(m)
	}
	err := w.err
	w.err = errors.New("write backup: it is closed")
	return d, err
}

func (w *Writer) close(m *Manifest) (d Digest, _ error) {
	m.Format, m.TakenAt, m.Files = FormatVersion, w.at, w.files
	if err := errors.Join(m.validate(), m.lists(w.files)); err != nil {
		return d, fmt.Errorf("write backup: the manifest: %w", err)
	}
	src, err := m.encode()
	if err != nil {
		return d, fmt.Errorf("write backup: %w", err)
	}
	d = sha256.Sum256(src)
	for _, f := range []struct {
		name string
		src  []byte
	}{{manifestName, src}, {sumName, sumLine(d)}} {
		if err := w.add(f.name, int64(len(f.src)), bytes.NewReader(f.src)); err != nil {
			return d, err
		}
	}
	if err := w.tar.Close(); err != nil {
		return d, fmt.Errorf("write backup: %w", err)
	}
	return d, nil
}
