//go:build chaos

package history

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/quorate/quorate/internal/chaos"
)

// Shows that what the program writes of each entry and what the suite reads are the same: the same names, in the same
// order, with the same types and options.
func TestAppliedAgrees(t *testing.T) {
	written, read := formOf(reflect.TypeFor[chaos.Line]()), formOf(reflect.TypeFor[Applied]())
	if written != read {
		t.Errorf("the program writes\n%s\nthe suite reads\n%s", written, read)
	}
}

// formOf is the JSON form of a struct.
func formOf(t reflect.Type) (form string) {
	switch t.Kind() {
	case reflect.Slice:
		return "[]" + formOf(t.Elem())
	case reflect.Struct:
		for f := range t.Fields() {
			form += fmt.Sprintf("%s %s; ", f.Tag.Get("json"), formOf(f.Type))
		}
		return "{" + form + "}"
	default:
		return t.Kind().String()
	}
}
