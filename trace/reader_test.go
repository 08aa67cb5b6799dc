package trace

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/fsm"
)

// mustReadAll reads a trace to its end.
func mustReadAll(t *testing.T, text string) (lines []*Line) {
	t.Helper()
	r := NewReader("t.jsonl", strings.NewReader(text))
	for {
		line, err := r.Next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
}

// What may be left out has its default, what is given arrives unchanged, and blank lines count.
func TestReaderReadsChecksAndPolicies(t *testing.T) {
	got := mustReadAll(t, `{"at":"1970-01-01T00:00:01Z","principal":"p","api_class":"c","decision_id":"d"}

{"at":"1970-01-01T02:00:00.000000001+02:00","principal":"\u00e9\ud83d\ude00 ","api_class":"c","decision_id":"d","cost":9007199254740992,"gateway":"g","tier":"t","policy_revision":7}
  {"at":"2200-12-31T23:59:59.999999999Z","policy":{"version":"v"}}`+"\r\n")
	want := []*Line{
		{Number: 1, At: 1_000_000_000, Check: &fsm.Check{
			Principal: "p", Gateway: Insecure, DecisionID: "d", Charge: fsm.Charge{Class: "c", Cost: 1},
		}},
		{Number: 3, At: 1, Check: &fsm.Check{
			Principal: "é😀 ", Gateway: "g", DecisionID: "d", PolicyRevision: 7,
			Charge: fsm.Charge{Class: "c", Tier: "t", Cost: 1 << 53},
		}},
		{Number: 4, At: 7_289_654_399_999_999_999, Policy: []byte(`{"version":"v"}`)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

// A check with a wrong value is a line with Malformed set, keeps its id when that can be read, and the
// next line is read.
func TestReaderGoesOnAfterAMalformedCheck(t *testing.T) {
	const rest = `"at":"2026-09-22T12:00:00Z"`
	for _, c := range []struct{ fields, id, want string }{
		{`"principal":"p","api_class":"c","decision_id":"d","cost":0`, "d", "cost"},
		{`"principal":"p","api_class":"c","decision_id":"d","cost":-1`, "d", "cost"},
		{`"principal":"p","api_class":"c","decision_id":"d","cost":9007199254740993`, "d", "cost"},
		{`"principal":"p","api_class":"c","decision_id":"d","cost":99999999999999999999`, "d", "cost"},
		{`"principal":"p","api_class":"c","decision_id":"d","cost":1.5`, "d", "cost"},
		{`"principal":"p","api_class":"c","decision_id":"d","cost":"1"`, "d", "cost"},
		{`"principal":"p","api_class":"c","decision_id":"d","cost":null`, "d", "cost"},
		{`"principal":"","api_class":"c","decision_id":"d"`, "d", "principal"},
		{`"api_class":"c","decision_id":"d"`, "d", "principal"},
		{`"principal":5,"api_class":"c","decision_id":"d"`, "d", "principal"},
		{"\"principal\":\"\xff\",\"api_class\":\"c\",\"decision_id\":\"d\"", "d", "principal"},
		{`"principal":"\ud800","api_class":"c","decision_id":"d"`, "d", "principal"},
		{`"principal":"\ud800\ud800","api_class":"c","decision_id":"d"`, "d", "principal"},
		{`"principal":"\udc00\ud800","api_class":"c","decision_id":"d"`, "d", "principal"},
		{`"principal":"\ud800x","api_class":"c","decision_id":"d"`, "d", "principal"},
		{`"principal":"\ud800\n","api_class":"c","decision_id":"d"`, "d", "principal"},
		{`"principal":"a\u0000","api_class":"c","decision_id":"d"`, "d", "principal"},
		{`"principal":"p","decision_id":"d"`, "d", "api_class"},
		{`"principal":"p","api_class":"c"`, "", "decision_id"},
		{`"principal":"p","api_class":"c","decision_id":[]`, "", "decision_id"},
		{`"principal":"p","api_class":"c","decision_id":"d","tier":null`, "d", "tier"},
		{`"principal":"p","api_class":"c","decision_id":"d","policy_revision":-1`, "d", "policy_revision"},
		{`"principal":"` + strings.Repeat("p", 513) + `","api_class":"c","decision_id":"d"`, "d", "principal"},
	} {
		lines := mustReadAll(t, "{"+rest+","+c.fields+"}\n{"+rest+`,"policy":{}}`)
		if len(lines) != 2 || lines[0].Check == nil {
			t.Errorf("%s: read %d lines", c.fields, len(lines))
			continue
		}
		if err := lines[0].Malformed; err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: malformed: %v, want it to name %s", c.fields, err, c.want)
		}
		if got := lines[0].Check.DecisionID; got != c.id {
			t.Errorf("%s: id %q, want %q", c.fields, got, c.id)
		}
	}
}

// A line whose meaning is in doubt ends the run, with file, line number and what is wrong, for good.
func TestReaderRefusesALineInDoubt(t *testing.T) {
	const good = `{"at":"2026-09-22T12:00:00Z","policy":{}}` + "\n"
	for _, c := range []struct{ line, want string }{
		{`nonsense`, "not JSON"},
		{`{"at":"2026-09-22T12:00:00Z"`, "not JSON"},
		{`{"at":}`, "not JSON"},
		{`[1]`, "not a JSON object"},
		{`{"at":"2026-09-22T12:00:00Z","policy":{}} {}`, "follows"},
		{`{"principal":"p"}`, `no "at"`},
		{`{"at":5,"principal":"p"}`, `"at" is not a string`},
		{`{"at":"yesterday"}`, "yesterday"},
		{`{"at":"2026-09-22T12:00:00"}`, "write it like"},
		{`{"at":"2026-09-22T12:00:00,5Z"}`, "write it like"},
		{`{"at":"2026-09-22T12:00:00.0000000001Z"}`, "write it like"},
		{`{"at":"2026-09-22T12:00:00+24:00"}`, "write it like"},
		{`{"at":"2026-02-30T12:00:00Z"}`, "write it like"},
		{`{"at":"1969-12-31T23:59:59Z"}`, "years"},
		{`{"at":"1970-01-01T00:00:00+01:00"}`, "years"},
		{`{"at":"2201-01-01T00:00:00Z"}`, "years"},
		{`{"at":"2026-09-22T12:00:00Z","Principal":"p"}`, `unknown key "Principal"`},
		{`{"at":"2026-09-22T12:00:00Z","also":[]}`, `unknown key "also"`},
		{`{"at":"2026-09-22T12:00:00Z","at":"2026-09-22T12:00:00Z"}`, "twice"},
		{`{"at":"2026-09-22T12:00:00Z","policy":{},"cost":1}`, "both"},
		{`{"at":"2026-09-22T12:00:00Z","policy":"p"}`, "not an object"},
		{strings.Repeat(" ", MaxLineBytes) + "{}", "longer"},
	} {
		r := NewReader("t.jsonl", strings.NewReader(good+c.line+"\n"+good))
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
		_, err := r.Next()
		if err == nil || !strings.HasPrefix(err.Error(), "t.jsonl:2: ") ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: error %v, want t.jsonl:2 and %q", c.line, err, c.want)
		}
		if _, again := r.Next(); !errors.Is(again, err) {
			t.Errorf("%.60s: the reader went on: %v", c.line, again)
		}
	}
}

// Whatever the bytes, the reader does not panic, and what it lets through obeys the rules of a check.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"at":"2026-09-22T12:00:00Z","principal":"p","api_class":"c","decision_id":"d","cost":2}`))
	f.Add([]byte(`{"at":"2026-09-22T12:00:00.5+02:00","policy":{"version":"v"}}` + "\n\n{}"))
	f.Add([]byte(`{"at":"2026-09-22T12:00:00Z","principal":"\ud83d\ude00\ud800","decision_id":"\\u0000"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader("t.jsonl", strings.NewReader(string(b)))
		number := 0
		for {
			line, err := r.Next()
			if err != nil {
				if line != nil {
					t.Fatal("a line beside an error")
				}
				return
			}
			if line.Number <= number {
				t.Fatalf("line %d after %d", line.Number, number)
			}
			number = line.Number
			if line.At < 0 || line.At > 7_289_654_399_999_999_999 {
				t.Fatalf("at %d", line.At)
			}
			if (line.Check == nil) == (line.Policy == nil) {
				t.Fatal("not exactly one of check and policy")
			}
			if line.Check != nil && line.Malformed == nil {
				if err := fsm.ValidateCheck(line.Check); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
