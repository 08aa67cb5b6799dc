package errtable

import (
	"math"
	"strings"
	"time"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// ToRefusal is what ToStatus says of err, as the answer to one check of a stream has it; nil for nil. The cause stays
// behind.
func ToRefusal(err error) *quoratev1.Refusal {
	e := quotaerr.As(err)
	if e == nil {
		return nil
	}
	wait := Wait(e)
	millis := int64(wait / time.Millisecond)
	if wait%time.Millisecond > 0 {
		millis++
	}
	return &quoratev1.Refusal{
		Reason: string(e.Reason), Message: PublicMessage(e), Epoch: e.Epoch,
		Leader: strings.ToValidUTF8(e.Leader, "?"), LeaderAddr: strings.ToValidUTF8(e.LeaderAddr, "?"),
		RetryAfterMs: millis,
	}
}

// FromRefusal turns a refusal back into a quotaerr.Error. A reason that is not known here, or that is a decision's,
// reads as internal, and so does nil: a check without any answer.
func FromRefusal(r *quoratev1.Refusal) *quotaerr.Error {
	reason := quotaerr.Reason(r.GetReason())
	if !reason.Known() || reason.IsDecision() {
		return quotaerr.New(quotaerr.Internal, "the node's answer to the check has the reason %.63q, which is not known: "+
			"check that the versions agree", r.GetReason())
	}
	millis := min(max(0, r.GetRetryAfterMs()), math.MaxInt64/int64(time.Millisecond))
	return &quotaerr.Error{
		Reason: reason, Message: r.GetMessage(), Epoch: r.GetEpoch(), Leader: r.GetLeader(),
		LeaderAddr: r.GetLeaderAddr(), RetryAfterNanos: millis * int64(time.Millisecond),
	}
}
