package policy

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonFault is where and why a text is not JSON.
type jsonFault struct {
	line, column int
	message      string
}

// readJSON makes the tree of a JSON text (RFC 8259), which is valid UTF-8. It is here because YAML
// parsers read nearly all of JSON: they refuse a character that is escaped as a surrogate pair.
func readJSON(text string) (t *tree, fault *jsonFault) {
	r := &jsonReader{text: text, line: 1, column: 1}
	r.value(0)
	if r.space(); r.fault == nil && r.at < len(text) {
		r.fail("unexpected %s after the end of the policy", r.found())
	}
	if r.fault != nil {
		return nil, r.fault
	}
	return &r.tree, nil
}

// jsonReader reads text from at, which is at line and column. After a fault it stands still.
type jsonReader struct {
	tree
	text         string
	at           int
	line, column int32
	fault        *jsonFault
}

func (r *jsonReader) fail(format string, args ...any) {
	if r.fault == nil {
		r.fault = &jsonFault{int(r.line), int(r.column), fmt.Sprintf(format, args...)}
	}
}

// found describes what is at the present place, for a message.
func (r *jsonReader) found() string {
	if r.at >= len(r.text) {
		return "end of the text"
	}
	c, _ := utf8.DecodeRuneInString(r.text[r.at:])
	return strconv.QuoteRune(c)
}

// peek is the next byte, 0 at the end and after a fault.
func (r *jsonReader) peek() byte {
	if r.at >= len(r.text) || r.fault != nil {
		return 0
	}
	return r.text[r.at]
}

// advance moves over n bytes without a line break.
func (r *jsonReader) advance(n int) {
	r.column += int32(utf8.RuneCountInString(r.text[r.at : r.at+n]))
	r.at += n
}

func (r *jsonReader) space() {
	for {
		switch r.peek() {
		case '\n':
			r.line, r.column = r.line+1, 1
		case ' ', '\t', '\r':
			r.column++
		default:
			return
		}
		r.at++
	}
}

func (r *jsonReader) value(depth int) {
	if depth > maxDepth {
		r.fail(noNesting, maxDepth)
		return
	}
	r.space()
	n := node{line: r.line, column: r.column, kind: kindScalar}
	switch c := r.peek(); {
	case c == '{':
		n.kind = kindMapping
		r.parts(n, '}', depth)
	case c == '[':
		n.kind = kindSequence
		r.parts(n, ']', depth)
	case c == '"':
		n.text = r.string()
		r.open(n)
	case c == '-' || '0' <= c && c <= '9':
		n.plain = true
		n.text, n.tag = r.number()
		r.open(n)
	default:
		n.plain = true
		n.text, n.tag = r.word()
		r.open(n)
	}
}

// parts reads the parts of a mapping or a sequence up to its closing bracket.
func (r *jsonReader) parts(n node, closing byte, depth int) {
	i := r.open(n)
	r.advance(1)
	if r.space(); r.peek() == closing {
		r.advance(1)
		return
	}
	for r.fault == nil {
		if n.kind == kindMapping {
			r.key()
		}
		r.value(depth + 1)
		r.space()
		switch r.peek() {
		case ',':
			r.advance(1)
		case closing:
			r.advance(1)
			r.close(i)
			return
		default:
			r.fail("expected ',' or '%c', found %s", closing, r.found())
		}
	}
}

func (r *jsonReader) key() {
	r.space()
	if r.peek() != '"' {
		r.fail("expected a key in quotes, found %s", r.found())
		return
	}
	n := node{line: r.line, column: r.column, kind: kindScalar}
	n.text = r.string()
	r.open(n)
	if r.space(); r.peek() != ':' {
		r.fail("expected ':' after the key, found %s", r.found())
		return
	}
	r.advance(1)
}

