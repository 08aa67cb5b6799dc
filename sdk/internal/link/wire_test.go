package link

import (
	"bytes"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Shows that a check, and one in a frame, is encoded byte for byte as proto.Marshal encodes the message, and is never
// longer than it is counted.
func TestCheckIsEncodedAsItsMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.Just(""), rapid.String(), rapid.StringN(120, 300, -1))
		charge := rapid.Custom(func(t *rapid.T) Charge {
			return Charge{Class: text.Draw(t, "class"), Tier: text.Draw(t, "tier"), Cost: rapid.Int64().Draw(t, "cost")}
		})
		c := Check{
			Principal: text.Draw(t, "principal"), Class: text.Draw(t, "class"), ID: text.Draw(t, "id"),
			Tier: text.Draw(t, "tier"), Cost: rapid.Int64().Draw(t, "cost"), Epoch: rapid.Uint64().Draw(t, "epoch"),
			Attempt: rapid.Uint32().Draw(t, "attempt"), Also: rapid.SliceOfN(charge, 0, 7).Draw(t, "also"),
		}
		m := &quoratev1.CheckRequest{
			Principal: c.Principal, ApiClass: c.Class, DecisionId: c.ID, Tier: c.Tier, Cost: &c.Cost, RouteEpoch: c.Epoch,
			Attempt: c.Attempt,
		}
		for _, a := range c.Also {
			m.Also = append(m.Also, &quoratev1.Charge{ApiClass: a.Class, Tier: a.Tier, Cost: &a.Cost})
		}
		body := c.append(nil)
		if want := mustMarshal(t, m); !bytes.Equal(body, want) {
			t.Fatalf("%v is encoded as\n%x, and not\n%x", m, body, want)
		}
		streamed := &quoratev1.StreamedCheck{
			Sequence: rapid.Uint64Min(1).Draw(t, "sequence"), Check: m, TimeoutMicros: rapid.Int64Min(1).Draw(t, "timeout"),
		}
		got := appendStreamed(nil, streamed.GetSequence(), body, streamed.GetTimeoutMicros())
		want := mustMarshal(t, &quoratev1.CheckStreamRequest{Checks: []*quoratev1.StreamedCheck{streamed}})
		if !bytes.Equal(got, want) || len(got) > len(body)+envelopeBytes {
			t.Fatalf("in a frame it is encoded as\n%x, and not\n%x", got, want)
		}
	})
}

func mustMarshal(t interface{ Fatal(...any) }, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// frameOf is a frame of answers of every kind.
func frameOf() *quoratev1.CheckStreamResponse {
	return &quoratev1.CheckStreamResponse{Answers: []*quoratev1.StreamedAnswer{
		{Sequence: 1, Leader: "n2", Answer: &quoratev1.StreamedAnswer_Decision{Decision: &quoratev1.Decision{
			Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "allowed", Remaining: 7, PolicyVersion: "p7",
			PolicyRevision: 1 << 60, DecisionId: "x-1", Recorded: true, Limits: []*quoratev1.LimitState{
				{Name: "per-minute", Limit: 3, Window: durationpb.New(time.Minute), Remaining: 2, ResetMs: 59_000},
				{Name: "per-day", Limit: 500, Window: &durationpb.Duration{Seconds: math.MaxInt64, Nanos: -5}},
			},
		}}},
		{Sequence: 300, Answer: &quoratev1.StreamedAnswer_Decision{Decision: &quoratev1.Decision{
			Outcome: quoratev1.Outcome_OUTCOME_DENIED, Reason: "quota_exhausted", Limit: "per-minute", Replayed: true,
			RetryAt: timestamppb.New(time.Unix(1, 5)), RetryAfterMs: 1500, DecisionId: "x-2",
		}}},
		{Sequence: 1 << 40, Answer: &quoratev1.StreamedAnswer_Refusal{Refusal: &quoratev1.Refusal{
			Reason: "not_leader", Message: "ask n2", Epoch: 9, Leader: "n2", LeaderAddr: "127.0.0.1:1", RetryAfterMs: 3,
		}}},
		{Sequence: 4}, {},
	}}
}

// Shows that a frame of answers is decoded, or refused, as proto.Unmarshal does it, whatever its bytes: with fields that
// are not known or come twice, and strings that are none; also with what is left of an earlier frame.
func FuzzAnswers(f *testing.F) {
	whole := mustMarshal(f, frameOf())
	one := whole[:bytes.Index(whole, []byte("x-1"))+5]
	for _, b := range [][]byte{
		{}, whole, one, append(bytes.Clone(whole), whole...), {0x0a, 0}, {0x0a, 3, 8, 0x80, 1},
		{0x0b, 0x0c}, {0x13, 0x14}, {0x0b, 0x0a, 0, 0x0c}, {0, 0}, {8, 1}, {0x0c}, {0x0e}, // groups, and types that are none
		[]byte("\x0a\x06\x22\x01a\x22\x01b"), []byte("\x0a\x03\x22\x01\xff"), // twice, and not UTF-8
		[]byte("\x0a\x07\x12\x02\x08\x01\x1a\x01\x20\x0a\x07\x1a\x02\x18\x01\x12\x01\x08"),
		[]byte("\x0a\x0a\x12\x02\x08\x01\x12\x00\x12\x02\x20\x05"), // two decisions in one answer are one
		[]byte("\x0a\x0a\x12\x02\x08\x01\x1a\x00\x12\x02\x20\x05"), // and a refusal between them ends the first
		[]byte("\x0a\x0a\x1a\x02\x18\x01\x1a\x00\x1a\x02\x30\x05"),
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &quoratev1.CheckStreamResponse{}
		want := proto.Unmarshal(b, m)
		d := &decoder{}
		if _, err := d.decode(whole); err != nil {
			t.Fatal(err)
		}
		got, err := d.decode(b)
		if (err != nil) != (want != nil) {
			t.Fatalf("it is decoded with %v, and not %v", err, want)
		}
		if err != nil {
			return
		}
		if len(got) != len(m.GetAnswers()) {
			t.Fatalf("%d answers, and not %d", len(got), len(m.GetAnswers()))
		}
		for i := range got {
			sameAnswer(t, &got[i], m.GetAnswers()[i])
		}
	})
}

