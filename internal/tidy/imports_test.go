package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

// ban forbids an import, and everything below it, for a reason.
type ban struct {
	path, why string
}

func (b ban) matches(imported string) bool {
	return imported == b.path || strings.HasPrefix(imported, b.path+"/")
}

// fsmBans are the imports that would make two replicas differ, or tie the state machine to what
// carries it. Only direct imports count: yaml may well use reflect and os in its own files.
var fsmBans = []ban{
	{"time", "time is in the entries: a clock reads differently on each replica"},
	{"math/rand", "each replica would draw its own numbers"},
	{"crypto/rand", "each replica would draw its own numbers"},
	{"hash/maphash", "its seed is made per process"},
	{"os", "files, environment and signals differ between replicas"},
	{"io/fs", "files differ between replicas"},
	{"net", "the network is not in the log"},
	{"syscall", "the kernel is not in the log"},
	{"runtime", "a decision must not hang on memory or processors"},
	{"unsafe", "memory layout differs between machines"},
	{"sync", "one writer: with goroutines the order of effects would be a race"},
	{"log", "replaying a log must not report its events again; results are returned"},
	{"context", "a step that some replicas cancel is a step that they disagree on"},
	{"encoding/gob", "its bytes are not canonical, and the digest is over bytes"},
	{"encoding/json", "its bytes are not canonical, and the digest is over bytes"},
	{"google.golang.org/protobuf", "its bytes are not canonical, and the digest is over bytes"},
	{"google.golang.org/grpc", "the state machine does not know the wire"},
	{"github.com/hashicorp/raft", "the state machine does not know Raft"},
	{modulePath + "/clock", "time is in the entries"},
	{modulePath + "/partition", "the owner drives the state machine, not the other way"},
	{modulePath + "/control", "placement is decided elsewhere"},
	{modulePath + "/router", "slots are checked from the state alone"},
	{modulePath + "/rpc", "the state machine does not know the wire"},
	{modulePath + "/proto", "the state machine does not know the wire"},
	{modulePath + "/node", "a node is built on the state machine"},
	{modulePath + "/sdk", "the state machine knows no client"},
}

// checkPurity finds, in a folder of deterministic code, banned imports and what the language itself
// has of floats, goroutines and channels.
func checkPurity(t *testing.T, tree fs.FS, folder string) []string {
	t.Helper()
	var findings []string
	for _, f := range mustParse(t, tree) {
		if f.dir() != folder || f.isTest() {
			continue
		}
		for _, imported := range f.imports() {
			for _, b := range fsmBans {
				if b.matches(imported) {
					findings = append(findings, fmt.Sprintf("%s imports %s: %s", f.path, imported, b.why))
				}
			}
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.SendStmt, *ast.ChanType:
				findings = append(findings, f.at(n)+": goroutines and channels make the order of effects a race")
			case *ast.Ident:
				if n.Name == "float64" || n.Name == "float32" {
					findings = append(findings, f.at(n)+": "+n.Name+" rounds differently between machines: integers only")
				}
			case *ast.BasicLit:
				if n.Kind == token.FLOAT {
					findings = append(findings, f.at(n)+": "+n.Value+": integers only")
				}
			}
			return true
		})
	}
	return findings
}

// folderRule says what a folder and everything below it may take from this module.
type folderRule struct {
	folder string
	// only, when set, are the folders that it may import, itself aside; never are those it may not.
	only, never []string
	why         string
}

var folderRules = []folderRule{
	{
		folder: "fsm", only: []string{"policy", "internal/guard"},
		why: "the state machine stands on policies alone; the guards are nothing in the product",
	},
	{folder: "policy", only: []string{}, why: "everything else is built on the policy model"},
	{folder: "proto", only: []string{}, why: "the wire contract stands alone"},
	{folder: "router", only: []string{"proto"}, why: "the SDK links it"},
	{
		folder: "sdk", never: []string{"partition", "control", "fsm", "node", "rpc", "clock"},
		why: "a gateway must not inherit Raft or a server",
	},
	{
		folder: "gateway", never: []string{"fsm", "partition", "control", "node", "rpc", "clock", "cmd"},
		why: "it is built on the SDK alone, as anybody's gateway is",
	},
	{
		folder: "clock", never: []string{"partition", "control", "fsm", "node", "rpc", "policy"},
		why: "time knows nothing of what is decided by it",
	},
	{
		folder: "rpc", never: []string{"partition/group", "partition/storage", "internal/reference", "node"},
		why: "the services ask the owner, they do not decide",
	},
	{folder: "partition", never: []string{"rpc", "node", "sdk", "cmd"}, why: "the services are built on it"},
	{folder: "control", never: []string{"rpc", "node", "sdk", "cmd"}, why: "the services are built on it"},
}

