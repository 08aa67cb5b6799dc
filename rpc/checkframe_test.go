package rpc

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// aFrame has checks with all fields that there are, at the ends of their ranges.
func aFrame() *quoratev1.CheckStreamRequest {
	least, most := int64(math.MinInt64), int64(1<<53)
	return frameOf(
		&quoratev1.StreamedCheck{},
		&quoratev1.StreamedCheck{Sequence: math.MaxUint64, TimeoutMicros: -1, Check: &quoratev1.CheckRequest{}},
		&quoratev1.StreamedCheck{Sequence: 3, TimeoutMicros: 1_000_000, Check: &quoratev1.CheckRequest{
			Principal: "acme", ApiClass: "convert", DecisionId: "d1", Tier: "gold", Cost: &most, PolicyRevision: 1 << 60,
			RouteEpoch: math.MaxUint64, Attempt: math.MaxUint32,
			Also: []*quoratev1.Charge{{ApiClass: "login"}, {ApiClass: "é", Tier: "t", Cost: &least}, {}},
		}},
		streamed(4),
	)
}

// oddFrames are frames as no sender of today makes them: fields twice, of other types, unknown, in groups, cut off.
func oddFrames(t testing.TB) [][]byte {
	t.Helper()
	whole, err := proto.Marshal(aFrame())
	if err != nil {
		t.Fatal(err)
	}
	one, err := proto.Marshal(streamed(4))
	if err != nil {
		t.Fatal(err)
	}
	within := func(b []byte) []byte { return protowire.AppendBytes([]byte{0x0a}, b) }
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	group := protowire.AppendGroup(protowire.AppendTag(nil, 77, protowire.StartGroupType), 77, one)
	deep := append(bytes.Repeat([]byte{0x0b}, 10_001), bytes.Repeat([]byte{0x0c}, 10_001)...)
	odd := [][]byte{
		nil, whole, whole[:len(whole)-1], join(whole, whole), within(one), within(join(one, one)),
		join(group, within(join(group, one, group))), group[:len(group)-1], deep, within(deep[2 : len(deep)-2]),
		within([]byte("\x08\x05\x12\x03\x0a\x01\xff")),             // no UTF-8
		within([]byte("\x12\x03\x0a\x01a\x12\x03\x12\x01b")),       // the check in two parts
		within([]byte("\x12\x08\x4a\x02\x18\x05\x4a\x02\x10\x05")), // charges with a field of another type
		within([]byte("\x0a\x01a\x10\x01\x1d1234\x21abcdefgh")),    // fields of other types
		within([]byte("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02")),
		{0x00, 0x00}, {0x0f}, {0x0c}, {0x0a, 0xff}, {0x80}, []byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
		[]byte("\xf8\xff\xff\xff\x0f\x00"), []byte("\xf8\xff\xff\xff\x1f\x00"), // the highest number, and above
	}
	return odd
}

// frameDiffers compares how a frame is read with how the generated code reads it: whether it is refused, and of each
// check sequence, time and message, the state machine's check, and what is wrong with it.
func frameDiffers(data []byte) string {
	m := &quoratev1.CheckStreamRequest{}
	want := proto.Unmarshal(data, m)
	f := &checkFrame{}
	half := len(data) / 2
	got := f.decode(mem.BufferSlice{mem.SliceBuffer(data[:half]), mem.SliceBuffer(data[half:])})
	if want != nil || got != nil {
		if want == nil || got == nil || want.Error() != got.Error() {
			return cmp.Diff([]error{want}, []error{got}, cmp.Transformer("text", func(e error) string {
				if e == nil {
					return "it is taken"
				}
				return e.Error()
			}))
		}
		return ""
	}
	kept := min(len(m.GetChecks()), MaxFrameChecks)
	if f.count != len(m.GetChecks()) || len(f.checks) != kept || len(f.asked) != kept {
		return "it has another number of checks"
	}
	own := &queuedFrame{stream: &checkStream{id: Identity{Name: "g", Classes: []string{"convert", "login"}}},
		checks: f.checks, asked: f.asked}
	for i, s := range m.GetChecks()[:kept] {
		c := &f.checks[i]
		req, err := c.request()
		if err != nil {
			return err.Error()
		}
		if diff := cmp.Diff(s.GetCheck(), req, protocmp.Transform()); diff != "" {
			return diff
		}
		if c.sequence != s.GetSequence() || c.timeoutMicros != s.GetTimeoutMicros() || c.missing != (s.GetCheck() == nil) {
			return cmp.Diff(s.String(), c.message)
		}
		check, faulty := askedBy(own.stream.id, req)
		if sound := faulty == nil && c.timeoutMicros >= 0; sound != own.isSound(i) {
			return "the same check is sound one way only: " + s.String()
		} else if sound {
			if diff := cmp.Diff(check, f.asked[i].Check); diff != "" {
				return diff
			}
		}
	}
	return ""
}

