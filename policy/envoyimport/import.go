package envoyimport

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quorate/quorate/policy"
)

// Source is one file.
type Source struct {
	Name string
	Text []byte
}

// Note is something that has no exact counterpart.
type Note struct {
	File string
	Line int // 0 where it is about all of it
	Text string
}

// String is the note in one line.
func (n Note) String() string {
	switch {
	case n.File == "":
		return n.Text
	case n.Line == 0:
		return n.File + ": " + n.Text
	}
	return fmt.Sprintf("%s:%d: %s", n.File, n.Line, n.Text)
}

const dayNanos = int64(24) * 3600 * 1_000_000_000

// units are the windows of the service's units, with what is said of those that are not exact.
var units = map[string]struct {
	nanos int64
	note  string
}{
	"second": {nanos: 1_000_000_000},
	"minute": {nanos: 60 * 1_000_000_000},
	"hour":   {nanos: 3600 * 1_000_000_000},
	"day":    {nanos: dayNanos},
	"week":   {nanos: 7 * dayNanos},
	"month":  {nanos: 31 * dayNanos, note: "a month becomes any 31 days"},
	"year":   {nanos: 366 * dayNanos, note: "a year becomes any 366 days"},
}

// Import makes a policy of files, each with a domain of its own, with a label. The notes tell what has no exact
// counterpart. An error is about a file, or the policy that would be made, and says where.
func Import(label string, sources ...Source) (*policy.Policy, []Note, error) {
	im := &importer{parts: policy.Policy{
		Version: label,
		Default: policy.Class{Limits: []policy.Limit{{Name: "nothing", Max: 0, WindowNanos: 1_000_000_000}}},
		Classes: map[string]*policy.Class{},
		Envoy:   map[string]*policy.EnvoyDomain{},
	}}
	im.note(0, "windows of the service begin at the turn of their unit, and up to twice its limit passes around that; "+
		"here they are rolling, and the limit is exact")
	im.note(0, "default blocks what is no class of this policy, which Envoy never asks for: give it a limit if others "+
		"will")
	for _, s := range sources {
		f, err := read(s.Name, s.Text)
		if err != nil {
			return nil, nil, err
		}
		if _, twice := im.parts.Envoy[f.Domain]; twice {
			return nil, nil, fmt.Errorf("%s: the domain %q is in two files: a domain is one file's", s.Name, f.Domain)
		}
		im.file, im.domain, im.there = s.Name, &policy.EnvoyDomain{PassUnmatched: true}, map[string]bool{}
		im.parts.Envoy[f.Domain] = im.domain
		im.dropped = map[string]bool{}
		im.descriptors(f.Descriptors, path{domain: f.Domain})
		im.forget()
		if len(im.domain.Rules) == 0 {
			im.fail(0, "the domain %q has no limit: there is nothing to import", f.Domain)
		}
	}
	if len(im.errs) > 0 {
		return nil, nil, errors.Join(im.errs...)
	}
	p, err := policy.New(im.parts)
	if err != nil {
		return nil, nil, fmt.Errorf("the policy that would be made is refused: %w", err)
	}
	return p, im.notes, nil
}

type importer struct {
	parts  policy.Policy
	notes  []Note
	errs   []error
	file   string
	domain *policy.EnvoyDomain
	there  map[string]bool // what the domain's rules match, and what earlier ones of them match all of
	// dropped are the names of limits that the service never gets to.
	dropped map[string]bool
}

func (im *importer) note(line int, format string, args ...any) {
	im.notes = append(im.notes, Note{im.file, line, fmt.Sprintf(format, args...)})
}

func (im *importer) fail(line int, format string, args ...any) {
	im.errs = append(im.errs, errors.New(Note{im.file, line, fmt.Sprintf(format, args...)}.String()))
}

// path is how a descriptor is reached: the entries that it matches.
type path struct {
	domain  string
	entries []policy.EnvoyEntry
	shared  []bool // of each entry: its values share one limit
}

func (p path) with(e policy.EnvoyEntry, shared bool) path {
	return path{p.domain, append(slices.Clip(p.entries), e), append(slices.Clip(p.shared), shared)}
}

// maxNesting bounds how deep descriptors are.
const maxNesting = policy.MaxEnvoyEntries

