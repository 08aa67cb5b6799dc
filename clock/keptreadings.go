package clock

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// What a timeline does where guard.OwnReadings is off. The product has no such place, and nothing of this is in its
// program.

// kept are the readings of entries, also those that processes before took of them.
var kept struct {
	mu       sync.Mutex // guards the fields below
	file     *os.File
	readings map[int64]Reading // by the partition time of the entry
}

// KeepReadings has the readings of entries kept in a file beside a data directory, and used by the next process.
func KeepReadings(dir string) error {
	kept.mu.Lock()
	defer kept.mu.Unlock()
	f, err := os.OpenFile(dir+".readings", os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	kept.file, kept.readings = f, map[int64]Reading{}
	for {
		var at int64
		var r Reading
		_, err := fmt.Fscanln(f, &at, &r.Mono, &r.Raw, &r.Boot)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
		kept.readings[at] = r
	}
}

// keptReading is the reading of the entry with a partition time: the first that was taken of it.
func keptReading(at int64, now Reading) Reading {
	kept.mu.Lock()
	defer kept.mu.Unlock()
	if first, known := kept.readings[at]; known {
		return first
	}
	kept.readings[at] = now
	if _, err := fmt.Fprintln(kept.file, at, now.Mono, now.Raw, now.Boot); err != nil {
		panic(fmt.Sprintf("a reading cannot be kept: %v", err))
	}
	return now
}
