package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/sdk/internal/budget"
)

// Shows that a node which ends its streams after it has answered all that it took in, as one that stops does, loses
// nobody an answer, however the end meets what is being sent: over some thousand streams, in real time.
func TestAnsweredThenEnded(t *testing.T) {
	var answered sync.Map
	var streams atomic.Int64
	lis, g := bufconn.Listen(64<<10), grpc.NewServer(grpc.WaitForHandlers(true))
	quoratev1.RegisterQuotaServer(g, &server{handle: func(s served) error {
		streams.Add(1)
		for range 5 {
			frame, err := s.Recv()
			if err != nil || echo(s, frame) != nil {
				return nil //nolint:nilerr // the other end has ended it
			}
			for _, c := range frame.GetChecks() {
				answered.Store(c.GetCheck().GetPrincipal(), true)
			}
		}
		return status.Error(codes.Unavailable, "stopping")
	}})
	go func() { _ = g.Serve(lis) }()
	defer g.Stop()
	conn, err := grpc.NewClient("passthrough:///n", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	n := New(conn, func() int64 { return int64(time.Since(began)) + 1 }, budget.New(0, 0.1, 10), new(Counters))
	defer n.Close()
	var lost atomic.Int64
	var all sync.WaitGroup
	for i := range 256 {
		all.Go(func() {
			for j := range 100 {
				name := fmt.Sprint(i, "-", j)
				r := ask(n, name, 10*time.Second)
				if _, decided := answered.Load(name); decided && !r.Decided {
					lost.Add(1)
				}
			}
		})
	}
	all.Wait()
	if lost.Load() != 0 || streams.Load() < 20 {
		t.Errorf("over %d streams %d answers were lost", streams.Load(), lost.Load())
	}
}

// silent takes frames and answers none.
func silent(g served) error {
	return each(g, func(*quoratev1.CheckStreamRequest) error { return nil })
}

// late answers each frame after 200 ms.
func late(g served) error {
	return each(g, func(f *quoratev1.CheckStreamRequest) error { elapse(200 * time.Millisecond); return echo(g, f) })
}

// Shows that answers which have come in are handed out although sending has found the stream ended meanwhile.
func TestAnswersOutliveTheirStream(t *testing.T) {
	linked(t, silent, func(t *testing.T, n *Node) {
		got := make(chan Result, 1)
		go func() { got <- ask(n, "x", 500*time.Millisecond) }()
		synctest.Wait()
		n.mu.Lock()
		s := n.stream
		n.mu.Unlock()
		n.sent(s, io.EOF)
		n.answered(s, []answer{{sequence: 1, decided: true, id: []byte("x")}})
		if r := <-got; !r.Decision.Ours {
			t.Errorf("%+v", r)
		}
	})
}

// Shows that a node owes nothing for a check that never left: neither one whose caller had gone, nor one that expired
// while the stream opened, makes a healthy node be given up when the next check comes most of a second later.
func TestUnsentIsNotOwed(t *testing.T) {
	linked(t, late, func(t *testing.T, n *Node) {
		gone, cancel := context.WithCancel(context.Background())
		cancel()
		tooLate := func() Result { return askBy(context.Background(), n, "x", n.now()) }
		for _, first := range []func() Result{
			tooLate, // the stream opens for it
			func() Result { return askBy(gone, n, "x", n.now()+int64(time.Second)) },
			tooLate,
		} {
			if r := first(); r.Err == nil || !r.Unsent {
				t.Errorf("%+v", r)
			}
			elapse(900 * time.Millisecond)
			if r := ask(n, "y", 4*time.Second); r.Err != nil || n.Suspect() || n.counters.GivenUp.Load() != 0 {
				t.Errorf("%+v, given up %d times", r, n.counters.GivenUp.Load())
			}
			elapse(3 * time.Second)
		}
	})
}

// Shows that a node whose connection does not come about is given up after a second all the same, and that the checks
// which wait then count as unsent.
func TestStreamThatNeverOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := grpc.NewClient("passthrough:///n", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		n := New(conn, func() int64 { return int64(time.Since(began)) + 1 }, budget.New(0, 0.1, 10), new(Counters))
		defer n.Close()
		if r := ask(n, "x", 100*time.Millisecond); !errors.Is(r.Err, ErrTimeout) || !r.Unsent || n.Suspect() {
			t.Errorf("%+v", r)
		}
		if r := ask(n, "y", time.Minute); !r.Unsent || !errors.Is(r.Err, errSilent) || time.Since(began) != SilentAfter || !n.Suspect() {
			t.Errorf("%+v after %s", r, time.Since(began))
		}
	})
}