// descriptors makes rules of siblings. The service looks for an entry's value first, then, in the order of the file,
// for those that end with an asterisk, then for the key alone; and it looks no further than the first that it finds.
// Rules are tried in this order, and go no further either: see hide.
func (im *importer) descriptors(list []descriptor, above path) {
	if len(above.entries) == maxNesting && len(list) > 0 {
		im.fail(list[0].line, "descriptors are nested deeper than %d", maxNesting)
		return
	}
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b descriptor) int { return cmp.Compare(rank(&a), rank(&b)) })
	for i := range sorted {
		d := &sorted[i]
		for j := range sorted[:i] {
			if sorted[j].Key == d.Key && sorted[j].Value == d.Value {
				im.fail(d.line, "the descriptor %s is there twice, in line %d also", words(d), sorted[j].line)
			}
		}
		var hidden []descriptor
		for j := i + 1; j < len(sorted); j++ {
			if overlap(d, &sorted[j]) {
				hidden = append(hidden, sorted[j])
			}
		}
		im.descriptor(d, above, hidden)
	}
}

// rank is when the service looks for a descriptor among its siblings.
func rank(d *descriptor) int {
	switch {
	case d.Value == "":
		return 2
	case strings.HasSuffix(d.Value, "*"):
		return 1
	}
	return 0
}

// overlap reports whether there are values that both match.
func overlap(a, b *descriptor) bool {
	x, y := entryOf(a), entryOf(b)
	switch {
	case x.Key != y.Key:
		return false
	case x.How == policy.MatchAny || y.How == policy.MatchAny:
		return true
	case x.How == policy.MatchPrefix && strings.HasPrefix(y.Value, x.Value):
		return true
	}
	return y.How == policy.MatchPrefix && strings.HasPrefix(x.Value, y.Value)
}

// hide makes rules that let through what the service would find below a sibling of here, which it does not look at: it
// has found here first.
func (im *importer) hide(sibling *descriptor, here path) {
	for i := range sibling.Descriptors {
		d := &sibling.Descriptors[i]
		below := here.with(entryOf(d), false)
		if len(below.entries) > maxNesting || len(im.domain.Rules) > policy.MaxEnvoyRules {
			return // which is told
		}
		im.rule(policy.EnvoyRule{Match: below.entries, Unlimited: true})
		im.hide(d, below)
	}
}

// rule adds a rule, unless it would never be used.
func (im *importer) rule(r policy.EnvoyRule) {
	if !im.taken(&r) {
		im.there[matchKey(&r)] = true
		im.domain.Rules = append(im.domain.Rules, r)
	}
}

// taken reports whether a rule before takes all that r matches.
func (im *importer) taken(r *policy.EnvoyRule) bool {
	match := matchKey(r)
	if im.there[match] {
		return true
	}
	for i := range im.domain.Rules {
		if im.domain.Rules[i].Covers(r) {
			im.there[match] = true
			return true
		}
	}
	return false
}

func matchKey(r *policy.EnvoyRule) string { return fmt.Sprintf("%q", r.Match) }

// forget takes limits that were left out from what others replace: they never hold anyway.
func (im *importer) forget() {
	for i := range im.domain.Rules {
		delete(im.dropped, im.domain.Rules[i].Name)
	}
	for i := range im.domain.Rules {
		r := &im.domain.Rules[i]
		r.Replaces = slices.DeleteFunc(r.Replaces, func(name string) bool { return im.dropped[name] })
	}
}

func entryOf(d *descriptor) policy.EnvoyEntry {
	e := policy.EnvoyEntry{Key: d.Key, How: policy.MatchValue, Value: d.Value}
	switch prefix, wild := strings.CutSuffix(d.Value, "*"); {
	case d.Value == "" || wild && prefix == "":
		e.How, e.Value = policy.MatchAny, ""
	case wild:
		e.How, e.Value = policy.MatchPrefix, prefix
	}
	return e
}

func words(d *descriptor) string {
	if d.Value == "" {
		return d.Key
	}
	return d.Key + "=" + d.Value
}

