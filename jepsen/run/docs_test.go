package run

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/workload"
)

// root is the product's folder.
const root = "../.."

func mustRead(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	must(t, err)
	return string(text)
}

// testsOf are the tests of the tree by name, with the folders that have one of that name.
func testsOf(t *testing.T) map[string][]string {
	t.Helper()
	tests, declared := map[string][]string{}, regexp.MustCompile(`(?m)^func (Test[A-Z]\w*)\(`)
	must(t, filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			folder, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			tests[m[1]] = append(tests[m[1]], folder)
		}
		return nil
	}))
	return tests
}

var (
	named   = regexp.MustCompile(`\bTest[A-Z]\w*`)
	command = regexp.MustCompile("`(cd jepsen && )?go test -run '?([^ ']+)'? \\./([^ `]+)`")
	flags   = regexp.MustCompile(`--(mix|faults|workloads) ([a-z][a-z,-]*)`)
)

// Shows that every test which the documents name exists, where the command beside it looks for it, and that the mixes,
// faults and workloads in their commands are known.
func TestDocumentsNameWhatThereIs(t *testing.T) {
	tests := testsOf(t)
	kinds := Kinds()
	count := 0
	for _, name := range []string{"docs/guarantees.md", "jepsen/README.md"} {
		text := mustRead(t, name)
		for _, test := range named.FindAllString(text, -1) {
			if count++; tests[test] == nil {
				t.Errorf("%s names %s, which no folder has", name, test)
			}
		}
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			folder := m[3]
			if m[1] != "" {
				folder = "jepsen/" + folder
			}
			for test := range strings.SplitSeq(strings.TrimSuffix(m[2], "$"), `\|`) {
				if !slices.Contains(tests[test], folder) {
					t.Errorf("%s looks for %s in %s: it is in %v", name, test, folder, tests[test])
				}
			}
		}
		for _, m := range flags.FindAllStringSubmatch(text, -1) {
			for word := range strings.SplitSeq(m[2], ",") {
				_, noMix := FindMix(word)
				_, noWorkload := workload.Pick([]string{word})
				known := map[string]bool{
					"mix": noMix == nil, "workloads": noWorkload == nil, "faults": slices.Contains(kinds, word),
				}
				if !known[m[1]] {
					t.Errorf("%s: --%s %s is not known", name, m[1], word)
				}
			}
		}
	}
	if count < 60 {
		t.Errorf("only %d tests are named", count)
	}
}

// Shows that the tables of workloads, faults and checkers list all there are, and nothing else of that kind is drawn by a mix.
func TestTablesAreComplete(t *testing.T) {
	text := mustRead(t, "jepsen/README.md")
	kinds := Kinds()
	for _, name := range slices.Concat(workload.Names(workload.Kinds()), kinds) {
		if !strings.Contains(text, "`"+name+"`") {
			t.Errorf("the README does not tell of %s", name)
		}
	}
	for _, c := range check.Checkers() {
		if !strings.Contains(text, "`"+c.Name+"`") {
			t.Errorf("the README does not tell of checker %s", c.Name)
		}
	}
	for _, m := range Mixes() {
		for _, kind := range m.Faults {
			if !slices.Contains(kinds, kind) {
				t.Errorf("mix %s draws %s, which is no fault", m.Name, kind)
			}
		}
		if _, err := workload.Pick(m.Workloads); err != nil {
			t.Errorf("mix %s: %v", m.Name, err)
		}
	}
}
