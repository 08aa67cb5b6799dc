package errtable

import (
	"errors"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that an error says on a stream what it says as a status: reason, message, epoch, leader and wait, rounded up,
// and never its cause; and that it comes back so.
func TestRefusalRoundTrip(t *testing.T) {
	for _, row := range Rows() {
		if row.Reason.IsDecision() {
			continue
		}
		in := &quotaerr.Error{Reason: row.Reason, Message: "do this", Leader: "n2", LeaderAddr: "127.0.0.1:1",
			Epoch: 1<<63 + 7, RetryAfterNanos: int64(3*time.Second) + 1, Cause: errors.New("secret")}
		want := *in
		want.Cause, want.Message, want.RetryAfterNanos = nil, PublicMessage(in), int64(3001*time.Millisecond)
		if out := FromRefusal(ToRefusal(in)); *out != want {
			t.Errorf("%s: got %+v, want %+v", row.Reason, *out, want)
		}
		if ms := ToRefusal(&quotaerr.Error{Reason: row.Reason}).GetRetryAfterMs(); ms != row.Wait.Milliseconds() {
			t.Errorf("%s: told to wait %d ms, the row says %s", row.Reason, ms, row.Wait)
		}
	}
}

// Shows that no refusal reads as a decision, whatever a node sends, that its numbers cannot overflow, and that one can
// always be sent.
func TestRefusalsThatAreNone(t *testing.T) {
	for _, r := range []*quoratev1.Refusal{nil, {}, {Reason: "bogus"}, {Reason: "allowed"}, {Reason: "quota_exhausted"}} {
		if got := FromRefusal(r).Reason; got != quotaerr.Internal {
			t.Errorf("%v reads as %s", r, got)
		}
	}
	for ms, want := range map[int64]int64{math.MaxInt64: math.MaxInt64 / 1_000_000 * 1_000_000, math.MinInt64: 0, -1: 0, 7: 7e6} {
		if got := FromRefusal(&quoratev1.Refusal{Reason: "frozen", RetryAfterMs: ms}).RetryAfterNanos; got != want {
			t.Errorf("%d ms reads as %d ns, want %d", ms, got, want)
		}
	}
	if ToRefusal(nil) != nil {
		t.Error("no error is a refusal")
	}
	if r := ToRefusal(&quotaerr.Error{Reason: quotaerr.Allowed}); r.GetReason() != "internal" {
		t.Errorf("an error that says allowed is sent as %v", r)
	}
	bad := &quotaerr.Error{Reason: quotaerr.NotLeader, Message: "\xff", Leader: "\xff", LeaderAddr: "\xff"}
	if _, err := proto.Marshal(ToRefusal(bad)); err != nil {
		t.Error(err)
	}
}
