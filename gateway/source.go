package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// mark is where something stands in a file, both counted from 1. Line 0: nobody knows.
type mark struct{ line, column int }

// finding is one thing that is wrong.
type finding struct {
	place string // as "routes[0].match"; empty for the file as a whole
	at    mark   // line 0: where the place stands
	err   error
	// decisive: what else is found at the place comes of it.
	decisive bool
}

func (f *finding) Error() string {
	if f.place == "" {
		return f.err.Error()
	}
	return f.place + ": " + f.err.Error()
}

// Unwrap is what is wrong, without the place.
func (f *finding) Unwrap() error { return f.err }

// source is a YAML file, and where its values stand.
type source struct {
	name  string
	marks map[string]mark // by place
	nodes map[string]*yaml.Node
	// environ has the names in the environment of the places that have their values from there.
	environ map[string]string
	root    *yaml.Node     // what it says, without what was reported; nil when there is nothing
	value   map[string]any // the same
}

// maxNesting bounds what is looked at. A configuration nests six deep.
const maxNesting = 64

// readSource reads a file of one document, a mapping that is to become a value of the type kind. What cannot be, it
// leaves out and reports: keys that are no field, and keys that stand twice.
func readSource(name string, src []byte, kind reflect.Type, p *problems) *source {
	s := &source{name: name, marks: map[string]mark{}, nodes: map[string]*yaml.Node{}}
	var doc yaml.Node
	if err := yaml.Unmarshal(src, &doc); err != nil {
		addYAML(p, err)
		return s
	}
	if err := oneDocument(src); err != nil {
		addYAML(p, err)
	}
	if at := endless(src); at.line > 0 {
		*p = append(*p, &finding{at: at, err: errEndless})
	}
	var all any // bounds what aliases can make of it
	var fields *yaml.TypeError
	if err := doc.Decode(&all); err != nil && !errors.As(err, &fields) {
		addYAML(p, err)
		return s
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" { // there is nothing
		return s
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		*p = append(*p, &finding{at: markOf(root), err: errors.New("write fields and their values, as listen: 127.0.0.1:80")})
		return s
	}
	s.strict(p, root, kind, "", 0)
	s.root = root
	if err := root.Decode(&s.value); err != nil {
		addYAML(p, err)
	}
	return s
}

var errEndless = errors.New("the last line does not end: the file may be half-written; end it with a newline")

