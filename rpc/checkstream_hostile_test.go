package rpc

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// Shows over the wire what ends a stream as invalid: a sequence that is there twice, too many checks, too many bytes,
// and what is no frame; that nothing of such a frame, or after it, is decided; and that the checks before it are
// answered.
func TestFramesThatEndAStream(t *testing.T) {
	large := streamed(5)
	large.Check.Principal = strings.Repeat("x", MaxFrameBytes)
	for name, bad := range map[string]any{
		"twice in the frame":     frameOf(streamed(5), streamed(6), streamed(5)),
		"too many":               frameOf(several(10, MaxFrameChecks+1)...),
		"too large":              frameOf(large),
		"no message":             encoded{0xff},
		"a string that is none":  encoded("\x0a\x07\x08\x05\x12\x03\x0a\x01\xff"),
		"a check that is cut":    encoded("\x0a\x07\x08\x05\x12\x09\x0a\x01a"),
		"many checks of nothing": encoded(bytes.Repeat([]byte{0x0a, 0}, MaxFrameBytes/2)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backend, entered, release := holding()
			n := mustNode(t, "n1", backend)
			s := mustRawStream(t, n.conn)
			if err := s.SendMsg(frameOf(several(1, 3)...)); err != nil {
				t.Fatal(err)
			}
			mustEnter(t, entered, 3)
			if err := s.SendMsg(bad); err != nil {
				t.Fatal(err)
			}
			if err := s.SendMsg(frameOf(streamed(99))); err != nil { // which nobody reads
				t.Fatal(err)
			}
			close(release)
			answered := 0
			for answered < 3 {
				m := &quoratev1.CheckStreamResponse{}
				if err := s.RecvMsg(m); err != nil {
					t.Fatalf("%v after %d answers", err, answered)
				}
				for _, a := range m.GetAnswers() {
					if !Allowed(a.GetDecision()) {
						t.Errorf("%v", a)
					}
					answered++
				}
			}
			err := s.RecvMsg(&quoratev1.CheckStreamResponse{})
			if status.Code(err) != codes.InvalidArgument || len(backend.seen()) != 3 {
				t.Errorf("it ended with %v, decided were %d", err, len(backend.seen()))
			}
			n.mustBeLeft(t)
		})
	}
}

// mustRawStream is a stream of checks that sends what is no message too.
func mustRawStream(t testing.TB, conn *grpc.ClientConn) grpc.ClientStream {
	t.Helper()
	s, err := conn.NewStream(within(t, 20*time.Second), &quoratev1.Quota_ServiceDesc.Streams[0],
		quoratev1.Quota_CheckStream_FullMethodName, grpc.ForceCodecV2(newStrictCodec()))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Shows that the largest frame that is allowed is taken in, by either bound, that the sequence of an answered check is
// free again, and that a message beyond what the library takes in ends the stream and nothing else.
func TestFramesAtTheirBounds(t *testing.T) {
	n := mustNode(t, "n1", allowing())
	s := mustStream(t, n.conn)
	for range 2 {
		mustSend(t, s, several(0, MaxFrameChecks)...)
		mustAnswers(t, s, MaxFrameChecks)
	}
	wide := several(0, 465)
	for _, c := range wide {
		c.Check.Principal = strings.Repeat("p", fsm.MaxPrincipalBytes)
	}
	f := frameOf(wide...)
	for i := 0; proto.Size(f) < MaxFrameBytes; i++ {
		room := MaxFrameBytes - proto.Size(f) - 2
		if room > fsm.MaxTierBytes {
			room = min(fsm.MaxTierBytes, room-3) // so that the last one is long enough to be one
		}
		wide[i].Check.Tier = strings.Repeat("t", room)
	}
	if got := proto.Size(f); got != MaxFrameBytes {
		t.Fatalf("the frame has %d bytes", got)
	}
	mustSend(t, s, wide...)
	mustAnswers(t, s, len(wide))
	huge := mustRawStream(t, n.conn)
	_ = huge.SendMsg(encoded(make([]byte, transportMessageBytes+1))) // the answer says why it failed
	if err := huge.RecvMsg(&quoratev1.CheckStreamResponse{}); err == nil {
		t.Error("a message beyond all bounds was taken in")
	}
	mustSend(t, s, streamed(1))
	mustAnswers(t, s, 1)
}

// idle is a stream apart from any connection: frames come from recv, and answers go to send.
func idle(backend *fakeBackend, recv func() (*quoratev1.CheckStreamRequest, error), send func(encoded) error) *checkStream {
	config := Config{Node: "n1", ClusterID: testCluster, Backend: backend}
	config.setDefaults()
	c := newCheckStream(newDesk(&config, newMetrics()), slog.New(slog.DiscardHandler), Identity{Name: "g", Roles: identity.Gateway})
	c.send = send
	c.recv = func() (*checkFrame, error) {
		m, err := recv()
		if err != nil {
			return nil, err
		}
		return mustDecode(m), nil
	}
	return c
}

// mustDecode is a frame as it comes in.
func mustDecode(m *quoratev1.CheckStreamRequest) *checkFrame {
	b, err := proto.Marshal(m)
	f := &checkFrame{}
	if err == nil {
		err = f.decode(mem.BufferSlice{mem.SliceBuffer(b)})
	}
	if err != nil {
		panic(err)
	}
	return f
}

// sequencesOf are those of a frame of answers.
func sequencesOf(t testing.TB, e encoded) (out []uint64) {
	t.Helper()
	m := &quoratev1.CheckStreamResponse{}
	if err := proto.Unmarshal(e, m); err != nil {
		t.Fatal(err)
	}
	for _, a := range m.GetAnswers() {
		out = append(out, a.GetSequence())
	}
	return out
}

// Shows that a sequence whose check has no answer yet ends the stream as invalid, that nothing of the frame in which it
// comes again is decided, nor of a later one, and that the checks before are answered first, whenever that is.
func TestSequenceThatIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend, _, release := holding()
		in := make(chan *quoratev1.CheckStreamRequest)
		var answered []uint64
		c := idle(backend, func() (*quoratev1.CheckStreamRequest, error) { return <-in, nil }, func(e encoded) error {
			answered = append(answered, sequencesOf(t, e)...)
			return nil
		})
		ended := make(chan error, 1)
		go func() { ended <- c.run(t.Context()) }()
		in <- frameOf(several(1, 3)...)
		in <- frameOf(streamed(5), streamed(2))
		synctest.Wait()
		select {
		case in <- frameOf(streamed(6)):
			t.Error("a frame was read after the bad one")
		case err := <-ended:
			t.Errorf("it ended before the answers, with %v", err)
		default:
		}
		time.Sleep(time.Second)
		close(release)
		if err := <-ended; quotaerr.ReasonOf(err) != quotaerr.InvalidArgument {
			t.Errorf("it ended with %v", err)
		}
		slices.Sort(answered)
		mustEqual(t, answered, []uint64{1, 2, 3})
		if got := len(backend.seen()); got != 3 {
			t.Errorf("%d checks were decided", got)
		}
	})
}

