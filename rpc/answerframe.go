package rpc

import (
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// answerFrame is a frame of answers while it is put together: a CheckStreamResponse. Such a message in two parts reads
// as one, so it is made of answers that are encoded one by one.
type answerFrame struct {
	message encoded
	answers int
	granted int // of them, of checks that were granted
}

// appendAnswer encodes an answer.
func appendAnswer(to []byte, a *quoratev1.StreamedAnswer) []byte {
	message, err := proto.MarshalOptions{}.MarshalAppend(to,
		&quoratev1.CheckStreamResponse{Answers: []*quoratev1.StreamedAnswer{a}})
	if err != nil {
		message, _ = proto.MarshalOptions{}.MarshalAppend(to,
			&quoratev1.CheckStreamResponse{Answers: []*quoratev1.StreamedAnswer{
				refusalTo(a.GetSequence(), quotaerr.Wrap(quotaerr.Internal, err, ""), "")}}) // of valid strings alone
	}
	return message
}

func refusalTo(sequence uint64, err error, leader string) *quoratev1.StreamedAnswer {
	return &quoratev1.StreamedAnswer{
		Sequence: sequence, Answer: &quoratev1.StreamedAnswer_Refusal{Refusal: errtable.ToRefusal(err)}, Leader: leader,
	}
}

func decisionTo(sequence uint64, d *quoratev1.Decision, leader string) *quoratev1.StreamedAnswer {
	return &quoratev1.StreamedAnswer{
		Sequence: sequence, Answer: &quoratev1.StreamedAnswer_Decision{Decision: d}, Leader: leader,
	}
}

// appendDecided encodes what an owner of this node has decided about the check named id: an allow or a denial. It is
// appendAnswer of decisionOf without the messages in between.
func appendDecided(to []byte, sequence uint64, a *Answer, id string, wall time.Time) []byte {
	start := len(to)
	to, answer := openMessage(to, 1)
	to = appendNumber(to, 1, sequence)
	to, decision := openMessage(to, 2)
	outcome := quoratev1.Outcome_OUTCOME_DENIED
	if a.Reason == fsm.ReasonAllowed {
		outcome = quoratev1.Outcome_OUTCOME_ALLOWED
	}
	exhausted := a.Reason == fsm.ReasonQuotaExhausted
	to = appendNumber(to, 1, uint64(outcome))
	to = appendText(to, 2, string(publicReason(a.Reason)))
	if exhausted {
		to = appendText(to, 3, a.Limit)
	}
	to = appendCount(to, 4, a.Remaining)
	if exhausted {
		wait := max(0, a.RetryAfterNanos)
		to = appendTimestamp(to, 5, wall.Add(time.Duration(wait)))
		to = appendCount(to, 6, ceilDiv(wait, int64(time.Millisecond)))
	}
	to = appendText(to, 7, a.Version)
	to = appendNumber(to, 8, uint64(a.Revision))
	to = appendText(to, 9, id)
	to = appendNumber(to, 10, protowire.EncodeBool(a.Replayed))
	to = appendNumber(to, 11, protowire.EncodeBool(a.Recorded))
	sound := utf8.ValidString(a.Version) && utf8.ValidString(id) && (!exhausted || utf8.ValidString(a.Limit))
	for i := range a.Limits {
		sound = sound && utf8.ValidString(a.Limits[i].Name)
		to = appendLimit(to, 12, &a.Limits[i], resetMillis(a.ResetAfterNanos, i))
	}
	to = closeMessage(to, decision)
	to = closeMessage(to, answer)
	if !sound {
		d, _ := decisionOf(a, id, wall) // it is a decision
		return appendAnswer(to[:start], decisionTo(sequence, d, ""))
	}
	return to
}

// appendLimit encodes a field that is a LimitState.
func appendLimit(to []byte, num protowire.Number, l *fsm.LimitState, resetMillis int64) []byte {
	to, limit := openMessage(to, num)
	to = appendText(to, 1, l.Name)
	to = appendNumber(to, 2, uint64(l.Max))
	to, window := openMessage(to, 3)
	to = appendSpan(to, l.WindowNanos/int64(time.Second), l.WindowNanos%int64(time.Second))
	to = closeMessage(to, window)
	to = appendCount(to, 4, l.Remaining)
	to = appendCount(to, 5, resetMillis)
	return closeMessage(to, limit)
}

// appendTimestamp encodes a field that is a Timestamp.
func appendTimestamp(to []byte, num protowire.Number, t time.Time) []byte {
	to, at := openMessage(to, num)
	to = appendSpan(to, t.Unix(), int64(t.Nanosecond()))
	return closeMessage(to, at)
}

// appendSpan encodes the fields of a Duration or a Timestamp.
func appendSpan(to []byte, seconds, nanos int64) []byte {
	to = appendNumber(to, 1, uint64(seconds))
	return appendNumber(to, 2, uint64(nanos))
}

// appendCount encodes a field that is a number, at least 0.
func appendCount(to []byte, num protowire.Number, n int64) []byte {
	return appendNumber(to, num, uint64(max(0, n)))
}

// appendNumber encodes a field that is a number. 0 is left out.
func appendNumber(to []byte, num protowire.Number, n uint64) []byte {
	if n == 0 {
		return to
	}
	to = appendTag(to, num, protowire.VarintType)
	for n >= 1<<7 {
		to = append(to, byte(n)|1<<7)
		n >>= 7
	}
	return append(to, byte(n))
}

// appendText encodes a field that is a string. An empty one is left out.
func appendText(to []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return to
	}
	return protowire.AppendString(appendTag(to, num, protowire.BytesType), s)
}

// appendTag encodes the number and type of a field, of which all have numbers below 16 here, and so take one byte.
func appendTag(to []byte, num protowire.Number, typ protowire.Type) []byte {
	return append(to, byte(num)<<3|byte(typ))
}

// openMessage begins a field that is a message, whose fields are appended next, up to closeMessage of from.
func openMessage(to []byte, num protowire.Number) (_ []byte, from int) {
	to = append(appendTag(to, num, protowire.BytesType), 0) // the length, mostly of one byte
	return to, len(to)
}

func closeMessage(to []byte, from int) []byte {
	numBytes := len(to) - from
	more := protowire.SizeVarint(uint64(numBytes)) - 1
	for range more {
		to = append(to, 0)
	}
	copy(to[from+more:], to[from:from+numBytes])
	protowire.AppendVarint(to[:from-1], uint64(numBytes))
	return to
}
