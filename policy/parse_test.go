package policy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestParseBytes gives texts that a script cannot hold: byte order marks, other encodings, and
// control characters.
func TestParseBytes(t *testing.T) {
	const good = "version: p1\ndefault: {limits: [{name: d, limit: 1, window: 1s}]}\n"
	const asJSON = `{"version":"p1","default":{"limits":[{"name":"d","limit":1,"window":"1s"}]}}`
	for _, c := range []struct{ src, want string }{
		{"\ufeff" + good, ""},
		{strings.ReplaceAll(good, "\n", "\r\n"), ""},
		{"\ufeff" + asJSON, ""},
		{" \t\r\n" + asJSON + "\r\n", ""},
		{"\xff\xfev\x00", "f:1:1: this is not valid UTF-8; save the file as UTF-8"},
		{"version: p1\nä: \xff", "f:2:4: this is not valid UTF-8; save the file as UTF-8"},
		{"version: \x00", "f:1:1: control characters are not allowed"},
		{"{\"version\": \"p\x011\"}",
			`f:1:15: a string must not contain the control character '\x01'; write an escape`},
		{strings.Repeat("[", 100), "f:1:1: did not find expected node content"},
		{strings.Repeat(`{"a":`, 70) + "1" + strings.Repeat("}", 70),
			"f:1:326: nested deeper than 64 levels"},
		{strings.Repeat("[", 20_000), "f:1:1: exceeded max depth of 10000"},
		{good + `"` + strings.Repeat("x", 1000) + `": 1`, "f:3:1: unknown key \"" +
			strings.Repeat("x", 64) + "\"...; write one of " + oneOf(policyKeys)},
	} {
		_, err := Parse("f", []byte(c.src))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%.60q:\n%v", c.src, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%.60q:\n%v, want\n%s", c.src, err, c.want)
		}
	}
}

// TestParseTellsProblemsInOrder makes 250 problems, in an order of lines that is not that in which
// a policy is read, and expects the first hundred by position and the number of the others.
func TestParseTellsProblemsInOrder(t *testing.T) {
	var b strings.Builder
	b.WriteString("principals:\n") // read last
	for i := range 150 {
		fmt.Fprintf(&b, "  p%d: 1\n", i)
	}
	b.WriteString("version: p1\nclasses:\n") // read first
	for i := range 99 {
		fmt.Fprintf(&b, "  c%d: 1\n", i)
	}
	b.WriteString("default: 1\n")
	_, err := Parse("f", []byte(b.String()))
	problems := Problems(nil)
	if !errors.As(err, &problems) || len(problems) != MaxProblems+1 {
		t.Fatalf("%d problems: %v", len(problems), err)
	}
	for i, p := range problems[:MaxProblems] {
		if p.Line != i+2 || !strings.Contains(p.Message, "the rules of principals") {
			t.Errorf("problem %d is %v", i, p)
		}
	}
	if got, want := problems[MaxProblems].String(), "f: and 150 more"; got != want {
		t.Errorf("the last is %q, want %q", got, want)
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != MaxProblems+1 {
		t.Errorf("%d lines", len(lines))
	}
}

// TestParseBounds goes to each bound of names and numbers of things, and one beyond.
func TestParseBounds(t *testing.T) {
	const rule = "{limits: [{name: d, limit: 1, window: 1s}]}"
	const head = "version: p1\ndefault: " + rule + "\n"
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	x := strings.Repeat("x", 600)
	limits := func(n int) string {
		return "version: p1\ndefault: {limits: [" +
			many(n, "{name: l%d, limit: 1, window: 1s},") + "]}"
	}
	classes := func(n int) string { return head + "classes:\n" + many(n, "  c%d: "+rule+"\n") }
	groups := func(n int) string {
		return classes(MaxClasses) + "groups:\n" +
			many(n, "  g%[1]d: {classes: [c%[1]d], limits: [{name: g, limit: 1, window: 1s}]}\n")
	}
	for _, c := range []struct{ within, beyond, want string }{
		{limits(16), limits(17), "17 limits in a rule"},
		{classes(MaxClasses), classes(MaxClasses + 1), "more than 4096 classes"},
		{groups(MaxClasses), groups(MaxClasses + 1), "more than 4096 groups"},
		{"version: " + x[:128] + head[11:], "version: " + x[:129] + head[11:], "is 129 bytes long"},
		{head + "classes: {" + x[:128] + ": " + rule + "}",
			head + "classes: {" + x[:129] + ": " + rule + "}", "is 129 bytes long"},
		{head + "tiers: {" + x[:64] + ": {default: " + rule + "}}",
			head + "tiers: {" + x[:65] + ": {default: " + rule + "}}", "is 65 bytes long"},
		{head + "principals: {" + x[:512] + ": {default: " + rule + "}}",
			head + "principals: {" + x[:513] + ": {default: " + rule + "}}", "is 513 bytes long"},
		{strings.Replace(head, "name: d", "name: "+x[:128], 1),
			strings.Replace(head, "name: d", "name: "+x[:129], 1), "is 129 bytes long"},
	} {
		if _, err := Parse("f", []byte(c.within)); err != nil {
			t.Errorf("%s: within the bound:\n%v", c.want, err)
		}
		_, err := Parse("f", []byte(c.beyond))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: beyond the bound: %v", c.want, err)
		}
	}
}

