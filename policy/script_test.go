package policy

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScripts runs the scripts under testdata: what a file means, every problem that is told for a
// bad one, how rules resolve, how durations read and what two policies differ in.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts under testdata: %v", err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".txt"), func(t *testing.T) {
			var last *Policy
			datadriven.RunTest(t, script, func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "parse":
					p, err := Parse("p.yaml", []byte(d.Input))
					if err != nil {
						return err.Error()
					}
					last = p
					return dump(p)
				case "resolve":
					return resolveScript(t, d, last)
				case "compare":
					return compareScript(t, d)
				case "duration":
					return durationScript(d.Input)
				}
				t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
				return ""
			})
		})
	}
}

// resolveScript shows the rule, group and windows of a principal, a class and a tier.
func resolveScript(t *testing.T, d *datadriven.TestData, p *Policy) string {
	var principal, class, tier string
	d.ScanArgs(t, "principal", &principal)
	d.ScanArgs(t, "class", &class)
	d.MaybeScanArgs(t, "tier", &tier)
	resolved, c := p.ClassOf(class)
	group := "none"
	if g := p.GroupOf(resolved); g != nil {
		group = g.Name
	}
	w := p.Windows(resolved)
	return fmt.Sprintf("class %s, disabled %v\nrule %s\ngroup %s\n"+
		"windows rule %s group %s retention %s",
		resolved, c.Disabled, limitsText(p.RuleFor(principal, resolved, tier)), group,
		FormatDuration(w.Rule), FormatDuration(w.Group), FormatDuration(w.Retention))
}

// compareScript compares two policies that a line of ==== parts.
func compareScript(t *testing.T, d *datadriven.TestData) string {
	before, after, ok := strings.Cut(d.Input, "====\n")
	if !ok {
		t.Fatalf("%s: compare needs two policies with ==== between", d.Pos)
	}
	changes := Compare(mustParse(t, before), mustParse(t, after))
	if len(changes) == 0 {
		return "equal"
	}
	var b strings.Builder
	for _, c := range changes {
		fmt.Fprintln(&b, c)
	}
	return b.String()
}

func durationScript(input string) string {
	var b strings.Builder
	for line := range strings.Lines(input) {
		text := strings.TrimSuffix(line, "\n")
		if nanos, err := ParseDuration(text); err != nil {
			fmt.Fprintf(&b, "%q %v\n", text, err)
		} else {
			fmt.Fprintf(&b, "%q %d %s\n", text, nanos, FormatDuration(nanos))
		}
	}
	return b.String()
}

func mustParse(t testing.TB, src string) *Policy {
	t.Helper()
	p, err := Parse("p.yaml", []byte(src))
	if err != nil {
		t.Fatalf("parse:\n%v", err)
	}
	return p
}

// dump is all of a policy in lines.
func dump(p *Policy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "version %q\ndefault: %s\n", p.Version, classText(&p.Default))
	for _, name := range p.classNames {
		fmt.Fprintf(&b, "class %q: %s\n", name, classText(p.Classes[name]))
	}
	for _, name := range p.groupNames {
		fmt.Fprintf(&b, "group %q: %s\n", name, groupText(p.Groups[name]))
	}
	for _, name := range p.tierNames {
		for _, class := range sortedKeys(p.Tiers[name]) {
			fmt.Fprintf(&b, "tier %q, class %q: %s\n", name, class, limitsText(p.Tiers[name][class]))
		}
	}
	for _, name := range p.principalNames {
		for _, class := range sortedKeys(p.Principals[name]) {
			fmt.Fprintf(&b, "principal %q, class %q: %s\n",
				name, class, limitsText(p.Principals[name][class]))
		}
	}
	for _, name := range p.envoyNames {
		fmt.Fprintf(&b, "envoy %q: %s\n", name, p.Envoy[name].text())
	}
	return b.String()
}
