package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

type checkClient = grpc.BidiStreamingClient[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse]

// mustStream opens a stream of checks that ends with the test.
func mustStream(t testing.TB, conn *grpc.ClientConn) checkClient {
	t.Helper()
	return mustStreamIn(within(t, 20*time.Second), t, conn)
}

func mustStreamIn(ctx context.Context, t testing.TB, conn *grpc.ClientConn) checkClient {
	t.Helper()
	s, err := quoratev1.NewQuotaClient(conn).CheckStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// streamed is a check with its place on a stream, whose decision id tells the place.
func streamed(sequence uint64) *quoratev1.StreamedCheck {
	c := aCheck()
	c.DecisionId = fmt.Sprint("d", sequence)
	return &quoratev1.StreamedCheck{Sequence: sequence, Check: c}
}

// several are the checks of a frame, numbered from first.
func several(first uint64, n int) (out []*quoratev1.StreamedCheck) {
	for i := range uint64(n) {
		out = append(out, streamed(first+i))
	}
	return out
}

func frameOf(checks ...*quoratev1.StreamedCheck) *quoratev1.CheckStreamRequest {
	return &quoratev1.CheckStreamRequest{Checks: checks}
}

func mustSend(t testing.TB, s checkClient, checks ...*quoratev1.StreamedCheck) {
	t.Helper()
	if err := s.Send(frameOf(checks...)); err != nil {
		t.Fatal(err)
	}
}

// mustAnswers reads the answers to n checks, each to another one.
func mustAnswers(t testing.TB, s checkClient, n int) map[uint64]*quoratev1.StreamedAnswer {
	t.Helper()
	out := map[uint64]*quoratev1.StreamedAnswer{}
	for len(out) < n {
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("%v after %d of %d answers", err, len(out), n)
		}
		for _, a := range m.GetAnswers() {
			if out[a.GetSequence()] != nil {
				t.Fatalf("check %d was answered twice", a.GetSequence())
			}
			out[a.GetSequence()] = a
		}
	}
	return out
}

// mustEndStream reads the end of a stream, which comes next: well, without a reason.
func mustEndStream(t testing.TB, s checkClient, reason quotaerr.Reason) {
	t.Helper()
	m, err := s.Recv()
	switch {
	case reason == "" && !errors.Is(err, io.EOF), reason != "" && errors.Is(err, io.EOF):
		t.Errorf("the stream ended with %v, want the reason %q; %v", err, reason, m)
	case reason != "" && (err == nil || errtable.FromStatus(err).Reason != reason):
		t.Errorf("the stream ended with %v, want %s; %v", err, reason, m)
	}
}

// mustRefuse wants a check refused for a reason, and no decision.
func mustRefuse(t testing.TB, a *quoratev1.StreamedAnswer, reason quotaerr.Reason) {
	t.Helper()
	if a.GetDecision() != nil || a.GetRefusal().GetReason() != string(reason) {
		t.Errorf("check %d got %v, want the refusal %s", a.GetSequence(), a.GetAnswer(), reason)
	}
}

// holding makes a backend that holds each check until release is closed, or its time is up, and says on entered that
// it has it.
func holding() (b *fakeBackend, entered chan string, release chan struct{}) {
	b = allowing()
	allow := b.check
	entered, release = make(chan string, 1<<15), make(chan struct{})
	b.check = func(ctx context.Context, c fsm.Check) (Answer, error) {
		entered <- c.DecisionID
		select {
		case <-release:
			return allow(ctx, c)
		case <-ctx.Done():
			return Answer{}, quotaerr.New(quotaerr.OutcomeUnknown, "the caller has gone")
		}
	}
	return b, entered, release
}

// mustEnter waits until so many checks have reached the backend.
func mustEnter(t testing.TB, entered <-chan string, n int) {
	t.Helper()
	ctx := within(t, 10*time.Second)
	for i := range n {
		select {
		case <-entered:
		case <-ctx.Done():
			t.Fatalf("only %d of %d checks have reached the backend", i, n)
		}
	}
}

// streamedNow is how many checks of streams count at a node, and the streams.
func (n *testNode) streamedNow() (checks, streams int) {
	for i, s := range []*shares{n.desk.streamed, n.desk.checkStreams} {
		s.mu.Lock()
		*[]*int{&checks, &streams}[i] = s.taken
		s.mu.Unlock()
	}
	return checks, streams
}

// mustBeLeft waits until nothing of any stream is left at a node.
func (n *testNode) mustBeLeft(t testing.TB) {
	t.Helper()
	eventually(t, "nothing of the streams is left", func() bool {
		checks, streams := n.streamedNow()
		return checks == 0 && streams == 0 && n.metric(t, "quorate_checks_in_flight") == 0
	})
}
