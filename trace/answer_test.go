package trace

import (
	"bytes"
	"errors"
	"testing"

	"github.com/quorate/quorate/fsm"
)

// Each outcome is rendered with exactly the documented keys; a wait is rounded up to a millisecond and
// is never negative.
func TestAnswersHaveTheDocumentedKeys(t *testing.T) {
	const at = fsm.Time(1_790_078_400_000_000_000) // 2026-09-22T12:00:00Z
	for _, c := range []struct {
		d    fsm.Decision
		want string
	}{
		{
			fsm.Decision{Reason: fsm.ReasonAllowed, Version: "v", AsOf: at},
			`{"decision_id":"<d>","policy_version":"v","replayed":false,"allowed":true,` +
				`"reason":"allowed","remaining":0}`,
		},
		{
			fsm.Decision{Reason: fsm.ReasonQuotaExhausted, Version: "v", Limit: "m", Remaining: 2,
				AsOf: at, RetryAt: at + 500_000_001, Replayed: true},
			`{"decision_id":"<d>","policy_version":"v","replayed":true,"allowed":false,` +
				`"reason":"quota_exhausted","limit":"m","remaining":2,` +
				`"retry_at":"2026-09-22T12:00:00.500000001Z","retry_after_ms":501}`,
		},
		{
			fsm.Decision{Reason: fsm.ReasonQuotaExhausted, Version: "v", Limit: "m",
				AsOf: at + 1, RetryAt: at, Replayed: true},
			`{"decision_id":"<d>","policy_version":"v","replayed":true,"allowed":false,` +
				`"reason":"quota_exhausted","limit":"m","remaining":0,` +
				`"retry_at":"2026-09-22T12:00:00Z","retry_after_ms":0}`,
		},
		{
			fsm.Decision{Reason: fsm.ReasonBlocked, Version: "v"},
			`{"decision_id":"<d>","policy_version":"v","replayed":false,"allowed":false,` +
				`"reason":"blocked"}`,
		},
		{
			fsm.Decision{Reason: fsm.ReasonEndpointDisabled, Version: "v"},
			`{"decision_id":"<d>","policy_version":"v","replayed":false,"allowed":false,` +
				`"reason":"endpoint_disabled"}`,
		},
		{
			fsm.Decision{Reason: fsm.ReasonPolicyStale, Version: "v", Remaining: 3},
			`{"decision_id":"<d>","error":"policy_stale"}`,
		},
		{
			fsm.Decision{Reason: fsm.ReasonCapacity},
			`{"decision_id":"<d>","error":"capacity"}`,
		},
	} {
		if got := mustWrite(t, NewAnswer("<d>", &c.d)); got != c.want+"\n" {
			t.Errorf("%v:\ngot  %swant %s", c.d.Reason, got, c.want)
		}
	}
	want := `{"decision_id":"<d>","error":"invalid_argument"}` + "\n"
	if got := mustWrite(t, MalformedAnswer("<d>")); got != want {
		t.Errorf("malformed: got %s", got)
	}
}

func mustWrite(t *testing.T, a Answer) string {
	t.Helper()
	var b bytes.Buffer
	if err := NewWriter(&b).Write(a); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var errFull = errors.New("disk full")

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

// An answer that cannot be written is reported.
func TestWriterReportsAFullDisk(t *testing.T) {
	if err := NewWriter(fullDisk{}).Write(MalformedAnswer("d")); !errors.Is(err, errFull) {
		t.Fatalf("got %v, want %v", err, errFull)
	}
}