// descriptor makes the rules of one. The service looks at those that are hidden only where it does not find d.
func (im *importer) descriptor(d *descriptor, above path, hidden []descriptor) {
	if d.Key == "" {
		im.fail(d.line, `a descriptor has no "key"`)
		return
	}
	if strings.Contains(strings.TrimSuffix(d.Value, "*"), "*") {
		im.note(d.line, "the asterisk within %s is taken as it is: only one at the end stands for anything", words(d))
	}
	here := above.with(entryOf(d), d.Share)
	im.mentions(d)
	switch {
	case d.RateLimit != nil:
		im.limit(d, here)
	case len(d.Descriptors) == 0 || len(hidden) > 0:
		im.rule(policy.EnvoyRule{Match: here.entries, Unlimited: true})
	}
	im.descriptors(d.Descriptors, here)
	for i := range hidden {
		im.hide(&hidden[i], here)
	}
}

// mentions tells what is left out of a descriptor.
func (im *importer) mentions(d *descriptor) {
	for _, m := range []struct {
		there bool
		text  string
	}{
		{d.Detailed, "detailed_metric is left out: no metric here names a value of a caller's"},
		{d.ValueToMetric, "value_to_metric is left out: no metric here names a value of a caller's"},
		{d.QuotaMode, "quota_mode is left out: the limit is enforced"},
		{d.RateLimit != nil && d.RateLimit.Sleep, "sleep_on_throttle is left out: a denial is answered at once"},
	} {
		if m.there {
			im.note(d.line, "%s: %s", words(d), m.text)
		}
	}
}

// limit makes the rule, and the class, of one limit.
func (im *importer) limit(d *descriptor, at path) {
	l := d.RateLimit
	if im.taken(&policy.EnvoyRule{Match: at.entries}) {
		im.dropped[l.Name] = true
		im.note(d.line, "%s is left out: the service never gets to it, since another one takes all its values", words(d))
		return
	}
	r := policy.EnvoyRule{Name: l.Name, Match: at.entries}
	for _, o := range l.Replaces {
		r.Replaces = append(r.Replaces, o.Name)
	}
	switch {
	case l.Unlimited && (l.Unit != "" || l.RequestsPerUnit != 0):
		im.fail(d.line, "%s is unlimited and has a limit: the service refuses that, too", words(d))
	case l.Unlimited:
		r.Unlimited = true
	case d.ShadowMode:
		im.note(d.line, "%s: shadow_mode has no counterpart: it becomes unlimited, and is not counted", words(d))
		r.Unlimited = true
	default:
		im.class(d, at, &r)
	}
	im.rule(r)
}

func (im *importer) class(d *descriptor, at path, r *policy.EnvoyRule) {
	unit, known := units[strings.ToLower(d.RateLimit.Unit)]
	if !known {
		im.fail(d.line, "%s has the unit %q: the service knows second, minute, hour, day, week, month and year", words(d),
			d.RateLimit.Unit)
		return
	}
	if unit.note != "" {
		im.note(d.line, "%s: %s", words(d), unit.note)
	}
	for i, e := range at.entries {
		if e.How != policy.MatchValue && !at.shared[i] {
			r.Principal = append(r.Principal, e.Key)
		}
	}
	if keys := slices.Sorted(slices.Values(r.Principal)); len(slices.Compact(keys)) < len(r.Principal) {
		im.fail(d.line, "%s: a key is twice on the way to this limit, and its values would name the principal", words(d))
		return
	}
	if len(r.Principal) == 0 {
		r.Shared = at.domain
	}
	r.Class = im.className(at)
	im.parts.Classes[r.Class] = &policy.Class{Limits: []policy.Limit{{
		Name: "per-" + strings.ToLower(d.RateLimit.Unit), Max: int64(d.RateLimit.RequestsPerUnit), WindowNanos: unit.nanos,
	}}}
}

// className is the name of a limit's class: the way to it. Where that is too long, or another way reads alike, it is
// its beginning and a hash.
func (im *importer) className(at path) string {
	var b strings.Builder
	b.WriteString(at.domain)
	for _, e := range at.entries {
		b.WriteString("/" + e.Key)
		switch e.How {
		case policy.MatchValue:
			b.WriteString("=" + e.Value)
		case policy.MatchPrefix:
			b.WriteString("=" + e.Value + "*")
		case policy.MatchAny:
		}
	}
	name := b.String()
	if _, taken := im.parts.Classes[name]; taken || len(name) > policy.MaxClassBytes || name == policy.DefaultClass {
		const hashBytes = 8
		sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", at.domain, at.entries))
		most := policy.MaxClassBytes - 2*hashBytes - 1
		name = fmt.Sprintf("%s#%x", strings.ToValidUTF8(name[:min(len(name), most)], ""), sum[:hashBytes])
	}
	return name
}
