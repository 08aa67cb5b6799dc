package link

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/sdk/internal/bound"
)

// errMalformed is what comes of a frame of answers that proto.Unmarshal would refuse.
var errMalformed = errors.New("the node's answers are not in the wire format")

// answer is quoratev1.StreamedAnswer as it came in.
type answer struct {
	sequence uint64
	// decided: there is a decision, with its id in the frame's bytes. refusal is why not; with neither the answer is of a
	// kind that is not known here.
	decided  bool
	decision Decision
	id       []byte
	refusal  *quoratev1.Refusal
	leader   string
}

// decoder decodes frames of answers, one after another. What it decodes is valid until the next one.
type decoder struct {
	answers []answer
	names   names
}

const (
	// maxKeptAnswers and maxKeptLimits bound the answers of a frame, and the limits of an answer, for which memory is kept
	// from frame to frame.
	maxKeptAnswers = 4 * bound.FrameChecks
	maxKeptLimits  = 32
)

// A field of a message as a switch has it: its number, and the type of what is on the wire. A known number with
// another type is a field that is not known.
const (
	asNumber = uint64(protowire.VarintType)
	asBytes  = uint64(protowire.BytesType)
)

// decode decodes a frame as proto.Unmarshal does: fields that are not known are passed over, of a field that is there
// twice the last counts, and messages that are there twice are merged.
func (d *decoder) decode(b []byte) ([]answer, error) {
	if cap(d.answers) > maxKeptAnswers {
		d.answers = nil
	}
	d.answers = d.answers[:0]
	var f field
	for len(b) > 0 {
		if b = f.next(b); b == nil {
			return nil, errMalformed
		}
		if f.is == 1<<3|asBytes && !d.answer(f.bytes) {
			return nil, errMalformed
		}
	}
	return d.answers, nil
}

// another is a new answer, in the memory of an old one if there is any.
func (d *decoder) another() *answer {
	n := len(d.answers)
	if n == cap(d.answers) {
		d.answers = append(d.answers, answer{})
		return &d.answers[n]
	}
	d.answers = d.answers[:n+1]
	a := &d.answers[n]
	limits := a.decision.Limits[:0]
	if cap(limits) > maxKeptLimits {
		limits = nil
	}
	*a = answer{decision: Decision{Limits: limits}}
	return a
}

func (d *decoder) answer(b []byte) bool {
	a, ok := d.another(), true
	var f field
	for len(b) > 0 && ok {
		if b = f.next(b); b == nil {
			return false
		}
		switch f.is {
		case 1<<3 | asNumber:
			a.sequence = f.number
		case 2<<3 | asBytes:
			if !a.decided {
				a.decided, a.refusal = true, nil
				a.id, a.decision = nil, Decision{Limits: a.decision.Limits[:0]}
			}
			ok = d.decision(a, f.bytes)
		case 3<<3 | asBytes:
			if a.refusal == nil {
				a.decided, a.refusal = false, &quoratev1.Refusal{}
			}
			ok = proto.UnmarshalOptions{Merge: true}.Unmarshal(f.bytes, a.refusal) == nil
		case 4<<3 | asBytes:
			a.leader, ok = d.names.of(f.bytes)
		}
	}
	return ok
}

func (d *decoder) decision(a *answer, b []byte) bool {
	p, ok := &a.decision, true
	var f field
	for len(b) > 0 && ok {
		if b = f.next(b); b == nil {
			return false
		}
		switch f.is {
		case 1<<3 | asNumber:
			p.Outcome = quoratev1.Outcome(f.number)
		case 2<<3 | asBytes:
			p.Reason, ok = d.names.of(f.bytes)
		case 3<<3 | asBytes:
			p.Limit, ok = d.names.of(f.bytes)
		case 4<<3 | asNumber:
			p.Remaining = int64(f.number)
		case 5<<3 | asBytes:
			var at span // only that it is there counts
			p.Dated, ok = true, at.take(f.bytes)
		case 6<<3 | asNumber:
			p.RetryAfterMillis = int64(f.number)
		case 7<<3 | asBytes:
			p.PolicyVersion, ok = d.names.of(f.bytes)
		case 8<<3 | asNumber:
			p.PolicyRevision = f.number
		case 9<<3 | asBytes:
			a.id, ok = f.bytes, utf8.Valid(f.bytes)
		case 10<<3 | asNumber:
			p.Replayed = f.number != 0
		case 11<<3 | asNumber:
			p.Recorded = f.number != 0
		case 12<<3 | asBytes:
			ok = d.limit(p, f.bytes)
		}
	}
	return ok
}

