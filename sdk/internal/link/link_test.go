package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/sdk/internal/budget"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type served = grpc.BidiStreamingServer[quoratev1.CheckStreamRequest, quoratev1.CheckStreamResponse]

// server handles each stream as its test says.
type server struct {
	quoratev1.UnimplementedQuotaServer
	handle func(served) error
}

func (s *server) CheckStream(g served) error { return s.handle(g) }

// linked runs f in virtual time with a link to a node that handles its streams so.
func linked(t *testing.T, handle func(served) error, f func(t *testing.T, n *Node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// Windows that do not grow: what is sent and not read is bounded in the same way each time.
		lis, g := bufconn.Listen(64<<10), grpc.NewServer(grpc.WaitForHandlers(true),
			grpc.InitialWindowSize(1<<16), grpc.InitialConnWindowSize(1<<16))
		quoratev1.RegisterQuotaServer(g, &server{handle: handle})
		go func() { _ = g.Serve(lis) }()
		conn, err := grpc.NewClient("passthrough:///n", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		n := New(conn, func() int64 { return int64(time.Since(began)) + 1 }, budget.New(0, 0.1, 10), new(Counters))
		f(t, n)
		n.Close()
		g.Stop()
	})
}

// elapse lets virtual time pass.
func elapse(d time.Duration) { <-time.After(d) }

// ask asks with a timeout.
func ask(n *Node, name string, timeout time.Duration) Result {
	return askBy(context.Background(), n, name, n.now()+int64(timeout))
}

// askBy asks with a deadline.
func askBy(ctx context.Context, n *Node, name string, deadlineNanos int64) Result {
	c := NewCall()
	c.Check.Principal, c.Check.ID = name, name
	n.Ask(ctx, c, deadlineNanos)
	return c.Result
}

// echo answers each check of a frame with its principal as the decision's id.
func echo(g served, frame *quoratev1.CheckStreamRequest) error {
	out := &quoratev1.CheckStreamResponse{}
	for _, c := range frame.GetChecks() {
		out.Answers = append(out.Answers, &quoratev1.StreamedAnswer{Sequence: c.GetSequence(),
			Answer: &quoratev1.StreamedAnswer_Decision{Decision: &quoratev1.Decision{DecisionId: c.GetCheck().GetPrincipal()}}})
	}
	return g.Send(out)
}

// each calls f with every frame until the stream ends.
func each(g served, f func(*quoratev1.CheckStreamRequest) error) error {
	for {
		frame, err := g.Recv()
		if err != nil {
			return nil //nolint:nilerr // the other end has ended it
		}
		if err := f(frame); err != nil {
			return err
		}
	}
}

