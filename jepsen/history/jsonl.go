package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

const (
	// maxLine bounds a line, far above an entry with all the decisions that a batch can hold.
	maxLine = 32 << 20
	// maxLines bounds a file.
	maxLines = 20_000_000
)

// Writer writes one JSON object a line. Its methods may be called by several goroutines. What was written is in the
// file once Flush or Close have returned without an error; Write itself may keep it for a while.
type Writer[T any] struct {
	path string

	mu     sync.Mutex // guards the fields below
	file   *os.File
	buffer *bufio.Writer
	err    error // the first; nothing is written after it
}

// Create makes a file to write to. There must be none of that name: no run is written over.
func Create[T any](path string) (*Writer[T], error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer[T]{path: path, file: f, buffer: bufio.NewWriterSize(f, 1<<16)}, nil
}

// Write appends a line.
func (w *Writer[T]) Write(v *T) error {
	line, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", w.path, err)
	}
	if len(line) >= maxLine {
		return fmt.Errorf("%s: a line of %d bytes is more than is read again, %d", w.path, len(line), maxLine)
	}
	line = append(line, '\n')
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		_, w.err = w.buffer.Write(line)
	}
	return w.err
}

// Flush puts into the file what has been written.
func (w *Writer[T]) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = w.buffer.Flush()
	}
	return w.err
}

// Close flushes and ends the writing. It returns the first error that there was. Of no writer it does nothing.
func (w *Writer[T]) Close() error {
	if w == nil {
		return nil
	}
	err := w.Flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil {
		return err
	}
	err = errors.Join(err, w.file.Close())
	w.file = nil
	if w.err == nil {
		w.err = fmt.Errorf("%s is closed", w.path)
	}
	return err
}

// Read goes through a file line by line, until each fails. What is handed to each is its own to keep. A last line that
// is not whole is left out, and torn is true then; any other line that is no T is an error, with its number.
func Read[T any](path string, each func(v *T) error) (torn bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // only read from
	in, long := bufio.NewReaderSize(f, 1<<20), []byte(nil)
	for n := 1; ; n++ {
		line, err := readLine(in, &long)
		whole := err == nil
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			return false, fmt.Errorf("%s:%d: %w", path, n, err)
		case !whole && len(line) == 0:
			return false, nil
		case n > maxLines:
			return false, fmt.Errorf("%s has more than %d lines, which no judge holds: judge a shorter run", path, maxLines)
		}
		v := new(T)
		if err := json.Unmarshal(line, v); err != nil {
			if !whole {
				return true, nil
			}
			return false, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if err := each(v); err != nil {
			return false, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		if !whole {
			return false, nil
		}
	}
}

// readLine is the next line without its end, with io.EOF if it has none. It is good until the next call.
func readLine(in *bufio.Reader, long *[]byte) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		*long = (*long)[:0]
		for errors.Is(err, bufio.ErrBufferFull) {
			if *long = append(*long, line...); len(*long) > maxLine {
				return nil, fmt.Errorf("a line of more than %d bytes", maxLine)
			}
			line, err = in.ReadSlice('\n')
		}
		*long = append(*long, line...)
		line = *long
	}
	return bytes.TrimSuffix(line, []byte{'\n'}), err
}
