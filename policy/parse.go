package policy

import (
	"errors"
	"slices"
	"strings"
)

// MaxSourceBytes bounds the text of a policy. A million overrides of one limit take some 80 MB.
const MaxSourceBytes = 256 << 20

// Parse reads a policy from YAML, or from JSON, strictly: unknown and duplicate keys, wrong types
// and whatever is beyond a bound are errors. The error is a Problems with all that is wrong, which
// names the file as filename; where the text cannot be read at all, the one problem is where.
func Parse(filename string, src []byte) (*Policy, error) {
	ps := &parser{
		problems:   collector{file: filename},
		interned:   make(map[string]string),
		groupOf:    make(map[string]*Group),
		classNames: make(map[string]string),
		p: &Policy{
			Classes:    make(map[string]*Class),
			Tiers:      make(map[string]map[string][]Limit),
			Principals: make(map[string]map[string][]Limit),
			Groups:     make(map[string]*Group),
			Envoy:      make(map[string]*EnvoyDomain),
		},
	}
	if ps.tree = read(src, &ps.problems); ps.tree != nil {
		ps.policy(0)
	}
	if err := ps.problems.err(); err != nil {
		return nil, err
	}
	ps.tree = nil
	p, err := ps.p.build()
	if problems := (Problems)(nil); errors.As(err, &problems) {
		for _, problem := range problems { // none is left that has no position; tests see to it
			ps.problems.add(1, 1, "%s", problem.Message)
		}
		return nil, ps.problems.err()
	}
	return p, err
}

// parser walks the tree of a text and fills p.
type parser struct {
	*tree
	problems   collector
	p          *Policy
	classNames map[string]string // the listed classes and default
	sorted     []string          // the same, for suggestions
	groupOf    map[string]*Group
	interned   map[string]string // names of limits, of which there are few
	rules      int               // under tiers and principals
}

// The keys of each kind of mapping. The parts that parser.fields returns are in the same order.
var (
	policyKeys = []string{"version", "default", "classes", "tiers", "principals", "groups", "envoy"}
	classKeys  = []string{
		"limits", "replay_horizon", "on_unavailable", "local_limit", "timeout", "retention",
		"disabled",
	}
	ruleKeys  = classKeys[:1]
	groupKeys = []string{"classes", "limits"}
	limitKeys = []string{"name", "limit", "window"}
	localKeys = limitKeys[1:]
)

// part is a key of a mapping and its value; 0, 0 when the key is not there.
type part struct {
	key, value int32
}

func (ps *parser) problem(i int32, format string, args ...any) {
	n := ps.at(i)
	ps.problems.add(int(n.line), int(n.column), format, args...)
}

func (ps *parser) policy(root int32) {
	if n := ps.at(root); n.kind == kindScalar && n.tag == tagNull {
		ps.problem(root, "%s", emptyFile)
		return
	}
	f, ok := ps.fields(root, "a policy", policyKeys, nil)
	if !ok {
		return
	}
	if f[0].key == 0 {
		ps.problem(root, `"version" is missing; write a label such as version: p1`)
	} else if version, ok := ps.name(f[0].value, "the version", MaxNameBytes); ok {
		ps.p.Version = strings.Clone(version)
	}
	ps.classNames[DefaultClass] = DefaultClass
	if f[1].key == 0 {
		ps.problem(root, `"default" is missing; `+
			`write default: {limits: [{name: default, limit: 100, window: 60s}]}`)
	} else {
		ps.class(f[1].key, f[1].value, &ps.p.Default)
	}
	classes := ps.classes(f[2].value)
	ps.sorted = sortedKeys(ps.classNames)
	ps.groups(f[5].value)
	for name, at := range classes {
		if g := ps.groupOf[name]; g != nil {
			ps.clashes(at, ps.p.Classes[name].Limits, g)
		}
	}
	ps.overrides(f[3].value, "tiers", "a tier's name", MaxTierBytes, ps.p.Tiers)
	ps.overrides(f[4].value, "principals", "a principal", MaxPrincipalBytes, ps.p.Principals)
	ps.envoy(f[6].value)
}