// endless is where a text of which the last line does not end stops.
func endless(src []byte) mark {
	if len(src) == 0 || src[len(src)-1] == '\n' {
		return mark{}
	}
	last := bytes.LastIndexByte(src, '\n') + 1
	return mark{1 + bytes.Count(src, []byte("\n")), len(src) - last + 1}
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): `)

// addYAML adds what the YAML library says, which begins with the line where it knows it.
func addYAML(p *problems, err error) {
	lines := []string{err.Error()}
	if fields := (*yaml.TypeError)(nil); errors.As(err, &fields) {
		lines = fields.Errors
	}
	for _, text := range lines {
		f := &finding{}
		if m := yamlLine.FindStringSubmatch(text); m != nil {
			f.at.line, _ = strconv.Atoi(m[1])
			f.at.column, text = 1, text[len(m[0]):]
		}
		f.err = errors.New(strings.ReplaceAll(text, "\n", " "))
		*p = append(*p, f)
	}
}

func markOf(n *yaml.Node) mark { return mark{n.Line, n.Column} }

// strict notes where the parts of n stand, and leaves out and reports what can be no part of a value of the type.
func (s *source) strict(p *problems, n *yaml.Node, kind reflect.Type, place string, depth int) {
	if depth > maxNesting {
		return
	}
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	for kind != nil && kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch {
	case n.Kind == yaml.SequenceNode:
		for i, item := range n.Content {
			s.note(index(place, i), item, item)
			s.strict(p, item, partOf(kind, reflect.Slice), index(place, i), depth+1)
		}
	case n.Kind == yaml.MappingNode && kind != nil && kind.Kind() == reflect.Slice: // a list of one
		s.strict(p, n, kind.Elem(), index(place, 0), depth+1)
	case n.Kind == yaml.MappingNode:
		s.mapping(p, n, kind, place, depth)
	}
}

func (s *source) mapping(p *problems, n *yaml.Node, kind reflect.Type, place string, depth int) {
	kept := make([]*yaml.Node, 0, len(n.Content))
	seen := map[string]int{}
	fields := fieldsOf(kind)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			s.merge(p, value, kind, place, depth)
			kept = append(kept, key, value)
			continue
		}
		at := join(place, key.Value)
		part, known := partOf(kind, reflect.Map), true
		if fields != nil {
			part, known = fields[key.Value]
		}
		earlier, dup := seen[key.Value]
		switch {
		case !known:
			*p = append(*p, &finding{place: at, at: markOf(key), err: fmt.Errorf("there is no such field: those here are %s",
				strings.Join(slices.Sorted(maps.Keys(fields)), ", "))})
			continue
		case dup && key.Kind == yaml.ScalarNode:
			*p = append(*p, &finding{place: at, at: markOf(key), err: fmt.Errorf(
				"it is already defined in line %d: remove one of them", earlier)})
			continue
		}
		seen[key.Value] = key.Line
		s.note(at, key, value)
		s.strict(p, value, part, at, depth+1)
		kept = append(kept, key, value)
	}
	n.Content = kept
}

// merge is for what stands behind <<, which is as if it stood here.
func (s *source) merge(p *problems, n *yaml.Node, kind reflect.Type, place string, depth int) {
	if n.Kind == yaml.SequenceNode {
		for _, one := range n.Content {
			s.strict(p, one, kind, place, depth+1)
		}
		return
	}
	s.strict(p, n, kind, place, depth+1)
}

// note notes where a value stands, the first of a place.
func (s *source) note(place string, at, value *yaml.Node) {
	if _, noted := s.marks[place]; !noted {
		s.marks[place], s.nodes[place] = markOf(at), value
	}
}

// without leaves out the value of a place, and reports whether there is one.
func (s *source) without(place string) bool {
	n := s.nodes[place]
	if n == nil || n.Tag == "!!null" {
		return false
	}
	*n = yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: n.Line, Column: n.Column}
	s.value = nil
	return s.root.Decode(&s.value) == nil
}

// join is the place of a field.
func join(place, name string) string {
	if place == "" {
		return name
	}
	return place + "." + name
}

// partOf is the type of the parts of a list or of a map; nil of others.
func partOf(kind reflect.Type, is reflect.Kind) reflect.Type {
	if kind == nil || kind.Kind() != is {
		return nil
	}
	return kind.Elem()
}

// fieldsOf are the fields of a struct, by their names in files; nil of others.
func fieldsOf(kind reflect.Type) map[string]reflect.Type {
	if kind == nil || kind.Kind() != reflect.Struct {
		return nil
	}
	out := map[string]reflect.Type{}
	for i := range kind.NumField() {
		f := kind.Field(i)
		name := f.Tag.Get("koanf")
		if name == "" {
			name, _, _ = strings.Cut(f.Tag.Get("yaml"), ",")
		}
		if name != "" {
			out[name] = f.Type
		}
	}
	return out
}

// find is where a place, or what is around it, stands: a mark, or a name in the environment.
func (s *source) find(place string) (m mark, name string) {
	for place != "" {
		if name := s.environ[place]; name != "" {
			return mark{}, name
		}
		if m, ok := s.marks[place]; ok {
			return m, ""
		}
		place = place[:max(strings.LastIndexAny(place, ".["), 0)]
	}
	return mark{}, ""
}

// lines are findings in the order of where they stand, each with the file and where it knows the line; of one place
// only what is decisive, if anything is.
func (s *source) lines(p problems) []string {
	type told struct {
		at   mark
		text string
	}
	var all []told
	decided := map[string]bool{}
	for _, err := range p {
		f := &finding{err: err}
		_ = errors.As(err, &f)
		if decided[f.place] {
			continue
		}
		decided[f.place] = f.decisive
		at, from := f.at, ""
		if at.line == 0 {
			at, from = s.find(f.place)
		}
		switch where := s.name; {
		case from != "":
			all = append(all, told{text: "environment " + from + ": " + f.Error()})
		case at.line > 0:
			all = append(all, told{at, fmt.Sprintf("%s:%d:%d: %s", where, at.line, at.column, f.Error())})
		default:
			all = append(all, told{text: where + ": " + f.Error()})
		}
	}
	slices.SortStableFunc(all, func(a, b told) int {
		return cmp.Or(cmp.Compare(a.at.line, b.at.line), cmp.Compare(a.at.column, b.at.column))
	})
	out := make([]string, 0, len(all))
	for _, one := range all {
		out = append(out, one.text)
	}
	return slices.Compact(out)
}

// tell makes one error of findings; nil of none.
func (s *source) tell(p problems) error {
	if len(p) == 0 {
		return nil
	}
	return errors.New(strings.Join(s.lines(p), "\n"))
}
