package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxDepth bounds the nesting of a file. A policy nests eight deep.
const maxDepth = 64

type nodeKind uint8

const (
	kindRefused nodeKind = iota // its problem has been told already
	kindScalar
	kindSequence
	kindMapping
)

type scalarTag uint8

const (
	tagString scalarTag = iota
	tagNull
	tagBool
	tagInt
	tagFloat
	tagOther // a timestamp, binary, …
)

// node is a node of the text. A node's parts follow it: those of a mapping are keys and values in
// turn. size counts the node itself and all that is in it.
type node struct {
	text         string
	size         int32
	line, column int32
	kind         nodeKind
	tag          scalarTag
	plain        bool // a scalar without quotes
}

// tree is the text of a policy, the same for YAML and JSON. A node is named by its index; 0 is the
// root, and therefore "none" wherever a part is meant. Nodes are kept in chunks, since a tree can
// have many millions of them and its number is known at the end only.
type tree struct {
	chunks [][]node
	count  int32
}

const chunkBits = 12

func (t *tree) at(i int32) *node { return &t.chunks[i>>chunkBits][i&(1<<chunkBits-1)] }

func (t *tree) open(n node) int32 {
	if t.count&(1<<chunkBits-1) == 0 {
		t.chunks = append(t.chunks, make([]node, 1<<chunkBits))
	}
	i := t.count
	t.count++
	n.size = 1
	*t.at(i) = n
	return i
}

func (t *tree) close(i int32) { t.at(i).size = t.count - i }

// end is the index after the last part of a node.
func (t *tree) end(i int32) int32 { return i + t.at(i).size }

// next is the node after i and its parts: its sibling, when i is not the last.
func (t *tree) next(i int32) int32 { return t.end(i) }

// parts is the number of direct parts of a node.
func (t *tree) parts(i int32) (n int) {
	for part := i + 1; part < t.end(i); part = t.next(part) {
		n++
	}
	return n
}

// read makes the tree of a text. It adds a problem and returns nil when there is none.
func read(src []byte, problems *collector) *tree {
	if len(src) > MaxSourceBytes {
		problems.add(1, 1, "the file has %d bytes; at most %d are allowed",
			len(src), MaxSourceBytes)
		return nil
	}
	src = bytes.TrimPrefix(src, []byte("\ufeff"))
	if !utf8.Valid(src) {
		line, column := invalidAt(src)
		problems.add(line, column, "this is not valid UTF-8; save the file as UTF-8")
		return nil
	}
	if len(bytes.TrimSpace(src)) == 0 {
		problems.add(1, 1, "%s", emptyFile)
		return nil
	}
	fault, looksJSON := (*jsonFault)(nil), false
	if start := bytes.TrimLeft(src, " \t\r\n"); start[0] == '{' {
		t, f := readJSON(string(src))
		if f == nil {
			return t
		}
		after := bytes.TrimLeft(start[1:], " \t\r\n")
		fault, looksJSON = f, len(after) > 0 && (after[0] == '"' || after[0] == '}')
	}
	// YAML has flow mappings too, so what is not JSON may be YAML still. When it is neither, the
	// fault to tell is that of the language it looks like.
	before := *problems
	t := readYAML(src, problems)
	if t == nil && looksJSON {
		*problems = before
		problems.add(fault.line, fault.column, "%s", fault.message)
	}
	return t
}

const emptyFile = "the file has no policy; it needs at least version and default with limits"

// invalidAt is the position of the first byte that is not UTF-8.
func invalidAt(src []byte) (line, column int) {
	line, column = 1, 1
	for len(src) > 0 {
		r, size := utf8.DecodeRune(src)
		if r == utf8.RuneError && size == 1 {
			break
		}
		if column++; r == '\n' {
			line, column = line+1, 1
		}
		src = src[size:]
	}
	return line, column
}