// sameAnswer compares an answer with its message.
func sameAnswer(t *testing.T, a *answer, m *quoratev1.StreamedAnswer) {
	t.Helper()
	p := m.GetDecision()
	if a.sequence != m.GetSequence() || a.leader != m.GetLeader() || a.decided != (p != nil) ||
		(a.refusal != nil) != (m.GetRefusal() != nil) {
		t.Fatalf("%+v, and not %v", a, m)
	}
	if diff := cmp.Diff(m.GetRefusal(), a.refusal, protocmp.Transform()); diff != "" {
		t.Fatal(diff)
	}
	if p == nil {
		return
	}
	want := Decision{
		Outcome: p.GetOutcome(), Reason: p.GetReason(), Limit: p.GetLimit(), Remaining: p.GetRemaining(),
		Dated: p.GetRetryAt() != nil, RetryAfterMillis: p.GetRetryAfterMs(), PolicyVersion: p.GetPolicyVersion(),
		PolicyRevision: p.GetPolicyRevision(), Ours: p.GetDecisionId() == "x-1", Replayed: p.GetReplayed(), Recorded: p.GetRecorded(),
	}
	for _, l := range p.GetLimits() {
		want.Limits = append(want.Limits, Limit{
			Name: l.GetName(), Limit: l.GetLimit(), Window: l.GetWindow().AsDuration(), Remaining: l.GetRemaining(),
			ResetMillis: l.GetResetMs(),
		})
	}
	c := NewCall()
	c.Check.ID = "x-1"
	c.answer(a, 1)
	got := c.Result.Decision
	if len(got.Limits) == 0 {
		got.Limits = nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

// Shows that names are strings of their own, also those that fall into the same place and such as are too long to be
// kept.
func TestNames(t *testing.T) {
	var n names
	b := make([]byte, 2*maxNameBytes)
	for i := range 10_000 {
		size := i % len(b)
		for j := range b[:size] {
			b[j] = 'a' + byte((i+j)%26)
		}
		if s, ok := n.of(b[:size]); !ok || s != string(b[:size]) {
			t.Fatalf("%q became %q", b[:size], s)
		}
	}
}

// Shows that a frame whose strings are known is decoded without an allocation.
func TestDecodeAllocates(t *testing.T) {
	m := frameOf()
	m.Answers = m.Answers[:2]
	b, d := mustMarshal(t, m), &decoder{}
	if n := testing.AllocsPerRun(100, func() { _, _ = d.decode(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkDecode is the decoding of a frame of 256 answers, each an allow with one limit.
func BenchmarkDecode(b *testing.B) {
	m := &quoratev1.CheckStreamResponse{}
	for i := range 256 {
		m.Answers = append(m.Answers, &quoratev1.StreamedAnswer{Sequence: uint64(1e6 + i),
			Answer: &quoratev1.StreamedAnswer_Decision{Decision: &quoratev1.Decision{
				Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "allowed", Remaining: 7, PolicyVersion: "p7", Recorded: true,
				PolicyRevision: 3, DecisionId: "AAAAAAAAAAAAAAAAAAAAAA-12345", Limits: []*quoratev1.LimitState{
					{Name: "per-minute", Limit: 3, Window: durationpb.New(time.Minute), Remaining: 2, ResetMs: 59_000},
				},
			}}})
	}
	whole, d := mustMarshal(b, m), &decoder{}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		answers, err := d.decode(whole)
		if err != nil {
			b.Fatal(err)
		}
		n += len(answers)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/answer")
}

// BenchmarkEncode is the encoding of a check, and its place in a frame.
func BenchmarkEncode(b *testing.B) {
	c := Check{Principal: "acme", Class: "convert", ID: "AAAAAAAAAAAAAAAAAAAAAA-12345", Cost: 1, Epoch: 1 << 33, Attempt: 1}
	var body, frame []byte
	b.ReportAllocs()
	for b.Loop() {
		body = c.append(body[:0])
		frame = appendStreamed(frame[:0], 1_000_000, body, 100_000)
	}
}
