package tidy

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"
)

// wordRule forbids a pattern in every text file of the tree. The patterns are put together so that
// this file does not match them.
type wordRule struct {
	pattern *regexp.Regexp
	why     string
}

var wordRules = []wordRule{
	{
		regexp.MustCompile("(^|[^A-Za-z0-9._})/])(/" + "home/|/" + "root/|/" + "Users/|/" + "work/|[A-Z]:\\\\" + "Users)"),
		"a path of one person's machine",
	},
	{regexp.MustCompile("(?i)simpli" + "fied for now|not yet imple" + "mented"), "unfinished work"},
	{regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`), "a note to oneself: do it, or write down the limitation"},
	{regexp.MustCompile("^(<<" + "<<<<< |>>" + ">>>>> )"), "an unresolved merge"},
	{regexp.MustCompile(`\b(SP` + `EC|DES` + `IGN) §`), "a section of a document that the tree does not have"},
}

// documentName finds documents named in prose and comments: capitals, then the suffix.
var documentName = regexp.MustCompile(`\b[A-Z][A-Z_]+\.md\b`)

// checkedWords tells whether the rules on words hold for a file: checksums and corpora are noise
// that may spell anything.
func checkedWords(name string) bool {
	return path.Base(name) != "go.sum" && !strings.Contains(name, "testdata/fuzz/")
}

// checkWords finds lines that mention what no file may.
func checkWords(t *testing.T, tree fs.FS, rules []wordRule) []string {
	t.Helper()
	var findings []string
	walkFiles(t, tree, func(name string) {
		src := mustRead(t, tree, name)
		if !checkedWords(name) || !utf8.Valid(src) {
			return
		}
		for i, line := range strings.Split(string(src), "\n") {
			for _, r := range rules {
				if m := r.pattern.FindString(line); m != "" {
					findings = append(findings, fmt.Sprintf("%s:%d: %q: %s", name, i+1, strings.TrimSpace(m), r.why))
				}
			}
		}
	})
	return findings
}

// checkDocumentNames finds mentions of documents that are nowhere in the tree.
func checkDocumentNames(t *testing.T, tree fs.FS) []string {
	t.Helper()
	var exist []string
	walkFiles(t, tree, func(name string) { exist = append(exist, path.Base(name)) })
	var findings []string
	walkFiles(t, tree, func(name string) {
		src := mustRead(t, tree, name)
		if !checkedWords(name) || !utf8.Valid(src) {
			return
		}
		for i, line := range strings.Split(string(src), "\n") {
			for _, m := range documentName.FindAllString(line, -1) {
				if !slices.Contains(exist, m) {
					findings = append(findings, fmt.Sprintf("%s:%d names %s, which the tree does not have", name, i+1, m))
				}
			}
		}
	})
	return findings
}

// Shows that no file mentions one person's machine, unfinished work or a document kept elsewhere.
func TestNoForbiddenWords(t *testing.T) {
	wantNone(t, checkWords(t, mustRoot(t), wordRules))
}

// Shows that the check reports each rule, with the line, and neither binary files nor look-alikes.
func TestWordCheckCanFail(t *testing.T) {
	home := "/" + "home/"
	bad := fstest.MapFS{
		"a.go":   {Data: []byte("package a\n\nvar dir = \"" + home + "kim/x\"\n")},
		"b.md":   {Data: []byte("see SP" + "EC §2\nTO" + "DO: all\n<<" + "<<<<< ours\n")},
		"c.go":   {Data: []byte("// $HOME" + home + "x, a.b" + home + "y and TO" + "DOS are fine\n// " + "simpli" + "fied for now\n")},
		"d.bin":  {Data: []byte("\xff\xfe" + home)},
		"go.sum": {Data: []byte("h1:TO" + "DO\n")},
	}
	wantEach(t, checkWords(t, bad, wordRules),
		"a.go:3", "b.md:1", "b.md:2", "b.md:3", "c.go:2")
}

// Shows that every document that is named is there to be read.
func TestNamedDocumentsExist(t *testing.T) {
	wantNone(t, checkDocumentNames(t, mustRoot(t)))
}

// Shows that the check reports a document that is missing and accepts one that lies in a sub-folder.
func TestDocumentNameCheckCanFail(t *testing.T) {
	bad := fstest.MapFS{
		"a.go":                 {Data: []byte("package a // see GUIDE" + ".md and NOTES" + ".md\n")},
		"docs/x/NOTES" + ".md": {Data: []byte("notes\n")},
	}
	wantEach(t, checkDocumentNames(t, bad), "a.go:1 names GUIDE"+".md")
}