// Shows that answers find their checks in whatever order they come, that one to no check is ignored, and that nothing
// runs on a while after the last one.
func TestAnswersFindTheirChecks(t *testing.T) {
	backwards := func(g served) error {
		var held []*quoratev1.CheckStreamRequest
		return each(g, func(frame *quoratev1.CheckStreamRequest) error {
			held = append(held, frame)
			n := 0
			for _, f := range held {
				n += len(f.GetChecks())
			}
			if n < 50 {
				return nil
			}
			_ = g.Send(&quoratev1.CheckStreamResponse{Answers: []*quoratev1.StreamedAnswer{{Sequence: 999}, {}}})
			for i := len(held) - 1; i >= 0; i-- {
				if err := echo(g, held[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	linked(t, backwards, func(t *testing.T, n *Node) {
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				name := fmt.Sprint(i)
				if r := ask(n, name, time.Second); r.Err != nil || !r.Decision.Ours {
					t.Errorf("%s got %+v", name, r)
				}
			})
		}
		all.Wait()
		elapse(SilentAfter)
		synctest.Wait()
		if n.Waiting() != 0 {
			t.Errorf("%d wait", n.Waiting())
		}
		if n.mu.Lock(); n.armed || n.stream.dueSince() != 0 {
			t.Error("the watchdog runs although nothing is owed")
		}
		n.mu.Unlock()
	})
}

// Shows that what is asked while answers are being handed out leaves when that is over, in one frame.
func TestHandingOut(t *testing.T) {
	frames := 0
	linked(t, func(g served) error {
		return each(g, func(frame *quoratev1.CheckStreamRequest) error { frames++; return echo(g, frame) })
	}, func(t *testing.T, n *Node) {
		if r := ask(n, "x", time.Second); r.Err != nil {
			t.Fatal(r.Err)
		}
		n.mu.Lock()
		n.handing++
		n.mu.Unlock()
		var all sync.WaitGroup
		for i := range 50 {
			all.Go(func() {
				if r := ask(n, fmt.Sprint(i), time.Second); r.Err != nil || !r.Decision.Ours {
					t.Errorf("%+v", r)
				}
			})
		}
		if synctest.Wait(); frames != 1 || n.Waiting() != 50 {
			t.Errorf("%d frames, and %d wait", frames, n.Waiting())
		}
		n.handedOut()
		if all.Wait(); frames != 2 {
			t.Errorf("%d frames", frames)
		}
	})
}

// Shows that a node which answers each check late, and long after nobody waits for it any more, is not given up.
func TestLateIsNotSilent(t *testing.T) {
	late := func(g served) error {
		var all sync.WaitGroup
		defer all.Wait()
		var sending sync.Mutex
		return each(g, func(frame *quoratev1.CheckStreamRequest) error {
			all.Go(func() {
				elapse(900 * time.Millisecond)
				sending.Lock()
				defer sending.Unlock()
				_ = echo(g, frame)
			})
			return nil
		})
	}
	linked(t, late, func(t *testing.T, n *Node) {
		for range 30 {
			if r := ask(n, "x", 100*time.Millisecond); !errors.Is(r.Err, ErrTimeout) || r.Unsent {
				t.Fatalf("%+v", r)
			}
		}
		if n.Suspect() || n.counters.GivenUp.Load() != 0 || n.Waiting() != 0 {
			t.Errorf("given up %d times, %d wait", n.counters.GivenUp.Load(), n.Waiting())
		}
	})
}

// Shows that a node that says nothing is given up a second after the first check that it owes, with all that wait; that
// it is suspect until it answers; and that the next check opens a new stream.
func TestSilentIsGivenUp(t *testing.T) {
	dumb := true
	var mu sync.Mutex
	linked(t, func(g served) error {
		return each(g, func(frame *quoratev1.CheckStreamRequest) error {
			mu.Lock()
			defer mu.Unlock()
			if dumb {
				return nil
			}
			return echo(g, frame)
		})
	}, func(t *testing.T, n *Node) {
		began := time.Now()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if r := ask(n, "x", time.Minute); r.Err == nil || r.Unsent || time.Since(began) != SilentAfter {
					t.Errorf("%+v after %s", r, time.Since(began))
				}
			})
		}
		all.Wait()
		if !n.Suspect() || n.counters.GivenUp.Load() != 1 {
			t.Error("it is not suspect")
		}
		mu.Lock()
		dumb = false
		mu.Unlock()
		if r := ask(n, "y", time.Second); !r.Decision.Ours || n.Suspect() {
			t.Errorf("%+v, suspect %t", r, n.Suspect())
		}
	})
}

// Shows that checks which queue behind a frame that does not get through leave no trace when nobody waits for them any
// more, and count as unsent; and that a check whose time is over is not sent.
func TestNothingPilesUp(t *testing.T) {
	linked(t, func(g served) error { // nothing is read: the window fills up
		<-g.Context().Done()
		return nil
	}, func(t *testing.T, n *Node) {
		unsent := 0
		for range 9 { // up to the second at which it is given up
			var wave sync.WaitGroup
			var mu sync.Mutex
			for range 1024 {
				wave.Go(func() {
					r := ask(n, fmt.Sprintf("%0500d", 1), 100*time.Millisecond)
					mu.Lock()
					defer mu.Unlock()
					if r.Unsent {
						unsent++
					}
					if r.Err == nil || r.Crowded { // it has never answered: it may not be there
						t.Errorf("%+v", r)
					}
				})
			}
			wave.Wait()
			if waiting := n.Waiting(); waiting != 0 {
				t.Fatalf("%d checks are kept", waiting)
			}
		}
		if unsent == 0 {
			t.Error("nothing was held back")
		}
	})
}