// mapping reports whether a node is a mapping, and says what is expected when it is not.
func (ps *parser) mapping(i int32, what string) bool {
	return ps.isKind(i, kindMapping, what, "a mapping")
}

func (ps *parser) isKind(i int32, kind nodeKind, what, expected string) bool {
	n := ps.at(i)
	if n.kind != kind && n.kind != kindRefused {
		hint := ""
		if n.tag == tagNull && n.kind == kindScalar {
			hint = "; fill it in or remove its key"
		}
		ps.problem(i, "%s must be %s, found %s%s", what, expected, describe(n), hint)
	}
	return n.kind == kind
}

// describe is a node's kind and, where it is short, its text.
func describe(n *node) string {
	switch {
	case n.kind == kindMapping:
		return "a mapping"
	case n.kind == kindSequence:
		return "a list"
	case n.tag == tagNull:
		return "nothing"
	}
	return quoted(n.text)
}

// fields finds the parts of a mapping with fixed keys, in the order of known. For a key that is not
// known, elsewhere may tell where it belongs. ok is false when the node is no mapping.
func (ps *parser) fields(
	i int32, what string, known []string, elsewhere func(key string) string,
) (f [8]part, ok bool) {
	if !ps.mapping(i, what) {
		return f, false
	}
	for key := i + 1; key < ps.end(i); {
		value := ps.next(key)
		n := ps.at(key)
		k := slices.Index(known, n.text)
		switch {
		case n.kind == kindRefused:
		case n.kind != kindScalar:
			ps.problem(key, "a key must be one of %s, found %s", oneOf(known), describe(n))
		case k < 0:
			ps.unknownKey(key, n.text, known, elsewhere)
		case f[k].key != 0:
			ps.problem(key, "duplicate key %s; the first is in line %d",
				quoted(n.text), ps.at(f[k].key).line)
		default:
			f[k] = part{key, value}
		}
		key = ps.next(value)
	}
	return f, true
}

func (ps *parser) unknownKey(
	at int32, key string, known []string, elsewhere func(key string) string,
) {
	if elsewhere != nil {
		if hint := elsewhere(key); hint != "" {
			ps.problem(at, "%s", hint)
			return
		}
	}
	hint := suggestion(key, known)
	if hint == "" {
		hint = "; write one of " + oneOf(known)
		if len(known) == 1 {
			hint = "; only " + oneOf(known) + " belongs here"
		}
	}
	ps.problem(at, "unknown key %s%s", quoted(key), hint)
}

func oneOf(names []string) string { return strings.Join(names, ", ") }

// entries calls visit for each part of a mapping whose keys are names, with names that are good and
// not yet seen.
func (ps *parser) entries(
	i int32, section, what string, max int, seen func(name string) bool,
	visit func(name string, at part) (goOn bool),
) {
	if i == 0 || !ps.mapping(i, quoted(section)) {
		return
	}
	for key := i + 1; key < ps.end(i); {
		value := ps.next(key)
		name, ok := ps.name(key, what, max)
		switch {
		case ok && seen(name):
			ps.duplicate(i, key, name)
		case ok:
			if !visit(name, part{key, value}) {
				return
			}
		}
		key = ps.next(value)
	}
}

// duplicate tells of a key that its mapping has before already.
func (ps *parser) duplicate(mapping, again int32, name string) {
	if ps.problems.plenty() { // no search per duplicate in a hostile file
		ps.problem(again, "duplicate key %s", quoted(name))
		return
	}
	first := mapping + 1
	for first < again && ps.at(first).text != name {
		first = ps.next(ps.next(first))
	}
	ps.problem(again, "duplicate key %s; the first is in line %d",
		quoted(name), ps.at(first).line)
}

