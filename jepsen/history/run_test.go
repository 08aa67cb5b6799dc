package history

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

func mustRecord(t *testing.T, dir string) *Recorder {
	t.Helper()
	r, err := Record(dir, &Config{Name: "some", Seed: 7, Faults: []string{"kill"}})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func mustWrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestRecord shows that what many write at once is read again: attempts at one check together, policies by number with
// the last of several lines, events in their order.
func TestRecord(t *testing.T) {
	r := mustRecord(t, t.TempDir())
	var all sync.WaitGroup
	for k := range 8 {
		all.Go(func() {
			for i := range 50 {
				a := &Asked{
					ID: "d" + string(rune('a'+i%26)), Principal: "p", Class: "a", Cost: 1, Workload: "saturate", Client: "c",
					Node: "n0", Sent: time.Duration(k), Received: Never,
				}
				if err := r.Asked(a); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	policy := Policy{Version: "v1", Classes: map[string]Class{
		"a": {Limits: []Limit{{Name: "l", Max: 3, Window: Window(10 * time.Second)}}},
	}}
	for _, v := range []Revision{{2, policy, 5, Never}, {1, policy, -9, 1}, {2, policy, 5, 7}} {
		if err := r.Revision(&v); err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range []Event{{At: 9, Kind: "phase", What: "healed"}, {At: 3, Until: 9, Kind: "fault", What: "kill", Injected: true}} {
		if err := r.Event(&e); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Asked(&Asked{ID: "u", Principal: "p", Class: "a", Peek: true}); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := Load(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	attempts := 0
	for _, c := range got.History.Checks {
		attempts += len(c.Attempts)
	}
	if got.Asked != 401 || attempts != 400 || len(got.History.Checks) != 26 || len(got.History.Peeks) != 1 || got.Torn != 0 {
		t.Errorf("read %d attempts, %d of them at %d checks, %d peeks, %d torn", got.Asked, attempts,
			len(got.History.Checks), len(got.History.Peeks), got.Torn)
	}
	if want := []Revision{{1, policy, -9, 1}, {2, policy, 5, 7}}; !reflect.DeepEqual(want, got.History.Revisions) {
		t.Errorf("read %+v, want %+v", got.History.Revisions, want)
	}
	if got.Config.Seed != 7 || got.Events[0].What != "kill" || got.Events[1].What != "healed" {
		t.Errorf("read %+v, %+v", got.Config, got.Events)
	}
}

// TestRecordKeepsRuns shows that a run is not recorded over another one.
func TestRecordKeepsRuns(t *testing.T) {
	dir := t.TempDir()
	if err := mustRecord(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Record(dir, &Config{}); err == nil {
		t.Error("recorded over a run")
	}
}

// TestTorn shows that a last line that was cut off is left out and counted, and that a whole one without its end is not.
func TestTorn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	for _, c := range []struct {
		text  string
		lines int
		torn  bool
	}{
		{"", 0, false},
		{"{\"at_ns\":1}\n{\"at_ns\":2}\n", 2, false},
		{"{\"at_ns\":1}\n{\"at_ns\":2}", 2, false},
		{"{\"at_ns\":1}\n{\"at_n", 1, true},
		{"{\"at_ns\":1", 0, true},
	} {
		mustWrite(t, path, c.text)
		lines := 0
		torn, err := Read(path, func(*Event) error {
			lines++
			return nil
		})
		if err != nil || lines != c.lines || torn != c.torn {
			t.Errorf("%q: %d lines, torn %v, %v; want %d, %v", c.text, lines, torn, err, c.lines, c.torn)
		}
	}
}

// TestLoadErrors shows that what is no run is told of with its file and line.
func TestLoadErrors(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"no attempt":          {AttemptsFile, "{}\n{\"sent_ns\":\"x\"}\n", AttemptsFile + ":2: "},
		"answered too early":  {AttemptsFile, "{\"sent_ns\":2,\"received_ns\":1}\n", AttemptsFile + ":1: "},
		"a line within":       {EventsFile, "{\"at_ns\n{}\n", EventsFile + ":1: "},
		"a window":            {PolicyFile, "{\"number\":1,\"policy\":{\"default\":{\"retention\":5}}}\n", "10s"},
		"a revision number":   {PolicyFile, "{\"number\":0}\n", PolicyFile + ":1: "},
		"no configuration":    {ConfigFile, "x", ConfigFile},
		"more than one value": {EventsFile, "{} {}\n", EventsFile + ":1: "},
	} {
		t.Run(name, func(t *testing.T) {
			r := mustRecord(t, t.TempDir())
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			mustWrite(t, filepath.Join(r.Dir, c.file), c.text)
			if _, err := Load(r.Dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// TestLongLine shows that a line longer than the reader's buffer is read whole, and one beyond the bound refused by
// whoever writes it.
func TestLongLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	w, err := Create[Event](path)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 3<<20)
	for range 2 {
		if err := w.Write(&Event{Text: long}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Write(&Event{Text: strings.Repeat("x", maxLine)}); err == nil {
		t.Error("wrote a line that cannot be read")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	lines := 0
	if _, err := Read(path, func(e *Event) error {
		lines++
		if e.Text != long {
			t.Errorf("a line of %d bytes", len(e.Text))
		}
		return nil
	}); err != nil || lines != 2 {
		t.Errorf("%d lines, %v", lines, err)
	}
	if err := w.Write(&Event{}); err == nil {
		t.Error("wrote to what is closed")
	}
}
