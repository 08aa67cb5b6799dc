package errtable

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/quotaerr"
)

// Shows that every public reason has exactly one row, with a code and a status that agree about
// whether it is an allow, and that the table has no row beyond them.
func TestTableIsComplete(t *testing.T) {
	seen := map[quotaerr.Reason]int{}
	for _, row := range Rows() {
		seen[row.Reason]++
		if (row.HTTP == 200) != (row.Reason == quotaerr.Allowed) {
			t.Errorf("%s: HTTP %d", row.Reason, row.HTTP)
		}
		if (row.Code == codes.OK) != row.Reason.IsDecision() {
			t.Errorf("%s: code %v", row.Reason, row.Code)
		}
		if row.Consumed == ConsumedYes && row.Reason != quotaerr.Allowed {
			t.Errorf("%s claims to have consumed", row.Reason)
		}
	}
	for _, r := range quotaerr.All() {
		if seen[r] != 1 {
			t.Errorf("%s has %d rows, want 1", r, seen[r])
		}
	}
	if len(seen) != len(quotaerr.All()) {
		t.Errorf("%d reasons in the table, %d declared", len(seen), len(quotaerr.All()))
	}
	if Lookup("bogus").Reason != quotaerr.Internal {
		t.Error("an unknown reason does not read as internal")
	}
}

// Shows that an error survives the way over gRPC with reason, message, epoch, leader and wait, and
// that its cause does not.
func TestStatusRoundTrip(t *testing.T) {
	for _, row := range Rows() {
		if row.Reason.IsDecision() {
			continue
		}
		in := &quotaerr.Error{Reason: row.Reason, Message: "do this", Leader: "n2",
			LeaderAddr: "127.0.0.1:1", Epoch: 1<<63 + 7, RetryAfterNanos: int64(3 * time.Second),
			Cause: errors.New("secret")}
		st := ToStatus(context.Background(), in)
		if st.Code() != row.Code {
			t.Errorf("%s: code %v, want %v", row.Reason, st.Code(), row.Code)
		}
		out := FromStatus(st.Err())
		want := *in
		want.Cause, want.Message = nil, PublicMessage(in)
		if *out != want {
			t.Errorf("%s: got %+v, want %+v", row.Reason, *out, want)
		}
	}
}

// Shows that what carries no readable reason never becomes a decision, and that a broken transport
// leaves the outcome unknown.
func TestBareStatus(t *testing.T) {
	for code, want := range map[codes.Code]quotaerr.Reason{
		codes.Unavailable: quotaerr.OutcomeUnknown, codes.DeadlineExceeded: quotaerr.OutcomeUnknown,
		codes.Canceled: quotaerr.OutcomeUnknown, codes.Internal: quotaerr.Internal,
		codes.Unknown: quotaerr.Internal, codes.DataLoss: quotaerr.Internal,
		codes.ResourceExhausted: quotaerr.Overloaded,
	} {
		if got := FromStatus(status.Error(code, "x")).Reason; got != want {
			t.Errorf("%v: %s, want %s", code, got, want)
		}
	}
	forged := ToStatus(context.Background(), &quotaerr.Error{Reason: quotaerr.Allowed})
	if got := FromStatus(forged.Err()).Reason; got != quotaerr.Internal {
		t.Errorf("an error that says allowed reads as %s", got)
	}
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancel()
	if c := ToStatus(ctx, quotaerr.ErrOutcomeUnknown).Code(); c != codes.DeadlineExceeded {
		t.Errorf("unknown outcome past the deadline has code %v", c)
	}
}