// limit adds a limit to a decision.
func (d *decoder) limit(p *Decision, b []byte) bool {
	var l Limit
	var window span
	var f field
	ok := true
	for len(b) > 0 && ok {
		if b = f.next(b); b == nil {
			return false
		}
		switch f.is {
		case 1<<3 | asBytes:
			l.Name, ok = d.names.of(f.bytes)
		case 2<<3 | asNumber:
			l.Limit = int64(f.number)
		case 3<<3 | asBytes:
			ok = window.take(f.bytes)
		case 4<<3 | asNumber:
			l.Remaining = int64(f.number)
		case 5<<3 | asNumber:
			l.ResetMillis = int64(f.number)
		}
	}
	l.Window = (&durationpb.Duration{Seconds: window.seconds, Nanos: window.nanos}).AsDuration()
	p.Limits = append(p.Limits, l)
	return ok
}

// span is what google.protobuf's Duration and Timestamp have in common.
type span struct {
	seconds int64
	nanos   int32
}

func (s *span) take(b []byte) bool {
	var f field
	for len(b) > 0 {
		if b = f.next(b); b == nil {
			return false
		}
		switch f.is {
		case 1<<3 | asNumber:
			s.seconds = int64(f.number)
		case 2<<3 | asNumber:
			s.nanos = int32(f.number)
		}
	}
	return true
}

// field is one field of a message as it is on the wire.
type field struct {
	is     uint64 // its number, times eight, and its type
	number uint64 // what it holds, asNumber
	bytes  []byte // or asBytes
}

// next reads the first field of b, which is not empty, and returns what is after it; nil when b is malformed.
func (f *field) next(b []byte) []byte {
	tag, b := number(b)
	id := tag >> 3
	if b == nil || id < uint64(protowire.MinValidNumber) || id > uint64(protowire.MaxValidNumber) {
		return nil
	}
	f.is = tag
	switch kind := protowire.Type(tag & 7); kind {
	case protowire.VarintType:
		f.number, b = number(b)
		return b
	case protowire.BytesType:
		length, b := number(b)
		if length > uint64(len(b)) {
			return nil
		}
		f.bytes, b = b[:length:length], b[length:]
		return b
	default:
		n := protowire.ConsumeFieldValue(protowire.Number(id), kind, b)
		if n < 0 {
			return nil
		}
		return b[n:]
	}
}

// number reads a varint, most of which have one byte or two, and returns what is after it; nil when there is none.
func number(b []byte) (uint64, []byte) {
	if len(b) > 0 && b[0] < 1<<7 {
		return uint64(b[0]), b[1:]
	}
	if len(b) > 1 && b[1] < 1<<7 {
		return uint64(b[0]&(1<<7-1)) | uint64(b[1])<<7, b[2:]
	}
	v, n := protowire.ConsumeVarint(b)
	if n < 0 {
		return 0, nil
	}
	return v, b[n:]
}

// names keeps strings that recur, as those of limits and policies do, so that they are not made anew each time. It is
// bounded: of strings that fall into the same place the last one is kept. The zero names has none.
type names struct{ kept [1 << 8]string }

// maxNameBytes is the longest string that is kept.
const maxNameBytes = 128

// of is b as a string; false if it is not UTF-8.
func (n *names) of(b []byte) (string, bool) {
	if len(b) == 0 {
		return "", true
	}
	if len(b) > maxNameBytes {
		return string(b), utf8.Valid(b)
	}
	kept := &n.kept[(31*len(b)+7*int(b[0])+3*int(b[len(b)/2])+int(b[len(b)-1]))%len(n.kept)]
	if *kept == string(b) {
		return *kept, true
	}
	if !utf8.Valid(b) {
		return "", false
	}
	*kept = string(b)
	return *kept, true
}
