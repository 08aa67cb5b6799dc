package check

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// fatal is what no process says whose end is not a defect.
var fatal = []string{
	"panic: ", "fatal error: ", "WARNING: DATA RACE", "runtime: goroutine stack exceeds", "SIGSEGV",
	"unexpected fault address",
}

// maxLogLine bounds how much of a line of a log is looked at.
const maxLogLine = 64 << 10

// judgeProcess checks that no process ended by itself that had no reason to, and that none said what only a defect
// says.
func judgeProcess(r *run, o *outcome) error {
	for i := range r.Events {
		e := &r.Events[i]
		if e.Kind != "end" {
			continue
		}
		o.Counts["ends"]++
		if !e.Injected {
			o.violated(nil, "the process of %s ended at %s by itself, with status %d: %s %s", strings.Join(e.Nodes, ", "),
				once(e.At), int64(e.Value), e.What, e.Text)
		}
	}
	var logs []string
	for _, pattern := range []string{"*.log", "*/*.log"} {
		found, err := filepath.Glob(filepath.Join(r.Dir, pattern))
		if err != nil {
			return err
		}
		logs = append(logs, found...)
	}
	slices.Sort(logs)
	for _, path := range logs {
		o.Counts["logs"]++
		if err := searchLog(o, path); err != nil {
			return err
		}
	}
	return nil
}

// searchLog looks for what only a defect says.
func searchLog(o *outcome, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read from
	in := bufio.NewReaderSize(f, maxLogLine)
	for n := 1; ; n++ {
		line, more, err := in.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text := string(line)
		for more && err == nil { // the rest of a line that is too long
			_, more, err = in.ReadLine()
		}
		if slices.ContainsFunc(fatal, func(s string) bool { return strings.Contains(text, s) }) {
			o.violated(nil, "%s:%d: %s", filepath.Base(path), n, text[:min(len(text), 200)])
		}
	}
}
