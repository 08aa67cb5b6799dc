package history

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
)

// Recorder writes what a run's directory holds while the run goes on. Its methods may be called by several goroutines.
type Recorder struct {
	Dir string

	attempts  *Writer[Asked]
	events    *Writer[Event]
	revisions *Writer[Revision]
}

// Record begins a run's directory, which it makes if there is none. No run may have been recorded there.
func Record(dir string, c *Config) (*Recorder, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	r := &Recorder{Dir: dir}
	var errs [3]error
	r.attempts, errs[0] = Create[Asked](filepath.Join(dir, AttemptsFile))
	r.events, errs[1] = Create[Event](filepath.Join(dir, EventsFile))
	r.revisions, errs[2] = Create[Revision](filepath.Join(dir, PolicyFile))
	err := errors.Join(errs[:]...)
	if err == nil {
		err = r.Config(c)
	}
	if err != nil {
		for _, w := range []interface{ Close() error }{r.attempts, r.events, r.revisions} {
			_ = w.Close() // what is wrong has been said
		}
		return nil, err
	}
	return r, nil
}

// Config writes the configuration, again if it has changed.
func (r *Recorder) Config(c *Config) error { return WriteFile(filepath.Join(r.Dir, ConfigFile), c) }

// Asked records an attempt.
func (r *Recorder) Asked(a *Asked) error { return r.attempts.Write(a) }

// Event records an event, and sees to it that it outlives this process, with all that was recorded before.
func (r *Recorder) Event(e *Event) error {
	return errors.Join(r.attempts.Flush(), r.events.Write(e), r.events.Flush())
}

// Revision records a policy. Of several lines with one number the last counts.
func (r *Recorder) Revision(v *Revision) error {
	return errors.Join(r.revisions.Write(v), r.revisions.Flush())
}

// Close ends the recording.
func (r *Recorder) Close() error {
	return errors.Join(r.attempts.Close(), r.events.Close(), r.revisions.Close())
}

// WriteFile writes a value as JSON for people, in the place of what there was, whole or not at all.
func WriteFile(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, append(text, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
