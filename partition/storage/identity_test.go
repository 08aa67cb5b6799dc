package storage

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var n1 = Identity{Cluster: "c1", Node: "n1"}

// identity is the content of identity.json.
func identity(t *testing.T, cluster, node string, version int) string {
	t.Helper()
	b, err := identityRecord{Version: version, Cluster: cluster, Node: node, Instance: "i", Groups: []string{}}.encode()
	must(t, err)
	return string(b)
}

func mustClaim(t *testing.T, dir string, id Identity) *Claimed {
	t.Helper()
	c, err := Claim(dir, id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// mustTree is the name and content of every file below dir.
func mustTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		tree[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// A directory is claimed by its first node, and by that node again after a release.
func TestClaimTwice(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	c := mustClaim(t, dir, n1)
	must(t, c.Record("p7"))
	must(t, c.Record("p1"))
	must(t, c.Release())
	got, err := os.ReadFile(filepath.Join(dir, "identity.json"))
	must(t, err)
	want := `{"version":2,"cluster":"c1","node":"n1","instance":"` + c.Instance() + `","groups":["p1","p7"],"crc32c":`
	if !strings.HasPrefix(string(got), want) {
		t.Errorf("got %s, want %s…", got, want)
	}
	again := mustClaim(t, dir, n1)
	if again.Instance() != c.Instance() || !again.Has("p7") || again.Has("p8") {
		t.Errorf("instance %s, was %s; groups %v", again.Instance(), c.Instance(), again.Groups())
	}
	must(t, again.Release())
	other := mustClaim(t, t.TempDir(), n1)
	if other.Instance() == c.Instance() {
		t.Error("two directories are one instance")
	}
	must(t, other.Release())
}

// A group that is forgotten is not to be in the directory any more, also after a start; what is removed is gone
// with all that is in it, and what is not there is no error.
func TestForget(t *testing.T) {
	dir := t.TempDir()
	c := mustClaim(t, dir, n1)
	must(t, c.Record("p7"))
	must(t, c.Record("p1"))
	for range 2 {
		must(t, c.Forget("p7"))
	}
	must(t, c.Release())
	again := mustClaim(t, dir, n1)
	if again.Has("p7") || !again.Has("p1") {
		t.Errorf("groups %v", again.Groups())
	}
	must(t, again.Release())
	folder := filepath.Join(dir, "groups", "p7")
	must(t, os.MkdirAll(filepath.Join(folder, "wal"), 0o750))
	must(t, os.WriteFile(filepath.Join(folder, "wal", "1"), []byte("x"), 0o600))
	for _, gone := range []string{folder, folder, filepath.Join(dir, "nothing", "p7")} {
		must(t, Remove(gone))
		if _, err := os.Stat(gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", gone, err)
		}
	}
}

// A directory of another cluster, another node or another kind is refused in one line that names what
// was found, and not one byte of it changes.
func TestClaimForeign(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"cluster": {map[string]string{"identity.json": identity(t, "c2", "n1", 2)},
			[]string{`node "n1" of cluster "c2"`, `node "n1" of cluster "c1"`}},
		"node": {map[string]string{"identity.json": identity(t, "c1", "n2", 2)},
			[]string{`node "n2" of cluster "c1"`}},
		"newer format": {map[string]string{"identity.json": identity(t, "c1", "n1", 3)},
			[]string{"format 3"}},
		"one bit": {map[string]string{"identity.json": strings.Replace(identity(t, "c1", "n1", 2), `"i"`, `"h"`, 1)},
			[]string{"checksum"}},
		"damaged":  {map[string]string{"identity.json": `{"vers`}, []string{"cannot be read"}},
		"no data":  {map[string]string{"holiday.jpg": "x"}, []string{"holiday.jpg"}},
		"too long": {map[string]string{"identity.json": strings.Repeat(" ", 5000)}, []string{"5000 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range tc.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before := mustTree(t, dir)
			_, err := Claim(dir, n1)
			if err == nil {
				t.Fatal("claimed")
			}
			if name != "too long" && !errors.Is(err, ErrForeign) {
				t.Errorf("%v is not ErrForeign", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
					t.Errorf("message %q, want one line with %q", err, want)
				}
			}
			if diff := cmp.Diff(before, mustTree(t, dir)); diff != "" {
				t.Errorf("the directory changed: %s", diff)
			}
		})
	}
}

// A second claim of a directory in use is refused with the directory's name.
func TestClaimLocked(t *testing.T) {
	dir := t.TempDir()
	c := mustClaim(t, dir, n1)
	_, err := Claim(dir, n1)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want ErrLocked with the directory", err)
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
}

// A first start that was cut short before the rename leaves a directory that can be claimed.
func TestClaimAfterCrash(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"identity.json.tmp", "lock"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"ver`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := mustClaim(t, dir, n1).Release(); err != nil {
		t.Fatal(err)
	}
}

// Shows that the claim of a directory that was nobody's and holds nothing is undone whole, and that nothing
// else is: one that was claimed before, or in which stores were made.
func TestDisown(t *testing.T) {
	id := Identity{Cluster: "c1", Node: "n1"}
	claim := func(dir string) *Claimed {
		t.Helper()
		c, err := Claim(dir, id)
		must(t, err)
		return c
	}
	has := func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, identityFile))
		return err == nil
	}
	dir := t.TempDir()
	c := claim(dir)
	must(t, c.Disown())
	must(t, c.Release())
	if has(dir) {
		t.Error("a new one is kept")
	}
	must(t, claim(dir).Release())
	c = claim(dir)
	must(t, c.Disown())
	must(t, c.Release())
	if !has(dir) {
		t.Error("one that was claimed before is given up")
	}
	dir = t.TempDir()
	c = claim(dir)
	must(t, os.Mkdir(filepath.Join(dir, "groups"), 0o750))
	must(t, c.Disown())
	must(t, c.Release())
	if !has(dir) {
		t.Error("one with stores in it is given up")
	}
}