func (ps *parser) classes(i int32) (limits map[string]int32) {
	limits = make(map[string]int32)
	seen := func(name string) bool { return ps.p.Classes[name] != nil }
	ps.entries(i, "classes", "a class name", MaxClassBytes, seen, func(name string, at part) bool {
		if name == DefaultClass {
			ps.problem(at.key, "%s; move it there", defaultIsNoClass)
			return true
		}
		if len(ps.p.Classes) == MaxClasses {
			ps.problem(at.key, "more than %d classes; at most %d are allowed",
				MaxClasses, MaxClasses)
			return false
		}
		name = strings.Clone(name)
		class := &Class{}
		limits[name] = ps.class(at.key, at.value, class)
		ps.p.Classes[name] = class
		ps.classNames[name] = name
		return true
	})
	return limits
}

// overrides reads tiers or principals into rules.
func (ps *parser) overrides(
	i int32, section, what string, max int, rules map[string]map[string][]Limit,
) {
	seenNames := make(map[string]bool) // those without a rule, which are left out of rules
	seen := func(name string) bool { return rules[name] != nil || seenNames[name] }
	ps.entries(i, section, what, max, seen, func(name string, at part) bool {
		if !ps.mapping(at.value, "the rules of "+section) {
			seenNames[name] = true
			return true
		}
		byClass := make(map[string][]Limit, ps.parts(at.value)/2)
		fits := ps.byClass(at.value, section, byClass)
		if len(byClass) == 0 {
			seenNames[name] = true
		} else {
			rules[strings.Clone(name)] = byClass
		}
		return fits
	})
}

// byClass reads the rules of one tier or principal. It returns false when there are too many rules.
func (ps *parser) byClass(i int32, section string, rules map[string][]Limit) bool {
	for key := i + 1; key < ps.end(i); {
		value := ps.next(key)
		name, ok := ps.name(key, "a class name", MaxClassBytes)
		class, listed := ps.classNames[name]
		_, again := rules[class]
		switch {
		case !ok:
		case !listed:
			ps.unlisted(key, name)
		case again:
			ps.duplicate(i, key, name)
		case ps.rules == MaxOverrides:
			ps.problem(key, "more than %d rules under tiers and principals; at most %d are allowed",
				MaxOverrides, MaxOverrides)
			return false
		default:
			ps.rules++
			rules[class] = ps.override(key, value, section, class)
		}
		key = ps.next(value)
	}
	return true
}

func (ps *parser) unlisted(at int32, name string) {
	hint := ""
	if !ps.problems.plenty() {
		hint = suggestion(name, ps.sorted)
	}
	if hint == "" {
		hint = "; add it there first"
	}
	ps.problem(at, "the class %s is not listed under classes%s", quoted(name), hint)
}

func (ps *parser) override(key, i int32, section, class string) []Limit {
	f, ok := ps.fields(i, "a rule", ruleKeys, func(key string) string {
		if !slices.Contains(classKeys, key) {
			return ""
		}
		home := joinPath("classes", class)
		if class == DefaultClass {
			home = DefaultClass
		}
		return quoted(key) + " belongs to the class as a whole, not to " + section +
			"; move it to " + home
	})
	if !ok {
		return nil
	}
	if f[0].key == 0 {
		ps.missingLimits(key)
		return nil
	}
	limits := ps.limits(f[0].value)
	if g := ps.groupOf[class]; g != nil {
		ps.clashes(f[0].value, limits, g)
	}
	return limits
}

func (ps *parser) missingLimits(at int32) {
	ps.problem(at, `"limits" is missing; write limits: [{name: per-minute, limit: 3, window: 60s}]`)
}

// clashes tells which limits of a rule at i have the name of a limit of the class's group.
func (ps *parser) clashes(i int32, limits []Limit, g *Group) {
	item := i + 1
	for _, l := range limits {
		if l.Name != "" && named(g.Limits, l.Name) {
			ps.problem(item, "the limit %s has the name of a limit of the class's group %s; "+
				"rename one of them", quoted(l.Name), quoted(g.Name))
		}
		item = ps.next(item)
	}
}
