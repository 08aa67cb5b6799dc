package rpc

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// instant is a Queuer whose owner has decided before it is asked.
type instant struct {
	*fakeBackend
	answer Answer
}

func (b *instant) Leaders(asked []Asked) []Leadership {
	out := make([]Leadership, len(asked))
	for i := range out {
		out[i] = Leadership{Node: "n1", Local: true, Epoch: 7}
	}
	return out
}

func (b *instant) Enqueue(_ context.Context, asked []Asked, done func([]Outcome)) func(int, error) {
	outcomes := make([]Outcome, len(asked))
	for i := range outcomes {
		outcomes[i] = Outcome{Index: i, Answer: &b.answer}
	}
	done(outcomes)
	return func(int, error) {}
}

// wireStream is a gRPC stream apart from its transport: one frame comes again and again, once all is answered that
// came before.
type wireStream struct {
	grpc.ServerStream // what is not used
	ctx               context.Context
	codec             strictCodec
	frame             mem.BufferSlice
	frames            int // to come
	under             chan struct{}
	each, answered    int
}

func (s *wireStream) Context() context.Context { return s.ctx }

func (s *wireStream) RecvMsg(m any) error {
	if s.frames == 0 {
		return io.EOF
	}
	s.frames--
	s.under <- struct{}{}
	return s.codec.Unmarshal(s.frame, m)
}

func (s *wireStream) SendMsg(m any) error {
	data, err := s.codec.Marshal(m)
	if err != nil {
		return err
	}
	for _, b := range data {
		for rest := b.ReadOnlyData(); len(rest) > 0; {
			_, _, n := protowire.ConsumeField(rest)
			rest = rest[n:]
			if s.answered++; s.answered%s.each == 0 {
				<-s.under
			}
		}
	}
	data.Free()
	return nil
}

// BenchmarkStreamedCheck is what a check costs between a frame's bytes and those of its answer, where the owner has
// decided at once: decoding, checking, queueing, counting, encoding. It is per check, in frames of 16 and of 512.
func BenchmarkStreamedCheck(b *testing.B) {
	for _, each := range []int{16, 512} {
		b.Run(fmt.Sprint(each), func(b *testing.B) {
			checks := several(1_000_000, each)
			for i, c := range checks {
				c.Check.Principal = fmt.Sprintf("principal-%06d", i)
				c.Check.DecisionId = fmt.Sprintf("01J9Z3N8Q4XW5T7R6P2M%06d", i)
				c.Check.RouteEpoch, c.Check.Attempt, c.TimeoutMicros = 7, 1, 1_000_000
			}
			frame, err := proto.Marshal(frameOf(checks...))
			if err != nil {
				b.Fatal(err)
			}
			backend := &instant{fakeBackend: allowing(), answer: Answer{
				Decision: fsm.Decision{Reason: fsm.ReasonAllowed, Recorded: true, Remaining: 12345, Version: "policy-7",
					Revision: 7, Limits: []fsm.LimitState{{Name: "minute", Max: 1 << 20, WindowNanos: 60e9, Remaining: 12345}}},
				ResetAfterNanos: []int64{59e9},
			}}
			config := Config{Node: "n1", ClusterID: testCluster, Backend: backend}
			config.setDefaults()
			service := &quotaService{desk: newDesk(&config, newMetrics()), log: slog.New(slog.DiscardHandler)}
			wire := &wireStream{ctx: withIdentity(b.Context(), Identity{Name: "g", Roles: identity.Gateway}),
				codec: newStrictCodec(), frame: mem.BufferSlice{mem.SliceBuffer(frame)},
				frames: (b.N + each - 1) / each, under: make(chan struct{}, 2), each: each}
			b.ReportAllocs()
			b.ResetTimer()
			err = service.CheckStream(&grpc.GenericServerStream[quoratev1.CheckStreamRequest,
				quoratev1.CheckStreamResponse]{ServerStream: strictStream{wire}})
			if err != nil || wire.answered < b.N {
				b.Fatal(err, wire.answered)
			}
		})
	}
}