// overrides is a JSON policy with n overrides.
func overrides(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"version":"p1","default":{"limits":[{"name":"d","limit":1,"window":"1s"}]},` +
		`"classes":{"convert":{"limits":[{"name":"m","limit":1,"window":"1s"}]}},"principals":{`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b,
			"\n"+`"customer-%d":{"convert":{"limits":[{"name":"m","limit":%d,"window":"60s"}]}}`, i, i)
	}
	b.WriteString("}}")
	return b.Bytes()
}

// TestMillionOverrides reads as many overrides as are allowed, encodes and decodes them, and
// refuses one more.
func TestMillionOverrides(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds and a gigabyte")
	}
	p, err := Parse("f", overrides(MaxOverrides))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.RuleFor("customer-999999", "convert", "")[0].Max; got != 999_999 {
		t.Errorf("the last override has limit %d", got)
	}
	decoded, err := Decode(p.AppendBinary(nil))
	if err != nil {
		t.Fatal(err)
	}
	if decoded.Digest() != p.Digest() || len(decoded.Principals) != MaxOverrides {
		t.Errorf("%d overrides decoded", len(decoded.Principals))
	}
	_, err = Parse("f", overrides(MaxOverrides+1))
	want := "f:1000002:21: more than 1000000 rules under tiers and principals"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("one more: %v", err)
	}
}

// FuzzParse shows that Parse never panics, that its errors have positions in the file, and that
// what it accepts is a policy that New accepts and that is encoded and decoded.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"good", "bad-text", "bad-policy"} {
		script, err := os.ReadFile("testdata/" + name + ".txt")
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range strings.Split(string(script), "parse\n")[1:] {
			src, _, _ := strings.Cut(c, "----\n")
			f.Add([]byte(src))
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		p, err := Parse("f", src)
		if err != nil {
			checkProblems(t, src, err)
			return
		}
		again, err := New(*p)
		if err != nil || again.Digest() != p.Digest() {
			t.Fatalf("accepted, but New says %v", err)
		}
		if decoded, err := Decode(p.AppendBinary(nil)); err != nil || decoded.Digest() != p.Digest() {
			t.Fatalf("accepted, but Decode says %v", err)
		}
	})
}

func checkProblems(t *testing.T, src []byte, err error) {
	problems := Problems(nil)
	if !errors.As(err, &problems) || len(problems) == 0 || len(problems) > MaxProblems+1 {
		t.Fatalf("the error is %T with %d problems", err, len(problems))
	}
	last := 0
	for i, p := range problems {
		if p.Message == "" || strings.Contains(p.String(), "\n") {
			t.Fatalf("a problem of other than one line: %q", p)
		}
		if i < MaxProblems && (p.Line < max(last, 1) || p.Column < 1) {
			t.Fatalf("out of order or without position: %q", p)
		}
		last = p.Line
	}
}

// BenchmarkParse reads a million overrides as JSON, and as YAML.
func BenchmarkParse(b *testing.B) {
	asJSON := overrides(MaxOverrides)
	asYAML := bytes.NewBufferString("version: p1\n" +
		"default: {limits: [{name: d, limit: 1, window: 1s}]}\n" +
		"classes: {convert: {limits: [{name: m, limit: 1, window: 1s}]}}\nprincipals:\n")
	for i := range MaxOverrides {
		fmt.Fprintf(asYAML,
			"  customer-%d: {convert: {limits: [{name: m, limit: %d, window: 60s}]}}\n", i, i)
	}
	for name, src := range map[string][]byte{"json": asJSON, "yaml": asYAML.Bytes()} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(src)))
			for b.Loop() {
				if _, err := Parse("f", src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDecode decodes a million overrides.
func BenchmarkDecode(b *testing.B) {
	p, err := Parse("f", overrides(MaxOverrides))
	if err != nil {
		b.Fatal(err)
	}
	encoded := p.AppendBinary(nil)
	b.SetBytes(int64(len(encoded)))
	for b.Loop() {
		if _, err := Decode(encoded); err != nil {
			b.Fatal(err)
		}
	}
}
