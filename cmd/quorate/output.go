package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/mattn/go-isatty"
	"go.yaml.in/yaml/v3"
)

// outputFormat is the value of -o.
type outputFormat string

const (
	outputTable = "table"
	outputJSON  = "json"
	outputYAML  = "yaml"
)

// String returns the format's name.
func (f *outputFormat) String() string { return string(*f) }

// Type is the word for the value in the help.
func (f *outputFormat) Type() string { return "format" }

// Set accepts the name of a format.
func (f *outputFormat) Set(s string) error {
	switch s {
	case outputTable, outputJSON, outputYAML:
		*f = outputFormat(s)
		return nil
	}
	return fmt.Errorf("%q is none of table, json, yaml", s)
}

// print writes data in the format. For a table, fill adds header and rows; JSON is one line, and
// YAML has the fields of JSON in the same order.
func (f outputFormat) print(w io.Writer, data any, fill func(table.Writer)) error {
	switch f {
	case outputJSON:
		b, err := marshalJSON(data)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	case outputYAML:
		b, err := marshalYAML(data)
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	t := table.NewWriter()
	t.SetStyle(tableStyle(hasColors(w)))
	t.SuppressTrailingSpaces()
	fill(t)
	_, err := fmt.Fprintln(w, t.Render())
	return err
}

func marshalJSON(data any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(data); err != nil {
		return nil, fmt.Errorf("cannot print as JSON: %w", err)
	}
	return b.Bytes(), nil
}

// marshalYAML goes by way of JSON, which is YAML in another style, so that names, order and large
// integers are the same in both.
func marshalYAML(data any) ([]byte, error) {
	b, err := marshalJSON(data)
	if err != nil {
		return nil, err
	}
	var tree yaml.Node
	if err := yaml.Unmarshal(b, &tree); err != nil {
		return nil, fmt.Errorf("cannot print as YAML: %w", err)
	}
	if err := blockStyle(&tree); err != nil {
		return nil, fmt.Errorf("cannot print as YAML: %w", err)
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(&tree); err != nil {
		return nil, fmt.Errorf("cannot print as YAML: %w", err)
	}
	return out.Bytes(), e.Close()
}

// blockStyle takes away braces, and the quotes that no reader needs: a string gets the style that the
// library gives to one that it encodes itself, which minds older readers' "yes" and "1:30" too.
func blockStyle(n *yaml.Node) error {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!str" {
		var own yaml.Node
		if err := own.Encode(n.Value); err != nil {
			return err
		}
		n.Style = own.Style
	}
	for _, child := range n.Content {
		if err := blockStyle(child); err != nil {
			return err
		}
	}
	return nil
}

// tableStyle is columns apart by two spaces, without lines.
func tableStyle(colors bool) table.Style {
	s := table.StyleDefault
	s.Name = "quorate"
	s.Options = table.OptionsNoBordersAndSeparators
	s.Box.PaddingLeft = ""
	s.Box.PaddingRight = "  "
	s.Format.Header = text.FormatUpper
	if colors {
		s.Color.Header = text.Colors{text.Bold}
	}
	return s
}

// hasColors tells whether w shows colours: a terminal, whose user has not said no (no-color.org).
func hasColors(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isatty.IsTerminal(f.Fd())
}
