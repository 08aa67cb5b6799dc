package sdk

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// nodeVariable has the test binary be a node, for a benchmark that counts the client's processor time alone.
const nodeVariable = "QUORATE_SDK_TEST_NODE"

// apart is a node that allows everything, and answers every few milliseconds what has come until then.
type apart struct {
	quoratev1.UnimplementedQuotaServer
	addr string
}

// serveApart is such a node, until its input ends.
func serveApart() {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	g := grpc.NewServer()
	quoratev1.RegisterQuotaServer(g, &apart{addr: lis.Addr().String()})
	go func() { _ = g.Serve(lis) }()
	_, _ = fmt.Fprintln(os.Stdout, lis.Addr())
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	g.Stop()
}

func (a *apart) WatchConfig(
	_ *quoratev1.WatchConfigRequest, stream grpc.ServerStreamingServer[quoratev1.WatchConfigResponse],
) error {
	m := &quoratev1.WatchConfigResponse{ClusterId: "apart", Policy: settingsOf(1, unhurried()...),
		Map: &quoratev1.RoutingMap{Version: 1, Seed: make([]byte, 16),
			Nodes:      []*quoratev1.RoutingNode{{Id: "a", Grpc: a.addr}},
			Partitions: []*quoratev1.RoutingPartition{{Id: "p1", Leader: "a", Replicas: []string{"a"}}},
			Ranges: []*quoratev1.RoutingRange{{
				Slots: &quoratev1.SlotRange{FirstSlot: 0, LastSlot: 16383, Epoch: 1 << 33}, Partition: "p1",
			}},
		}}
	for {
		if err := stream.Send(m); err != nil {
			return err
		}
		m = &quoratev1.WatchConfigResponse{ClusterId: "apart"}
		select {
		case <-time.After(2 * time.Second):
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (a *apart) CheckStream(
	stream grpc.BidiStreamingServer[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse],
) error {
	frames := make(chan *quoratev1.CheckStreamRequest, 4096)
	go func() {
		defer close(frames)
		for {
			frame, err := stream.Recv()
			if err != nil {
				return
			}
			frames <- frame
		}
	}()
	limits := []*quoratev1.LimitState{{Name: "per-minute", Limit: 1 << 40, Window: durationpb.New(time.Minute),
		Remaining: 1 << 39, ResetMs: 59_000}}
	for frame := range frames {
		elapse(5 * time.Millisecond)
		checks := frame.GetChecks()
		for range len(frames) {
			checks = append(checks, (<-frames).GetChecks()...)
		}
		for len(checks) > 0 {
			out := &quoratev1.CheckStreamResponse{}
			for _, c := range checks[:min(256, len(checks))] {
				out.Answers = append(out.Answers, &quoratev1.StreamedAnswer{Sequence: c.GetSequence(),
					Answer: &quoratev1.StreamedAnswer_Decision{Decision: &quoratev1.Decision{
						Outcome: quoratev1.Outcome_OUTCOME_ALLOWED, Reason: "allowed", Remaining: 1 << 39, Recorded: true,
						PolicyVersion: "p1", PolicyRevision: 1, DecisionId: c.GetCheck().GetDecisionId(), Limits: limits,
					}}})
			}
			checks = checks[len(out.GetAnswers()):]
			if err := stream.Send(out); err != nil {
				return err
			}
		}
	}
	return nil
}