// Shows that a node which takes no frame in any more is given up a second after its last answer, although nobody waits for
// what is being sent, and it has answered all that somebody waited for.
func TestStuckFrame(t *testing.T) {
	linked(t, func(g served) error {
		frame, err := g.Recv()
		if err != nil {
			return err
		}
		elapse(500 * time.Millisecond)
		if err := echo(g, frame); err != nil {
			return err
		}
		<-g.Context().Done()
		return nil
	}, func(t *testing.T, n *Node) {
		began := time.Now()
		_ = ask(n, "x", 10*time.Millisecond)
		var wave sync.WaitGroup
		for range 1024 {
			wave.Go(func() { _ = ask(n, fmt.Sprintf("%0500d", 1), 100*time.Millisecond) })
		}
		wave.Wait()
		elapse(500 * time.Millisecond)
		if n.mu.Lock(); n.stream.sendingNanos == 0 || n.stream.owedNanos != 0 {
			t.Error("nothing is stuck, or something else is owed")
		}
		n.mu.Unlock()
		r := ask(n, "y", time.Minute)
		if took := time.Since(began); !errors.Is(r.Err, errSilent) || !r.Unsent || took != 500*time.Millisecond+SilentAfter {
			t.Errorf("%+v after %s", r, took)
		}
	})
}

// Shows that the end of an older stream takes nothing off what a newer one owes: a node that is silent over the newer is
// given up a second after its first check, whenever the older one ends.
func TestTwoStreams(t *testing.T) {
	linked(t, silent, func(t *testing.T, n *Node) {
		older := make(chan Result, 1)
		go func() { older <- ask(n, "x", time.Minute) }()
		synctest.Wait()
		n.mu.Lock()
		s := n.stream
		n.mu.Unlock()
		n.sent(s, io.EOF)
		began := time.Now()
		newer := make(chan Result, 1)
		go func() { newer <- ask(n, "y", 10*time.Second) }()
		elapse(900 * time.Millisecond)
		n.broken(s, status.Error(codes.Unavailable, "ended"))
		if r := <-older; status.Code(r.Err) != codes.Unavailable || r.Unsent {
			t.Errorf("over the older stream: %+v", r)
		}
		if r := <-newer; !errors.Is(r.Err, errSilent) || time.Since(began) != SilentAfter || n.counters.GivenUp.Load() != 1 {
			t.Errorf("over the newer: %+v after %s", r, time.Since(began))
		}
	})
}

// Shows that a stream which is ended by who does not know the call is no answer, and that its checks were not read, unless
// some were answered before.
func TestUnknownCall(t *testing.T) {
	linked(t, func(g served) error {
		return each(g, func(frame *quoratev1.CheckStreamRequest) error {
			if frame.GetChecks()[0].GetCheck().GetPrincipal() == "end" {
				return status.Error(codes.Unimplemented, "unknown method")
			}
			return echo(g, frame)
		})
	}, func(t *testing.T, n *Node) {
		if r := ask(n, "end", time.Second); !errors.Is(r.Err, ErrUnknownCall) || !r.Unsent || r.Refusal != nil {
			t.Errorf("%+v", r)
		}
		if r := ask(n, "x", time.Second); r.Err != nil {
			t.Fatal(r.Err)
		}
		if r := ask(n, "end", time.Second); r.Err == nil || r.Unsent || r.Refusal != nil {
			t.Errorf("after an answer: %+v", r)
		}
	})
}
