package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jedib0t/go-pretty/v6/table"
)

// Shows that the version is printed in all three formats, with the same facts.
func TestVersion(t *testing.T) {
	var v versionInfo
	if err := json.Unmarshal([]byte(mustRun(t, "version", "-o", "json").stdout), &v); err != nil {
		t.Fatal(err)
	}
	if v.Version == "" || v.Go != runtime.Version() || v.Platform != runtime.GOOS+"/"+runtime.GOARCH {
		t.Errorf("version is %+v", v)
	}
	for _, format := range []string{"table", "yaml"} {
		out := mustRun(t, "version", "-o", format).stdout
		if !strings.Contains(out, v.Version) || !strings.Contains(out, v.Go) {
			t.Errorf("-o %s lacks version or Go: %q", format, out)
		}
	}
}

// Shows that YAML has JSON's names and order, keeps large integers, and quotes what would read as
// another type; that JSON is one line and leaves < > & alone; and that tables have no ragged ends.
func TestFormats(t *testing.T) {
	type part struct {
		Name string `json:"name"`
	}
	data := struct {
		Zulu  string `json:"zulu"`
		Alpha int64  `json:"alpha"`
		Bool  bool   `json:"bool"`
		Parts []part `json:"parts"`
		None  []part `json:"none"`
	}{"<true>", 1<<53 + 1, true, []part{{"yes"}, {"1e3"}, {"line\nbreak é"}}, []part{}}
	fill := func(w table.Writer) {
		w.AppendHeader(table.Row{"name", "n"})
		w.AppendRow(table.Row{"a", 1})
		w.AppendRow(table.Row{"long", ""})
	}
	want := map[outputFormat]string{
		outputJSON: `{"zulu":"<true>","alpha":9007199254740993,"bool":true,` +
			`"parts":[{"name":"yes"},{"name":"1e3"},{"name":"line\nbreak é"}],"none":[]}` + "\n",
		outputYAML: "zulu: <true>\nalpha: 9007199254740993\nbool: true\nparts:\n" +
			"  - name: \"yes\"\n  - name: \"1e3\"\n  - name: |-\n      line\n      break é\nnone: []\n",
		outputTable: "NAME  N\na     1\nlong\n",
	}
	for format, text := range want {
		var b bytes.Buffer
		if err := format.print(&b, data, fill); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text, b.String()); diff != "" {
			t.Errorf("-o %s: %s", format, diff)
		}
	}
}

// Shows that a file that is no terminal gets no colours, and that those of a terminal are escape
// sequences in the header only.
func TestColorsOnlyOnTerminals(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/out")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if hasColors(f) || hasColors(new(bytes.Buffer)) {
		t.Error("colours in a file or a buffer")
	}
	w := table.NewWriter()
	w.SetStyle(tableStyle(true))
	w.AppendHeader(table.Row{"name"})
	w.AppendRow(table.Row{"a"})
	header, row, _ := strings.Cut(w.Render(), "\n")
	if !strings.Contains(header, "\x1b[") || strings.Contains(row, "\x1b[") {
		t.Errorf("header %q, row %q", header, row)
	}
}