// number reads a number as it is written; what a limit may look like is decided elsewhere.
func (r *jsonReader) number() (text string, tag scalarTag) {
	rest := r.text[r.at:]
	end := 0
	some := func() bool {
		start := end
		for end < len(rest) && '0' <= rest[end] && rest[end] <= '9' {
			end++
		}
		return end > start
	}
	if rest[0] == '-' {
		end++
	}
	first := end
	good := some() && (rest[first] != '0' || end == first+1)
	tag = tagInt
	if end < len(rest) && rest[end] == '.' {
		end++
		good = some() && good
		tag = tagFloat
	}
	if end < len(rest) && (rest[end] == 'e' || rest[end] == 'E') {
		end++
		if end < len(rest) && (rest[end] == '+' || rest[end] == '-') {
			end++
		}
		good = some() && good
		tag = tagFloat
	}
	if !good {
		r.fail("%s is not a number in JSON", quoted(rest[:end]))
		return "", tag
	}
	r.advance(end)
	return rest[:end], tag
}

func (r *jsonReader) word() (text string, tag scalarTag) {
	for _, w := range []struct {
		text string
		tag  scalarTag
	}{{"true", tagBool}, {"false", tagBool}, {"null", tagNull}} {
		if strings.HasPrefix(r.text[r.at:], w.text) {
			r.advance(len(w.text))
			return w.text, w.tag
		}
	}
	r.fail("expected a value, found %s", r.found())
	return "", tagNull
}

// string reads a string in quotes. Without escapes it is a part of the text, not a copy.
func (r *jsonReader) string() string {
	r.advance(1)
	rest := r.text[r.at:]
	for i := 0; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == '"':
			r.advance(i + 1)
			return rest[:i]
		case c == '\\':
			r.advance(i)
			return r.escaped([]byte(rest[:i]))
		case c < ' ':
			r.advance(i)
			r.fail("a string must not contain the control character %s; write an escape", r.found())
			return ""
		}
	}
	r.fail("a string without its closing quote")
	return ""
}

// escaped reads the rest of a string from its first escape on.
func (r *jsonReader) escaped(s []byte) string {
	for r.fault == nil {
		switch c := r.peek(); {
		case r.at >= len(r.text):
			r.fail("a string without its closing quote")
		case c == '"':
			r.advance(1)
			return string(s)
		case c == '\\':
			s = r.escape(s)
		case c < ' ':
			r.fail("a string must not contain the control character %s; write an escape", r.found())
		default:
			s = append(s, c)
			if r.at++; utf8.RuneStart(c) {
				r.column++
			}
		}
	}
	return ""
}

func (r *jsonReader) escape(s []byte) []byte {
	const escapes, characters = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	if r.at+1 >= len(r.text) {
		r.fail("a string without its closing quote")
		return s
	}
	c := r.text[r.at+1]
	if i := strings.IndexByte(escapes, c); i >= 0 {
		r.advance(2)
		return append(s, characters[i])
	}
	if c != 'u' {
		r.fail(`unknown escape %s; write \\ for a backslash`, escapeText(r.text[r.at+1:]))
		return s
	}
	unit, ok := r.unit(r.at)
	if !ok {
		r.fail(`\u needs four hexadecimal digits`)
		return s
	}
	if !utf16.IsSurrogate(unit) {
		r.advance(6)
		return utf8.AppendRune(s, unit)
	}
	low, ok := r.unit(r.at + 6)
	if pair := utf16.DecodeRune(unit, low); ok && pair != utf8.RuneError {
		r.advance(12)
		return utf8.AppendRune(s, pair)
	}
	r.fail(`\u%04x is half of a surrogate pair; write both halves, or the character itself`, unit)
	return s
}

// escapeText is a backslash with the character that rest starts with, printable in one line.
func escapeText(rest string) string {
	c, _ := utf8.DecodeRuneInString(rest)
	return "\\ with " + strconv.QuoteRune(c)
}

// unit reads a \u escape at a place of the text.
func (r *jsonReader) unit(at int) (rune, bool) {
	if at+6 > len(r.text) || r.text[at] != '\\' || r.text[at+1] != 'u' {
		return 0, false
	}
	n := rune(0)
	for _, c := range []byte(r.text[at+2 : at+6]) {
		switch {
		case '0' <= c && c <= '9':
			n = n<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			n = n<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return n, true
}
