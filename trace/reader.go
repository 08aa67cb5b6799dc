package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/quorate/quorate/fsm"
)

// MaxLineBytes bounds a line of a trace. A policy is the only thing that makes a line long.
const MaxLineBytes = 8 << 20

// Insecure is the gateway of a check that names none.
const Insecure = "insecure"

// Line is one line of a trace: a check or a policy.
type Line struct {
	// Number counts the lines of the file, from 1, blank ones included.
	Number int
	// At is the stamp in nanoseconds since 1970.
	At fsm.Time
	// Check is set for a check line. Its RouteEpoch is 0: the caller fills it in.
	Check *fsm.Check
	// Malformed says why Check breaks the rules of a check, nil when it does not. Of a malformed
	// check only DecisionID is of use, and it is empty when that was what was wrong.
	Malformed error
	// Policy is the raw JSON of a policy line's policy, nil for a check line.
	Policy []byte
}

// Reader reads a trace line by line.
type Reader struct {
	name   string
	lines  *bufio.Scanner
	number int
	err    error
}

// NewReader reads the trace r. The name is the file's, for errors.
func NewReader(name string, r io.Reader) *Reader {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), MaxLineBytes)
	return &Reader{name: name, lines: lines}
}

// Next returns the next line; blank ones are passed over. The error is io.EOF at the end; every
// other error names file and line and is final. The line is the caller's to keep.
func (r *Reader) Next() (*Line, error) {
	if r.err != nil {
		return nil, r.err
	}
	line, err := r.next()
	if err != nil {
		r.err = err
	}
	return line, err
}

func (r *Reader) next() (*Line, error) {
	for r.lines.Scan() {
		r.number++
		text := bytes.TrimSpace(r.lines.Bytes())
		if len(text) == 0 {
			continue
		}
		line, err := parseLine(text)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", r.name, r.number, err)
		}
		line.Number = r.number
		return line, nil
	}
	switch err := r.lines.Err(); {
	case err == nil:
		return nil, io.EOF
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: the line is longer than %d bytes: shorten it",
			r.name, r.number+1, MaxLineBytes)
	default:
		return nil, fmt.Errorf("%s:%d: cannot read on: %w", r.name, r.number+1, err)
	}
}