// Shows that frames are read as the generated code reads them, whatever is in them.
func TestFramesAreReadAsMessages(t *testing.T) {
	for i, data := range oddFrames(t) {
		if diff := frameDiffers(data); diff != "" {
			t.Errorf("frame %d: %s", i, diff)
		}
	}
	if diff := frameDiffers(bytes.Repeat([]byte{0x0a, 0}, MaxFrameChecks+1)); diff != "" {
		t.Error(diff)
	}
	for at, whole := 0, oddFrames(t)[1]; at < len(whole); at++ { // each byte of a frame changed
		for _, b := range []byte{0, 1, 0x7f, 0x80, 0xff, whole[at] ^ 1, whole[at] ^ 8} {
			changed := bytes.Clone(whole)
			changed[at] = b
			if diff := frameDiffers(changed); diff != "" {
				t.Errorf("byte %d as %x: %s", at, b, diff)
			}
		}
	}
}

// FuzzFramesAreReadAsMessages shows the same for what the fuzzer finds.
func FuzzFramesAreReadAsMessages(f *testing.F) {
	for _, data := range oddFrames(f) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if diff := frameDiffers(data); diff != "" {
			t.Error(diff)
		}
	})
}

// decidedDiffers compares how an answer is encoded with how it is as a message.
func decidedDiffers(sequence uint64, a *Answer, id string, wall time.Time) string {
	d, err := decisionOf(a, id, wall)
	if err != nil {
		return err.Error()
	}
	before := []byte("what was there before")
	want := appendAnswer(bytes.Clone(before), decisionTo(sequence, d, ""))
	if got := appendDecided(bytes.Clone(before), sequence, a, id, wall); !bytes.Equal(want, got) {
		return cmp.Diff(want, got)
	}
	return ""
}

// FuzzDecidedIsAsTheMessage shows that decisions are encoded to the same bytes as the messages that they are, for those
// that are named here and those that the fuzzer finds, also where a string has to be refused.
func FuzzDecidedIsAsTheMessage(f *testing.F) {
	f.Add(uint64(0), uint8(1), int64(0), int64(0), int64(0), "", "", "", 0, false)
	f.Add(uint64(7), uint8(1), int64(12), int64(60e9), int64(1), "v7", "01J9Z3N8Q4XW5T7R6P2M", "minute", 1, true)
	f.Add(uint64(math.MaxUint64), uint8(2), int64(-1), int64(-1), int64(-7), "v\xff", "d\xff", "m\xff", 2, true)
	f.Add(uint64(1<<35), uint8(3), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), "v",
		strings.Repeat("d", 128), strings.Repeat("m", 1<<14), 3, false)
	f.Add(uint64(300), uint8(4), int64(math.MinInt64), int64(math.MinInt64), int64(math.MinInt64), "v", "d", "m\xff",
		40, false)
	f.Fuzz(func(
		t *testing.T, sequence uint64, reason uint8, remaining, nanos, wall int64, version, id, name string, limits int,
		yes bool,
	) {
		a := &Answer{RetryAfterNanos: nanos, Decision: fsm.Decision{
			Reason: fsm.ReasonAllowed + fsm.Reason(reason)%4, Limit: name, Remaining: remaining, Version: version,
			Revision: fsm.Revision(remaining), Replayed: yes, Recorded: !yes,
		}}
		for i := range max(0, limits) % 100 {
			a.Limits = append(a.Limits, fsm.LimitState{Name: name, Max: remaining, WindowNanos: nanos, Remaining: remaining})
			if i != 2 {
				a.ResetAfterNanos = append(a.ResetAfterNanos, nanos)
			}
		}
		if diff := decidedDiffers(sequence, a, id, time.Unix(0, wall)); diff != "" {
			t.Error(diff)
		}
	})
}

// Shows that a streamed check which its owner decides at once costs no allocation of its own: a frame of 512 takes as
// many as one of 16.
func TestStreamedChecksDoNotAllocate(t *testing.T) {
	counts := map[int]float64{}
	for _, each := range []int{16, 512} {
		data, err := proto.Marshal(frameOf(several(1, each)...))
		if err != nil {
			t.Fatal(err)
		}
		config := Config{Node: "n1", ClusterID: testCluster, Backend: &instant{fakeBackend: allowing(), answer: allowedAnswer}}
		config.setDefaults()
		c := newCheckStream(newDesk(&config, newMetrics()), slog.New(slog.DiscardHandler), Identity{Name: "g"})
		defer c.abandon(context.Canceled)
		counts[each] = testing.AllocsPerRun(100, func() {
			f := &checkFrame{}
			if err := f.decode(mem.BufferSlice{mem.SliceBuffer(data)}); err != nil {
				t.Fatal(err)
			}
			if err := c.take(t.Context(), f); err != nil {
				t.Fatal(err)
			}
			for answered := 0; answered < each; {
				a, _ := c.next()
				c.sent(a)
				passing(a.message).buffer().Free()
				answered += a.answers
			}
		})
	}
	if few, many := counts[16], counts[512]; few > 32 || many > few+8 {
		t.Errorf("frames of 16 take %v allocations, of 512 %v", few, many)
	}
}
