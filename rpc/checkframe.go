package rpc

import (
	"errors"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// checkFrame is a frame of checks that came in: a CheckStreamRequest, read without a message for each check. What it
// takes and refuses, and what the fields are, is as the generated code has it.
type checkFrame struct {
	count int // of the checks that came: those beyond MaxFrameChecks are only counted
	// checks and asked have an entry for each check. The strings of both are parts of one copy of the frame.
	checks []framedCheck
	asked  []Asked // without gateways and deadlines
}

// framedCheck is one check of a frame.
type framedCheck struct {
	sequence      uint64
	timeoutMicros int64
	message       string // the StreamedCheck as it came
	missing       bool   // it has no check
	attempt       uint32
	horizon       time.Duration
}

// decode reads a frame.
func (f *checkFrame) decode(data mem.BufferSlice) error {
	whole := data.MaterializeToBuffer(framePool) // no copy where it is one piece already
	defer whole.Free()
	r := frameReader{data: whole.ReadOnlyData()}
	if !r.frame(f) {
		*f = checkFrame{}
		if err := proto.Unmarshal(r.data, &quoratev1.CheckStreamRequest{}); err != nil {
			return err // which says what is wrong
		}
		return errors.New("it cannot be read")
	}
	return nil
}

// request is a check as a message.
func (c *framedCheck) request() (*quoratev1.CheckRequest, error) {
	m := &quoratev1.StreamedCheck{}
	if err := proto.Unmarshal([]byte(c.message), m); err != nil {
		return nil, quotaerr.Wrap(quotaerr.Internal, err, "") // it was read as a part of its frame
	}
	return m.GetCheck(), nil
}

// timeout is how long the check may take.
func (c *framedCheck) timeout() (time.Duration, error) {
	switch micros := c.timeoutMicros; {
	case micros < 0:
		return 0, quotaerr.New(quotaerr.InvalidArgument,
			"timeout_micros is %d: send how long the check may take, or 0 for the most, %s", micros, DefaultTimeout)
	case micros == 0 || micros > DefaultTimeout.Microseconds():
		return DefaultTimeout, nil
	default:
		return time.Duration(micros) * time.Microsecond, nil
	}
}

// frameReader reads messages out of a frame. data and text are the same bytes; strings are parts of text.
type frameReader struct {
	data []byte
	text string
}

// span is a message's place in a frame, of which less and less is left to be read.
type span struct{ at, end int }

// wireField is one field of a message: a number, or text that is in a place.
type wireField struct {
	num    protowire.Number
	typ    protowire.Type
	number uint64
	text   span
}

func (f *wireField) isNumber(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.VarintType
}

func (f *wireField) isText(num protowire.Number) bool {
	return f.num == num && f.typ == protowire.BytesType
}

// next reads the next field of a message. What is neither a number nor text is of no field that is known here.
func (r *frameReader) next(s *span, f *wireField) bool {
	rest := r.data[s.at:s.end]
	n := 1
	if first := rest[0]; first < 1<<7 { // as those of all fields that are known here
		f.num, f.typ = protowire.Number(first>>3), protowire.Type(first&7)
	} else {
		f.num, f.typ, n = protowire.ConsumeTag(rest)
	}
	if n < 0 || f.num < protowire.MinValidNumber || f.num > protowire.MaxValidNumber {
		return false
	}
	rest, s.at = rest[n:], s.at+n
	switch f.typ {
	case protowire.VarintType:
		f.number, n = consumeNumber(rest)
	case protowire.BytesType:
		var numBytes uint64
		if numBytes, n = consumeNumber(rest); n < 0 || numBytes > uint64(len(rest)-n) {
			return false
		}
		from := s.at + n
		n += int(numBytes)
		f.text = span{from, s.at + n}
	default:
		n = protowire.ConsumeFieldValue(f.num, f.typ, rest)
	}
	s.at += n
	return n >= 0
}

// consumeNumber is protowire.ConsumeVarint, at once where it is one byte.
func consumeNumber(b []byte) (number uint64, n int) {
	if len(b) > 0 && b[0] < 1<<7 {
		return uint64(b[0]), 1
	}
	return protowire.ConsumeVarint(b)
}

// string reads the text of a field.
func (r *frameReader) string(f *wireField, to *string) bool {
	*to = r.text[f.text.at:f.text.end]
	return utf8.ValidString(*to)
}

// frame reads a CheckStreamRequest.
func (r *frameReader) frame(to *checkFrame) bool {
	all := span{0, len(r.data)}
	var f wireField
	for s := all; s.at < s.end; {
		if !r.next(&s, &f) {
			return false
		}
		if f.isText(1) {
			to.count++
		}
	}
	kept := min(to.count, MaxFrameChecks)
	r.text = string(r.data)
	to.checks, to.asked = make([]framedCheck, kept), make([]Asked, kept)
	var surplus framedCheck
	var unasked fsm.Check
	i := 0
	for s := all; s.at < s.end; {
		if !r.next(&s, &f) {
			return false
		}
		if !f.isText(1) {
			continue
		}
		c, asked := &surplus, &unasked
		if i < kept {
			c, asked = &to.checks[i], &to.asked[i].Check
		}
		if !r.streamed(f.text, c, asked) {
			return false
		}
		i++
	}
	return true
}

// streamed reads a StreamedCheck.
func (r *frameReader) streamed(s span, to *framedCheck, c *fsm.Check) bool {
	to.message, to.missing = r.text[s.at:s.end], true
	c.Cost = 1 // where none is named
	var f wireField
	for s.at < s.end {
		if !r.next(&s, &f) {
			return false
		}
		switch {
		case f.isNumber(1):
			to.sequence = f.number
		case f.isText(2): // a second one is read on top of the first
			to.missing = false
			if !r.check(f.text, c, &to.attempt) {
				return false
			}
		case f.isNumber(3):
			to.timeoutMicros = int64(f.number)
		}
	}
	return true
}

// check reads a CheckRequest.
func (r *frameReader) check(s span, to *fsm.Check, attempt *uint32) bool {
	var f wireField
	for s.at < s.end {
		if !r.next(&s, &f) {
			return false
		}
		ok := true
		switch {
		case f.isText(1):
			ok = r.string(&f, &to.Principal)
		case f.isText(2):
			ok = r.string(&f, &to.Class)
		case f.isText(3):
			ok = r.string(&f, &to.DecisionID)
		case f.isText(4):
			ok = r.string(&f, &to.Tier)
		case f.isNumber(5):
			to.Cost = int64(f.number)
		case f.isNumber(6):
			to.PolicyRevision = fsm.Revision(f.number)
		case f.isNumber(7):
			to.RouteEpoch = fsm.Epoch(f.number)
		case f.isNumber(8):
			*attempt = uint32(f.number)
		case f.isText(9):
			charge := fsm.Charge{Cost: 1}
			ok = r.charge(f.text, &charge)
			to.Also = append(to.Also, charge)
		}
		if !ok {
			return false
		}
	}
	return true
}

// charge reads a Charge.
func (r *frameReader) charge(s span, to *fsm.Charge) bool {
	var f wireField
	for s.at < s.end {
		if !r.next(&s, &f) {
			return false
		}
		ok := true
		switch {
		case f.isText(1):
			ok = r.string(&f, &to.Class)
		case f.isText(2):
			ok = r.string(&f, &to.Tier)
		case f.isNumber(3):
			to.Cost = int64(f.number)
		}
		if !ok {
			return false
		}
	}
	return true
}
