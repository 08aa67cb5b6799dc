package rpc

import (
	"context"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows that a node which stops answers the checks that it has taken in, takes in no further ones, ends the stream with
// a reason after the last answer, and waits for no caller that only keeps its stream open.
func TestShutdownAnswersStreams(t *testing.T) {
	backend, entered, release := holding()
	n := mustNode(t, "n1", backend)
	open, s := mustStream(t, n.conn), mustStream(t, n.conn)
	mustSend(t, open, streamed(1))
	mustSend(t, s, several(1, 3)...)
	mustEnter(t, entered, 4)
	down := make(chan struct{})
	go func() {
		defer close(down)
		n.Shutdown(within(t, 10*time.Second))
	}()
	mustBecomeDeaf(t, n.grpcAddr)
	mustSend(t, s, streamed(9))
	select {
	case <-down:
		t.Error("the node stopped with checks in hand")
	default:
	}
	close(release)
	mustAnswers(t, open, 1)
	for sequence, a := range mustAnswers(t, s, 3) {
		if !Allowed(a.GetDecision()) || sequence == 9 {
			t.Errorf("%v", a)
		}
	}
	mustEndStream(t, open, quotaerr.NotLeader)
	mustEndStream(t, s, quotaerr.NotLeader)
	<-down
	if got := len(backend.seen()); got != 4 {
		t.Errorf("%d checks were decided", got)
	}
}

// Shows that a node stops though checks come without a pause: each of them has its answer, or the stream's end says
// that it was not decided.
func TestShutdownUnderLoad(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	s := mustStream(t, n.conn)
	answered := make(chan int, 1)
	began := make(chan struct{})
	var end error
	go func() {
		count := 0
		for {
			m, err := s.Recv()
			if err != nil {
				end = err
				answered <- count
				return
			}
			if count == 0 {
				close(began)
			}
			count += len(m.GetAnswers())
		}
	}()
	sending := make(chan struct{})
	go func() {
		defer close(sending)
		for i := uint64(0); s.Send(frameOf(several(i*10, 10)...)) == nil; i++ {
		}
	}()
	<-began
	start := time.Now()
	n.Shutdown(within(t, 15*time.Second))
	count := <-answered
	<-sending
	if e := errtable.FromStatus(end); e.Reason != quotaerr.NotLeader || time.Since(start) > 10*time.Second {
		t.Errorf("it ended with %v after %s", end, time.Since(start))
	}
	allowed := n.labelled(t, "quorate_decisions_total", "outcome", "allowed")
	if got := len(backend.seen()); got != int(allowed) || count < got {
		t.Errorf("%d checks were decided, %d answers came", got, count)
	}
}

// Shows that a shutdown whose time is over breaks off streams with checks that still run, and leaves nothing of them.
func TestShutdownOfStreamsIsBounded(t *testing.T) {
	backend := allowing()
	entered := make(chan struct{})
	backend.check = func(ctx context.Context, _ fsm.Check) (Answer, error) {
		close(entered)
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}
	n := mustNode(t, "n1", backend)
	s := mustStream(t, n.conn)
	mustSend(t, s, streamed(1))
	<-entered
	start := time.Now()
	n.Shutdown(within(t, 50*time.Millisecond))
	if took := time.Since(start); took > DefaultTimeout-time.Second {
		t.Errorf("the shutdown took %v", took)
	}
	if m, err := s.Recv(); err == nil {
		t.Errorf("a check that was broken off got %v", m)
	}
	n.mustBeLeft(t)
}

// BenchmarkCheckStream shows what a stream costs for each check, over a loopback socket with both ends in this
// process, with 2,048 checks under way in frames of 64.
func BenchmarkCheckStream(b *testing.B) {
	const underWay, each = 2048, 64
	n := mustNode(b, "n1", allowing())
	s, err := quoratev1.NewQuotaClient(n.conn).CheckStream(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	room := make(chan struct{}, underWay/each)
	go func() {
		for sent := 0; sent < b.N; sent += each {
			room <- struct{}{}
			if err := s.Send(frameOf(several(uint64(sent), each)...)); err != nil {
				b.Error(err)
				return
			}
		}
		_ = s.CloseSend()
	}()
	b.ReportAllocs()
	frames, answers := 0, 0
	for {
		m, err := s.Recv()
		if err != nil {
			break
		}
		frames++
		for range m.GetAnswers() {
			if answers++; answers%each == 0 {
				<-room
			}
		}
	}
	b.ReportMetric(float64(answers)/float64(max(1, frames)), "answers/frame")
}
