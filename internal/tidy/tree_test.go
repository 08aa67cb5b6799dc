package tidy

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// modulePath is the path that every import of this module starts with.
const modulePath = "github.com/quorate/quorate"

// skippedDirs are not part of the source: what was built, what a run left, what git keeps.
var skippedDirs = []string{".git", "bin", "data", "dist", "node_modules"}

// goFile is one parsed Go file of the tree.
type goFile struct {
	path      string // slash separated, from the root
	src       []byte
	fset      *token.FileSet
	syntax    *ast.File
	generated bool
}

func (f *goFile) dir() string  { return path.Dir(f.path) }
func (f *goFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// at is the position of a node as file:line.
func (f *goFile) at(n ast.Node) string {
	return f.path + ":" + strconv.Itoa(f.fset.Position(n.Pos()).Line)
}

// imports are the paths that the file imports.
func (f *goFile) imports() []string {
	var paths []string
	for _, spec := range f.syntax.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err == nil {
			paths = append(paths, p)
		}
	}
	return paths
}

// walkFiles calls visit for each regular file of the source, in lexical order.
func walkFiles(t *testing.T, tree fs.FS, visit func(name string)) {
	t.Helper()
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // a build or another test removed it while we walked
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skippedDirs, d.Name()):
			return fs.SkipDir
		case d.Type().IsRegular():
			visit(name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mustRead returns a file's content.
func mustRead(t *testing.T, tree fs.FS, name string) []byte {
	t.Helper()
	src, err := fs.ReadFile(tree, name)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// mustParse returns the Go files of the tree, those under testdata left out.
func mustParse(t *testing.T, tree fs.FS) []*goFile {
	t.Helper()
	var files []*goFile
	walkFiles(t, tree, func(name string) {
		if path.Ext(name) != ".go" || slices.Contains(strings.Split(name, "/"), "testdata") {
			return
		}
		f := &goFile{path: name, src: mustRead(t, tree, name), fset: token.NewFileSet()}
		var err error
		f.syntax, err = parser.ParseFile(f.fset, name, f.src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		f.generated = ast.IsGenerated(f.syntax)
		files = append(files, f)
	})
	return files
}

// mustRoot is the root of this module, the nearest folder above that has the module's go.mod.
func mustRoot(t *testing.T) fs.FS {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module "+modulePath+"\n") {
			return os.DirFS(dir)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatalf("no go.mod of %s above the test", modulePath)
		}
		dir = parent
	}
}

// wantNone fails the test with each finding.
func wantNone(t *testing.T, findings []string) {
	t.Helper()
	for _, f := range findings {
		t.Error(f)
	}
}

// wantEach fails the test unless there are as many findings as fragments, and each contains its own.
func wantEach(t *testing.T, findings []string, fragments ...string) {
	t.Helper()
	if len(findings) != len(fragments) {
		t.Fatalf("%d findings, want %d:\n%s", len(findings), len(fragments), strings.Join(findings, "\n"))
	}
	for i, fragment := range fragments {
		if !strings.Contains(findings[i], fragment) {
			t.Errorf("finding %q does not mention %q", findings[i], fragment)
		}
	}
}