// Shows in virtual time that all that was answered while a frame was on its way leaves together, without waiting for
// anything, in as few frames as the bound of a frame allows.
func TestAnswersLeaveTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := make(chan *quoratev1.CheckStreamRequest, 8)
		out, gate := make(chan []uint64, 8), make(chan struct{})
		c := idle(allowing(), func() (*quoratev1.CheckStreamRequest, error) {
			f, more := <-in
			if !more {
				return nil, io.EOF
			}
			return f, nil
		}, func(e encoded) error {
			out <- sequencesOf(t, e)
			<-gate
			return nil
		})
		ended := make(chan error, 1)
		start := time.Now()
		go func() { ended <- c.run(t.Context()) }()
		in <- frameOf(streamed(7))
		mustEqual(t, <-out, []uint64{7}) // and is held
		for i := range uint64(3) {
			in <- frameOf(several(1000*(i+1), 700)...)
		}
		close(in)
		synctest.Wait()
		close(gate)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		close(out)
		all, frames := 0, 0
		for f := range out {
			all += len(f)
			frames++
			if len(f) > MaxFrameChecks {
				t.Errorf("a frame has %d answers", len(f))
			}
		}
		if all != 2100 || frames != 3 { // at most 1024 in one
			t.Errorf("%d answers left in %d frames", all, frames)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("they waited for %s", took)
		}
	})
}

// Shows that a frame of answers has so many bytes at most, and that a larger one than that leaves alone.
func TestLargeAnswers(t *testing.T) {
	for name, c := range map[string]struct{ size, want int }{
		"several": {MaxFrameBytes / 4, 3}, "alone": {MaxFrameBytes + 1, 1},
	} {
		n := mustNode(t, "n1", answering(Answer{Decision: fsm.Decision{
			Reason: fsm.ReasonAllowed, Version: strings.Repeat("v", c.size)}}, nil))
		s := mustStream(t, n.conn)
		mustSend(t, s, several(0, 9)...)
		for got := 0; got < 9; {
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if len(m.GetAnswers()) > c.want || c.want > 1 && proto.Size(m) > MaxFrameBytes {
				t.Errorf("%s: a frame has %d answers in %d bytes", name, len(m.GetAnswers()), proto.Size(m))
			}
			got += len(m.GetAnswers())
		}
	}
}

// Shows in virtual time what a caller gets who sends without end and reads nothing: so many checks decided and no more,
// the rest refused, until so many answers wait, then nothing is read of him; and the stream ended when nothing was read
// for long, in words that do not say that the checks without an answer were not decided.
func TestFloodThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := allowing()
		read := uint64(0)
		over := make(chan struct{})
		c := idle(backend, func() (*quoratev1.CheckStreamRequest, error) {
			read++
			return frameOf(several(read*MaxFrameChecks, MaxFrameChecks)...), nil
		}, nil)
		c.send = func(encoded) error {
			<-over
			return io.ErrClosedPipe
		}
		start := time.Now()
		err := c.run(t.Context())
		if took := time.Since(start); quotaerr.ReasonOf(err) != quotaerr.OutcomeUnknown || took != streamPatience {
			t.Errorf("%v after %s", err, took)
		}
		if got := len(backend.seen()); got != MaxStreamedChecks {
			t.Errorf("%d checks were decided", got)
		}
		if most := maxUnsentBytes + (MaxStreamedChecks+MaxFrameChecks)*300; c.unsent < maxUnsentBytes || c.unsent > most {
			t.Errorf("answers of %d bytes were kept", c.unsent)
		}
		mustEqual(t, c.desk.streamed.taken, 0)
		close(over)
		synctest.Wait()
	})
}