func readYAML(src []byte, problems *collector) *tree {
	decoder := yaml.NewDecoder(bytes.NewReader(src))
	document, err := nextDocument(decoder)
	switch {
	case errors.Is(err, io.EOF):
		problems.add(1, 1, "%s", emptyFile)
		return nil
	case err != nil:
		addSyntax(src, err, problems)
		return nil
	}
	c := yamlReader{problems: problems}
	c.add(document.Content[0], 0)
	another, err := nextDocument(decoder)
	switch {
	case errors.Is(err, io.EOF):
		return &c.tree
	case err != nil:
		addSyntax(src, err, problems)
	default:
		problems.add(another.Line, another.Column,
			"a second document starts here; write one policy in a file")
	}
	return nil
}

// nextDocument reads one document. The YAML library reports some of its own faults by panic; they
// are faults of the text here, since a server must survive any text.
func nextDocument(decoder *yaml.Decoder) (document *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	document = &yaml.Node{}
	if err := decoder.Decode(document); err != nil {
		return nil, err
	}
	if document.Kind != yaml.DocumentNode || len(document.Content) != 1 {
		return nil, errors.New("yaml: not a document")
	}
	return document, nil
}

var (
	yamlLine   = regexp.MustCompile(`^line (\d+): `)
	yamlAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// addSyntax tells an error of the YAML library, which gives the line at most.
func addSyntax(src []byte, err error, problems *collector) {
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 1
	if m := yamlLine.FindStringSubmatch(message); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			line = n
		}
		message = message[len(m[0]):]
	}
	if m := yamlAnchor.FindStringSubmatch(message); m != nil {
		if i := bytes.Index(src, []byte("*"+m[1])); i >= 0 {
			line += bytes.Count(src[:i], []byte("\n"))
		}
		message = noAliases
	}
	if strings.Contains(message, "invalid Unicode character escape") {
		message += `; write the character itself, or \U and eight hexadecimal digits`
	}
	problems.add(line, 1, "%s", strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) { // part of the text; a problem is one line
			return unicode.ReplacementChar
		}
		return r
	}, message))
}

const (
	noAliases = "aliases are not supported in a policy; write the value out"
	noAnchors = "anchors are not supported in a policy; remove &%s and write values out"
	noMerges  = "merge keys (<<) are not supported in a policy; write the keys out"
	noTags    = "tags are not supported in a policy; remove %s"
	noNesting = "nested deeper than %d levels"
)

// yamlReader makes a tree of YAML nodes and refuses what a policy has no use for.
type yamlReader struct {
	tree
	problems *collector
}

func (r *yamlReader) refuse(n *yaml.Node, format string, args ...any) {
	r.problems.add(n.Line, n.Column, format, args...)
}

func (r *yamlReader) add(n *yaml.Node, depth int) {
	made := node{text: n.Value, line: int32(n.Line), column: int32(n.Column)}
	if n.Anchor != "" {
		r.refuse(n, noAnchors, n.Anchor)
	}
	switch {
	case n.Kind == yaml.AliasNode:
		r.refuse(n, noAliases)
	case depth > maxDepth:
		r.refuse(n, noNesting, maxDepth)
	case n.Style&yaml.TaggedStyle != 0:
		r.refuse(n, noTags, quoted(n.Tag))
	case n.Kind == yaml.MappingNode:
		made.kind = kindMapping
	case n.Kind == yaml.SequenceNode:
		made.kind = kindSequence
	case n.Tag == "!!merge":
		r.refuse(n, noMerges)
	default:
		made.kind = kindScalar
		const quotes = yaml.DoubleQuotedStyle | yaml.SingleQuotedStyle |
			yaml.LiteralStyle | yaml.FoldedStyle
		made.plain = n.Style&quotes == 0
		made.tag = tagOf(n.Tag)
	}
	i := r.open(made)
	if made.kind != kindRefused {
		for _, part := range n.Content {
			r.add(part, depth+1)
		}
	}
	r.close(i)
}

func tagOf(tag string) scalarTag {
	switch tag {
	case "!!str":
		return tagString
	case "!!null":
		return tagNull
	case "!!bool":
		return tagBool
	case "!!int":
		return tagInt
	case "!!float":
		return tagFloat
	}
	return tagOther
}
