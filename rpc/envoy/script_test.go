package envoy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/policy"
	"github.com/quorate/quorate/quotaerr"
)

// Shows, word for word, what requests are answered with and what is asked for them: matching, hits, request ids, groups
// of one principal, the order of others, replaced and unlimited rules, failures by class, and what is counted.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		var s *script
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if s == nil && d.Cmd != "policy" {
				d.Fatalf(t, "a script begins with a policy")
			}
			switch d.Cmd {
			case "policy":
				p, err := policy.Parse("policy", []byte(d.Input))
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				s = &script{desk: newDesk(p), registry: prometheus.NewRegistry()}
				s.service = New(s.desk, s.registry)
				return ""
			case "fail":
				s.fail(t, d)
				return ""
			case "request":
				return s.request(t, d)
			case "counts":
				return s.counts(t)
			}
			d.Fatalf(t, "unknown command %s", d.Cmd)
			return ""
		})
	})
}

type script struct {
	desk     *fakeDesk
	registry *prometheus.Registry
	service  *Service
}

// fail has checks and peeks of a class answered by an error; by decisions again without a reason.
func (s *script) fail(t *testing.T, d *datadriven.TestData) {
	t.Helper()
	class, reason := "", ""
	d.ScanArgs(t, "class", &class)
	d.MaybeScanArgs(t, "reason", &reason)
	delete(s.desk.failing, class)
	if reason != "" {
		s.desk.failing[class] = quotaerr.New(quotaerr.Reason(reason), "told to")
	}
}

// randomID is an id that the service has made up.
var randomID = regexp.MustCompile(`^[A-Z2-7]{26}/`)

// request answers one, as JSON, after what was asked for it.
func (s *script) request(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	req := &ratelimitv3.RateLimitRequest{}
	if err := protojson.Unmarshal([]byte(d.Input), req); err != nil {
		d.Fatalf(t, "%v", err)
	}
	s.desk.asked, s.desk.ids = nil, nil
	out, err := s.service.ShouldRateLimit(t.Context(), req)
	var b strings.Builder
	ids := s.desk.ids
	for _, line := range s.desk.asked {
		if strings.HasPrefix(line, "check") {
			line += ", id " + randomID.ReplaceAllString(ids[0], "…/")
			ids = ids[1:]
		}
		b.WriteString(line + "\n")
	}
	if err != nil {
		st := errtable.ToStatus(t.Context(), err)
		fmt.Fprintf(&b, "%s %s: %s\n", st.Code(), reasonOf(t, err), st.Message())
		return b.String()
	}
	// protojson puts spaces where it likes.
	raw, err := protojson.Marshal(out)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	var fields struct {
		OverallCode          string
		Statuses             []json.RawMessage
		ResponseHeadersToAdd []struct{ Key, Value string }
		DynamicMetadata      map[string]any
	}
	if err := json.Unmarshal(raw, &fields); err != nil {
		d.Fatalf(t, "%v", err)
	}
	b.WriteString(fields.OverallCode + "\n")
	for _, one := range fields.Statuses {
		var line bytes.Buffer
		if err := json.Compact(&line, one); err != nil {
			d.Fatalf(t, "%v", err)
		}
		b.WriteString("  " + line.String() + "\n")
	}
	for _, key := range slices.Sorted(maps.Keys(fields.DynamicMetadata)) {
		fmt.Fprintf(&b, "  metadata %s: %v\n", key, fields.DynamicMetadata[key])
	}
	for _, h := range fields.ResponseHeadersToAdd {
		fmt.Fprintf(&b, "  %s: %s\n", h.Key, h.Value)
	}
	return b.String()
}

func (s *script) counts(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	all := counts(t, s.registry)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s: %v\n", name, all[name])
	}
	return b.String()
}