// Shows over the wire that a caller who floods and reads nothing keeps nobody else from being answered, and that
// nothing of him is left when he has gone.
func TestFloodBesideOthers(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	ctx, cancel := context.WithCancel(within(t, 20*time.Second))
	defer cancel()
	flood := mustStreamIn(ctx, t, n.conn)
	var flooding sync.WaitGroup
	flooding.Go(func() {
		for i := uint64(0); flood.Send(frameOf(several(i*MaxFrameChecks, MaxFrameChecks)...)) == nil; i++ {
		}
	})
	eventually(t, "it is refused", func() bool {
		return n.labelled(t, "quorate_decisions_total", "reason", "overloaded") > 0
	})
	other, err := grpc.NewClient("passthrough:///"+n.grpcAddr, plaintext...)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s := mustStream(t, other)
	for i := range uint64(10) {
		mustSend(t, s, streamed(i))
		if a := mustAnswers(t, s, 1)[i]; !Allowed(a.GetDecision()) {
			t.Errorf("beside the flood: %v", a)
		}
	}
	cancel()
	flooding.Wait()
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	mustEndStream(t, s, "")
	n.mustBeLeft(t)
}

// Shows that the streams of one gateway have their share of a node's checks together, that another gateway still has
// room, and that answers which have left make room.
func TestStreamsOfOneGatewayShare(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend, entered, release := holding()
	n := mustSecure(t, ca, "n1", backend, func(c *Config) { c.MaxInFlight = 8 })
	g, h := mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "g")), mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "h"))
	first, second, other := mustStream(t, g), mustStream(t, g), mustStream(t, h)
	mustSend(t, first, several(0, 4)...)
	mustEnter(t, entered, 4)
	mustSend(t, second, several(0, 4)...)
	answers := mustAnswers(t, second, 2) // six in all
	mustRefuse(t, answers[2], quotaerr.Overloaded)
	mustRefuse(t, answers[3], quotaerr.Overloaded)
	mustEnter(t, entered, 2)
	mustSend(t, other, several(0, 3)...)
	mustRefuse(t, mustAnswers(t, other, 1)[2], quotaerr.Overloaded) // eight are all that there are
	mustEnter(t, entered, 2)
	close(release)
	mustAnswers(t, first, 4)
	mustAnswers(t, second, 2)
	mustAnswers(t, other, 2)
	eventually(t, "there is room again", func() bool { checks, _ := n.streamedNow(); return checks == 0 })
	mustSend(t, second, several(0, 6)...)
	for _, a := range mustAnswers(t, second, 6) {
		if !Allowed(a.GetDecision()) {
			t.Errorf("afterwards: %v", a)
		}
	}
}

// Shows that one gateway's streams are bounded, that another's are not kept out thereby, and that one that ends makes
// room.
func TestStreamsAreBounded(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	n := mustSecure(t, ca, "n1", allowing())
	n.desk.checkStreams = newShares("streams of checks", 3, 2)
	g, h := mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "g")), mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "h"))
	begin := func(conn *grpc.ClientConn) checkClient {
		s := mustStream(t, conn)
		mustSend(t, s, streamed(1))
		mustAnswers(t, s, 1)
		return s
	}
	first := begin(g)
	begin(g)
	mustEndStream(t, mustStream(t, g), quotaerr.Overloaded)
	begin(h)
	mustEndStream(t, mustStream(t, h), quotaerr.Overloaded)
	if err := first.CloseSend(); err != nil {
		t.Fatal(err)
	}
	mustEndStream(t, first, "")
	begin(h)
}

// Shows that a caller who breaks off, or is lost, with checks under way has them given up, and nothing is left of them.
func TestBrokenStreams(t *testing.T) {
	backend, entered, release := holding()
	defer close(release)
	backend.horizon = 0
	n := mustNode(t, "n1", backend)
	ctx, cancel := context.WithCancel(within(t, 20*time.Second))
	defer cancel()
	mustSend(t, mustStreamIn(ctx, t, n.conn), several(0, 20)...)
	lost, err := grpc.NewClient("passthrough:///"+n.grpcAddr, plaintext...)
	if err != nil {
		t.Fatal(err)
	}
	mustSend(t, mustStream(t, lost), several(0, 20)...)
	mustEnter(t, entered, 40)
	cancel()
	if err := lost.Close(); err != nil {
		t.Fatal(err)
	}
	n.mustBeLeft(t)
}