// checkFolders finds imports between folders of this module that the rules forbid. Tests may import
// what they like.
func checkFolders(t *testing.T, tree fs.FS, rules []folderRule) []string {
	t.Helper()
	within := func(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }
	var findings []string
	for _, f := range mustParse(t, tree) {
		if f.isTest() {
			continue
		}
		for _, imported := range f.imports() {
			target, ours := strings.CutPrefix(imported, modulePath+"/")
			if !ours {
				continue
			}
			for _, r := range rules {
				if !within(f.dir(), r.folder) || within(target, r.folder) {
					continue
				}
				allowed := r.only == nil
				for _, o := range r.only {
					allowed = allowed || within(target, o)
				}
				for _, n := range r.never {
					allowed = allowed && !within(target, n)
				}
				if !allowed {
					findings = append(findings, fmt.Sprintf("%s imports %s: %s", f.path, target, r.why))
				}
			}
		}
	}
	return findings
}

// Shows that the state machine imports nothing, and uses nothing of the language, by which two
// replicas could come to differ.
func TestStateMachineIsPure(t *testing.T) {
	for _, pure := range []string{"fsm", "control/state"} {
		wantNone(t, checkPurity(t, mustRoot(t), pure))
	}
}

// Shows that the purity check reports a banned import, one below it, a float, a goroutine and a
// channel, and leaves tests and neighbours alone.
func TestPurityCheckCanFail(t *testing.T) {
	bad := fstest.MapFS{
		"fsm/a.go":      {Data: []byte("package fsm\n\nimport (\n\t\"net/http\"\n\t\"strings\"\n\t\"time\"\n)\n")},
		"fsm/b.go":      {Data: []byte("package fsm\n\nvar x float64\n\nfunc f(c chan int) { go f(c); _ = 1.5 }\n")},
		"fsm/a_test.go": {Data: []byte("package fsm\n\nimport \"time\"\n")},
		"clock/a.go":    {Data: []byte("package clock\n\nimport \"time\"\n")},
	}
	wantEach(t, checkPurity(t, bad, "fsm"),
		"fsm/a.go imports net/http", "fsm/a.go imports time", "float64", "goroutines", "goroutines", "1.5")
}

// checkGuards finds imports of the guards in files that the product is built of: what the state machine imports must
// bring nothing with it.
func checkGuards(t *testing.T, tree fs.FS) []string {
	t.Helper()
	var findings []string
	for _, f := range mustParse(t, tree) {
		if f.dir() != "internal/guard" || f.isTest() || strings.Contains(string(f.src), "//go:build chaos") {
			continue
		}
		for _, imported := range f.imports() {
			findings = append(findings, fmt.Sprintf("%s imports %s: only a file with the tag chaos may", f.path, imported))
		}
	}
	return findings
}

// Shows that the guards import nothing in the product.
func TestGuardsImportNothing(t *testing.T) {
	wantNone(t, checkGuards(t, mustRoot(t)))
}

// Shows that the check of the guards reports an import in a file of the product, and leaves those of the chaos suite
// alone.
func TestGuardCheckCanFail(t *testing.T) {
	bad := fstest.MapFS{
		"internal/guard/on.go":     {Data: []byte("//go:build !chaos\n\npackage guard\n\nimport \"os\"\n")},
		"internal/guard/switch.go": {Data: []byte("//go:build chaos\n\npackage guard\n\nimport \"os\"\n")},
	}
	wantEach(t, checkGuards(t, bad), "internal/guard/on.go imports os")
}

// Shows that no folder imports a folder of this module that it must not know.
func TestFoldersKeepApart(t *testing.T) {
	wantNone(t, checkFolders(t, mustRoot(t), folderRules))
}

// Shows that the folder check reports an import outside a folder's list and one on its ban list, in
// sub-folders too, and accepts those within both.
func TestFolderCheckCanFail(t *testing.T) {
	bad := fstest.MapFS{
		"router/a.go":      {Data: []byte(source("router", "policy", "proto/quorate/v1"))},
		"sdk/http/a.go":    {Data: []byte(source("http", "fsm", "router", "sdk"))},
		"sdk/a_test.go":    {Data: []byte(source("sdk", "fsm"))},
		"gateway/a.go":     {Data: []byte(source("gateway", "clock", "sdk", "sdk/quotahttp"))},
		"sdklike/a.go":     {Data: []byte(source("sdklike", "fsm"))},
		"rpc/envoy/a.go":   {Data: []byte(source("envoy", "partition", "partition/group"))},
		"partition/own.go": {Data: []byte(source("partition", "fsm", "partition/group"))},
	}
	wantEach(t, checkFolders(t, bad, folderRules),
		"gateway/a.go imports clock", "router/a.go imports policy", "rpc/envoy/a.go imports partition/group", "sdk/http/a.go imports fsm")
}

// source is a Go file that imports folders of this module.
func source(name string, folders ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n\n", name)
	for _, f := range folders {
		fmt.Fprintf(&b, "import _ %q\n", modulePath+"/"+f)
	}
	return b.String()
}