// Shows that what queues behind a frame that does not get through, to a node that has answered a moment ago, is told that
// it is crowded when its time is over, and what was sent is not; and so is what comes too late to be sent.
func TestCrowded(t *testing.T) {
	linked(t, func(g served) error {
		frame, err := g.Recv()
		if err != nil {
			return err
		}
		if err := echo(g, frame); err != nil {
			return err
		}
		<-g.Context().Done()
		return nil
	}, func(t *testing.T, n *Node) {
		if r := ask(n, "x", time.Second); r.Err != nil {
			t.Fatal(r.Err)
		}
		r := askBy(context.Background(), n, "x", n.now())
		if !errors.Is(r.Err, ErrTimeout) || !r.Unsent || !r.Crowded {
			t.Errorf("too late: %+v", r)
		}
		results := make([]Result, 2048) // more than two whole frames and what the windows take
		var wave sync.WaitGroup
		for i := range results {
			wave.Go(func() { results[i] = ask(n, fmt.Sprintf("%0500d", i), 100*time.Millisecond) })
		}
		wave.Wait()
		crowded := 0
		for _, r := range results {
			if r.Crowded {
				crowded++
			}
			if r.Crowded != r.Unsent || r.Err == nil {
				t.Fatalf("%+v", r)
			}
		}
		if crowded == 0 || crowded == len(results) {
			t.Errorf("%d are crowded", crowded)
		}
	})
}

// Shows that what comes too late to be sent to a node that was given up a moment ago is not told that it is crowded: the
// node is away.
func TestSuspectIsNotCrowded(t *testing.T) {
	linked(t, func(g served) error {
		<-g.Context().Done()
		return nil
	}, func(t *testing.T, n *Node) {
		if r := ask(n, "x", time.Minute); r.Err == nil || !n.Suspect() {
			t.Fatalf("%+v", r)
		}
		ask(n, "x", time.Millisecond) // opens a stream again
		r := askBy(context.Background(), n, "x", n.now())
		if !errors.Is(r.Err, ErrTimeout) || !r.Unsent || r.Crowded {
			t.Errorf("%+v", r)
		}
	})
}

// Shows that when a stream breaks what was sent is unknown, and that the checks after it go over another stream.
func TestBrokenStream(t *testing.T) {
	streams := 0
	linked(t, func(g served) error {
		streams++
		return each(g, func(frame *quoratev1.CheckStreamRequest) error {
			if frame.GetChecks()[0].GetCheck().GetPrincipal() == "break" {
				return status.Error(codes.Unavailable, "broken")
			}
			return echo(g, frame)
		})
	}, func(t *testing.T, n *Node) {
		for range 3 {
			if r := ask(n, "x", time.Second); r.Err != nil {
				t.Fatal(r.Err)
			}
			if r := ask(n, "break", time.Second); status.Code(r.Err) != codes.Unavailable || r.Unsent || n.Suspect() {
				t.Errorf("%+v", r)
			}
		}
		if streams != 3 {
			t.Errorf("%d streams", streams)
		}
	})
}

// Shows that the end of a whole stream is a refusal of its checks only where none of them was answered: after that, what
// waits may have been decided.
func TestRefusedStream(t *testing.T) {
	linked(t, func(g served) error {
		return each(g, func(frame *quoratev1.CheckStreamRequest) error {
			if frame.GetChecks()[0].GetCheck().GetPrincipal() == "end" {
				return status.Error(codes.Unauthenticated, "the certificate has ended")
			}
			return echo(g, frame)
		})
	}, func(t *testing.T, n *Node) {
		if r := ask(n, "end", time.Second); r.Refusal.GetReason() != "unauthenticated" || !r.Unsure || r.Err != nil {
			t.Errorf("%+v", r)
		}
		if r := ask(n, "x", time.Second); r.Err != nil {
			t.Fatal(r.Err)
		}
		if r := ask(n, "end", time.Second); r.Refusal != nil || status.Code(r.Err) != codes.Unauthenticated || r.Unsent {
			t.Errorf("%+v", r)
		}
	})
}

// Shows that Close gives what waits its result, what comes later too, and may be called twice.
func TestClose(t *testing.T) {
	linked(t, func(g served) error {
		return each(g, func(*quoratev1.CheckStreamRequest) error { return nil })
	}, func(t *testing.T, n *Node) {
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if r := ask(n, "x", time.Second); !errors.Is(r.Err, ErrClosed) {
					t.Errorf("%+v", r)
				}
			})
		}
		synctest.Wait()
		n.Close()
		all.Wait()
		if r := ask(n, "x", time.Second); !errors.Is(r.Err, ErrClosed) || !r.Unsent {
			t.Errorf("%+v", r)
		}
	})
}
