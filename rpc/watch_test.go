package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/internal/errtable"
	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// aView is a configuration with a map of the given version and a policy with so many classes; none, when revision
// is 0.
func aView(version, revision uint64, classes int) *ConfigView {
	v := &ConfigView{Map: &quoratev1.RoutingMap{Version: version, Seed: make([]byte, 16)}}
	if revision > 0 {
		v.Policy = &quoratev1.PolicySettings{Revision: revision, Version: fmt.Sprint("p", revision)}
		for i := range classes {
			v.Policy.Classes = append(v.Policy.Classes, &quoratev1.ClassSettings{Name: fmt.Sprint("c", i)})
		}
	}
	return v
}

// changedMap is v with another map, changedPolicy v with another policy.
func changedMap(v *ConfigView, version uint64) *ConfigView {
	return &ConfigView{Map: aView(version, 0, 0).Map, Policy: v.Policy}
}

func changedPolicy(v *ConfigView, revision uint64, classes int) *ConfigView {
	return &ConfigView{Map: v.Map, Policy: aView(0, revision, classes).Policy}
}

// inShort is a message of a watch in a few words.
func inShort(m *quoratev1.WatchConfigResponse) string {
	s := m.GetClusterId()
	if m.GetMap() != nil {
		s += fmt.Sprintf(" map %d", m.GetMap().GetVersion())
	}
	if p := m.GetPolicy(); p != nil {
		s += fmt.Sprintf(" policy %d %s: %d classes, more %v", p.GetRevision(), p.GetVersion(), len(p.GetClasses()), p.GetMore())
	}
	return s
}

// mustWatch begins a watch that ends with the test.
func mustWatch(t testing.TB, conn *grpc.ClientConn) grpc.ServerStreamingClient[quoratev1.WatchConfigResponse] {
	t.Helper()
	w, err := quoratev1.NewQuotaClient(conn).WatchConfig(within(t, 20*time.Second), &quoratev1.WatchConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// mustTell reads the next messages of a watch, heartbeats aside.
func mustTell(t testing.TB, w grpc.ServerStreamingClient[quoratev1.WatchConfigResponse], want ...string) {
	t.Helper()
	for _, line := range want {
		m, err := w.Recv()
		for err == nil && m.GetMap() == nil && m.GetPolicy() == nil {
			m, err = w.Recv()
		}
		if err != nil {
			t.Fatalf("%v, want %s", err, line)
		}
		if got := inShort(m); got != line {
			t.Errorf("told %q, want %q", got, line)
		}
	}
}

// Shows over the wire: the map and the whole policy come at once, the policy in messages of at most 512 classes;
// afterwards only what has changed; and the watch ends with a reason when the node stops, without holding that up.
func TestWatchConfig(t *testing.T) {
	backend := allowing()
	view := aView(1, 3, 1025)
	backend.publish(view)
	n := mustNode(t, "n1", backend)
	w := mustWatch(t, n.conn)
	mustTell(t, w, "c1 map 1", "c1 policy 3 p3: 512 classes, more true", "c1 policy 3 p3: 512 classes, more true",
		"c1 policy 3 p3: 1 classes, more false")
	view = changedMap(view, 2)
	backend.publish(view)
	mustTell(t, w, "c1 map 2")
	view = changedPolicy(view, 4, 0)
	backend.publish(view)
	mustTell(t, w, "c1 policy 4 p4: 0 classes, more false")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n.Shutdown(ctx)
	if _, err := w.Recv(); errtable.FromStatus(err).Reason != quotaerr.NotLeader {
		t.Errorf("it ended with %v", err)
	}
	if ctx.Err() != nil {
		t.Error("the node waited for the watch")
	}
}

// Shows that a node without a map sends its gateways away, and that one without a policy tells its map.
func TestWatchBeforeThereIsAPolicy(t *testing.T) {
	backend := allowing()
	n := mustNode(t, "n1", backend)
	if _, err := mustWatch(t, n.conn).Recv(); errtable.FromStatus(err).Reason != quotaerr.NoQuorum {
		t.Errorf("without a map: %v", err)
	}
	view := aView(1, 0, 0)
	backend.publish(view)
	w := mustWatch(t, n.conn)
	mustTell(t, w, "c1 map 1")
	backend.publish(changedPolicy(view, 1, 1))
	mustTell(t, w, "c1 policy 1 p1: 1 classes, more false")
}

// collected is a watch whose messages a test collects, with when they came.
type collected struct {
	watch
	mu    sync.Mutex // guards the rest
	told  []string
	at    []time.Time
	beats []time.Time // when heartbeats came, which are not in told
}

func (c *collected) lines() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.told...)
}

func (c *collected) heartbeats() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Time(nil), c.beats...)
}

func (c *collected) times() []time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]time.Time(nil), c.at...)
}

// newCollected makes a watch of backend. Each message is taken once gate lets it through; nil: at once.
func newCollected(backend *fakeBackend, gate <-chan struct{}) *collected {
	c := &collected{}
	c.watch = watch{bulletin: &bulletin{cluster: "c1", backend: backend}, send: func(e encoded) error {
		if gate != nil {
			<-gate
		}
		m := &quoratev1.WatchConfigResponse{}
		if err := proto.Unmarshal(e, m); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if m.GetMap() == nil && m.GetPolicy() == nil {
			c.beats = append(c.beats, time.Now())
			return nil
		}
		c.told, c.at = append(c.told, inShort(m)), append(c.at, time.Now())
		return nil
	}}
	return c
}

// Shows in virtual time that a lone change is told within the jitter, that a flood of changes is told at most once in
// 200 ms, each time as the newest state, that the last one is never lost, and that waiting costs nothing.
func TestChangesAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := allowing()
		backend.publish(aView(1, 1, 1))
		c := newCollected(backend, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.run(ctx) }()
		synctest.Wait()
		mustEqual(t, c.lines(), []string{"c1 map 1", "c1 policy 1 p1: 1 classes, more false"})
		time.Sleep(time.Hour)
		if n := backend.views(); n > 2 {
			t.Errorf("without a change the configuration was looked at %d times", n)
		}
		changed := time.Now()
		backend.publish(aView(2, 1, 1))
		time.Sleep(time.Second)
		if d := c.times()[2].Sub(changed); d < 0 || d > watchJitter {
			t.Errorf("a lone change took %s", d)
		}
		before := len(c.lines())
		view := aView(2, 1, 1)
		const flood = 1000
		for i := range uint64(flood) {
			view = changedMap(view, 3+i)
			backend.publish(view)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		told := c.lines()[before:]
		// The first also has the policy, which is another pointer.
		if len(told) < 4 || len(told) > flood/200+3 {
			t.Errorf("%d changes in a second were told as %v", flood, told)
		}
		if last := told[len(told)-1]; last != fmt.Sprintf("c1 map %d", 2+flood) {
			t.Errorf("the last that was told is %s", last)
		}
		var maps []time.Time
		at := c.times()[before:]
		for i, line := range told {
			if strings.HasPrefix(line, "c1 map") {
				maps = append(maps, at[i])
			}
		}
		for i := range maps[1:] {
			if d := maps[i+1].Sub(maps[i]); d < watchInterval {
				t.Errorf("two changes came %s apart", d)
			}
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Shows in virtual time that a watch to which nothing has changed says so every two seconds and no sooner, counted from
// the last message; also while there is news all the time of which nothing is to be told; and that it ends, and says
// nothing more, when whoever it is does not count any more.
func TestWatchHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := allowing()
		view := aView(1, 1, 1)
		backend.publish(view)
		c := newCollected(backend, nil)
		var counts atomic.Pointer[quotaerr.Error]
		c.id.valid = func(context.Context) error {
			if e := counts.Load(); e != nil {
				return e
			}
			return nil
		}
		start := time.Now()
		ended := make(chan error, 1)
		go func() { ended <- c.run(t.Context()) }()
		since := func() (out []time.Duration) {
			for _, at := range c.heartbeats() {
				out = append(out, at.Sub(start))
			}
			return out
		}
		time.Sleep(5 * time.Second)
		mustEqual(t, since(), []time.Duration{2 * time.Second, 4 * time.Second})
		view = changedMap(view, 2)
		backend.publish(view)
		time.Sleep(time.Second)
		told := c.times()[2].Sub(start)
		for range 100 {
			backend.publish(&ConfigView{Map: view.Map, Policy: view.Policy})
			time.Sleep(50 * time.Millisecond)
		}
		mustEqual(t, since()[2:], []time.Duration{told + 2*time.Second, told + 4*time.Second})
		counts.Store(quotaerr.New(quotaerr.Unauthenticated, "was revoked"))
		before := len(c.heartbeats())
		if err := <-ended; quotaerr.ReasonOf(err) != quotaerr.Unauthenticated || len(c.heartbeats()) != before {
			t.Errorf("it ended with %v", err)
		}
	})
}

// Shows in virtual time that a node which has not heard from the control group for a policy lease ends its watches at
// the next beat, without another message, and tells nothing new: a gateway would take that for a confirmation.
func TestWatchIsConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := allowing()
		view := aView(1, 1, 1)
		backend.publish(view)
		c := newCollected(backend, nil)
		ended := make(chan error, 1)
		go func() { ended <- c.run(t.Context()) }()
		time.Sleep(time.Second)
		backend.unconfirmed.Store(true)
		told := len(c.lines())
		backend.publish(changedMap(view, 2))
		start := time.Now()
		if err := <-ended; quotaerr.ReasonOf(err) != quotaerr.NoQuorum || time.Since(start) > watchHeartbeat {
			t.Errorf("it ended after %s with %v", time.Since(start), err)
		}
		if err := newCollected(backend, nil).run(t.Context()); quotaerr.ReasonOf(err) != quotaerr.NoQuorum {
			t.Errorf("another one ended with %v", err)
		}
		if len(c.lines()) != told || len(c.heartbeats()) != 0 {
			t.Errorf("told %q after that, and %d heartbeats", c.lines()[told:], len(c.heartbeats()))
		}
	})
}

// Shows that a reader which takes its time is told what is newest when it is ready, and nothing of what came and
// went meanwhile.
func TestSlowReaderIsToldTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := allowing()
		view := aView(1, 1, 1)
		backend.publish(view)
		gate := make(chan struct{})
		c := newCollected(backend, gate)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.run(ctx) }()
		gate <- struct{}{} // the map
		for i := range uint64(50) {
			view = changedPolicy(changedMap(view, 2+i), 2+i, 1)
			backend.publish(view)
			time.Sleep(time.Second)
		}
		close(gate)
		time.Sleep(time.Second)
		mustEqual(t, c.lines(), []string{"c1 map 1", "c1 policy 1 p1: 1 classes, more false", "c1 map 51",
			"c1 policy 51 p51: 1 classes, more false"})
		cancel()
		<-ended
	})
}

// Shows in virtual time that a reader which reads nothing ends its stream, and over the wire that nothing is made for
// such a reader with further changes: what the node holds for it is a window and one message.
func TestReaderThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stalled := make(chan struct{})
		defer close(stalled)
		var sends atomic.Int32
		err := patiently(t.Context(), streamPatience, "read", func() error {
			sends.Add(1)
			<-stalled
			return nil
		})
		if quotaerr.ReasonOf(err) != quotaerr.Overloaded || sends.Load() != 1 {
			t.Errorf("%v after %d", err, sends.Load())
		}
	})
	backend := allowing()
	view := aView(1, 1, 4096) // above the flow control window
	backend.publish(view)
	n := mustNode(t, "n1", backend)
	ctx, cancel := context.WithCancel(within(t, 20*time.Second))
	w, err := quoratev1.NewQuotaClient(n.conn).WatchConfig(ctx, &quoratev1.WatchConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the watch begins", func() bool { return n.desk.bulletin.count() > 0 })
	made := n.desk.bulletin.count()
	for i := range uint64(200) {
		view = changedPolicy(view, 2+i, 4096)
		backend.publish(view)
	}
	// Another watch shows that the node has seen the last one, while the first stands still.
	other := mustWatch(t, n.conn)
	for {
		m, err := other.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if p := m.GetPolicy(); p.GetRevision() == 201 && !p.GetMore() {
			break
		}
	}
	if got := n.desk.bulletin.count() - made; got > 10 {
		t.Errorf("%d messages were made for one that reads and one that does not", got)
	}
	cancel()
	for err == nil {
		_, err = w.Recv()
	}
	if errors.Is(err, io.EOF) {
		t.Error("the stalled watch ended well")
	}
}

// count is how often something was encoded.
func (b *bulletin) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.made
}

// Shows over real connections that 1,000 watches are told each change, of which each is encoded once for all.
func TestThousandWatches(t *testing.T) {
	backend := allowing()
	view := aView(1, 1, 600)
	backend.publish(view)
	n := mustNode(t, "n1", backend, func(c *Config) {
		var mu sync.Mutex
		count := 0
		c.Authenticate = func(context.Context) (Identity, error) {
			mu.Lock()
			defer mu.Unlock()
			count++
			return Identity{Name: fmt.Sprint("g", count/50), Roles: identity.Gateway}, nil
		}
	})
	const watches = 1000
	told := make(chan uint64, watches)
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(within(t, 60*time.Second))
	for range watches {
		all.Go(func() {
			w, err := quoratev1.NewQuotaClient(n.conn).WatchConfig(ctx, &quoratev1.WatchConfigRequest{})
			for err == nil {
				var m *quoratev1.WatchConfigResponse
				if m, err = w.Recv(); m.GetMap() != nil {
					told <- m.GetMap().GetVersion()
				}
			}
		})
	}
	for version := uint64(1); version <= 4; version++ {
		for range watches {
			select {
			case got := <-told:
				if got != version {
					t.Fatalf("told of map %d, want %d", got, version)
				}
			case <-ctx.Done():
				t.Fatal("not all were told")
			}
		}
		// One of the map and, at the beginning, one of the policy.
		if got := n.desk.bulletin.count(); got != int(version)+1 {
			t.Errorf("after map %d there were %d encodings", version, got)
		}
		if version < 4 {
			view = changedMap(view, version+1)
			backend.publish(view)
		}
	}
	cancel()
	all.Wait()
}

// Shows that one identity's watches are bounded, that another's are not kept out thereby, and that a watch that ends
// makes room.
func TestWatchesOfOneIdentityAreBounded(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	backend.publish(aView(1, 0, 0))
	n := mustSecure(t, ca, "n1", backend)
	n.desk.watchers = newShares("watches", 3, 2)
	g, v := mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "g")), mustDial(t, n.grpcAddr, ca.must(t, identity.Viewer, "v"))
	ctx, cancel := context.WithCancel(within(t, 20*time.Second))
	defer cancel()
	first, err := quoratev1.NewQuotaClient(g).WatchConfig(ctx, &quoratev1.WatchConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	mustTell(t, first, tlsCluster+" map 1")
	mustTell(t, mustWatch(t, g), tlsCluster+" map 1")
	if _, err := mustWatch(t, g).Recv(); errtable.FromStatus(err).Reason != quotaerr.Overloaded {
		t.Errorf("the third: %v", err)
	}
	mustTell(t, mustWatch(t, v), tlsCluster+" map 1")
	if _, err := mustWatch(t, v).Recv(); errtable.FromStatus(err).Reason != quotaerr.Overloaded {
		t.Errorf("one too many in all: %v", err)
	}
	cancel()
	eventually(t, "there is room again", func() bool {
		again, err := quoratev1.NewQuotaClient(g).WatchConfig(within(t, 20*time.Second), &quoratev1.WatchConfigRequest{})
		if err != nil {
			return false
		}
		_, err = again.Recv()
		return err == nil
	})
}

// Shows that a watch ends when the token that opened it does not count any more, before anything else is told.
func TestWatchEndsWithItsToken(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	view := aView(1, 0, 0)
	backend.publish(view)
	known := tokens{role: map[string]identity.Role{"qt_view": identity.Viewer}, bad: map[string]string{}}
	backend.admin.token = known.token
	n := mustSecure(t, ca, "n1", backend)
	w, err := quoratev1.NewQuotaClient(mustAnonymous(t, ca, n.grpcAddr)).WatchConfig(showing(t, "Bearer qt_view"),
		&quoratev1.WatchConfigRequest{})
	if err != nil {
		t.Fatal(err)
	}
	mustTell(t, w, tlsCluster+" map 1")
	known.mu.Lock()
	known.bad["qt_view"] = "was revoked"
	known.mu.Unlock()
	backend.publish(changedMap(view, 2))
	if m, err := w.Recv(); err == nil || errtable.FromStatus(err).Reason != quotaerr.Unauthenticated {
		t.Errorf("told %v, %v", m, err)
	}
}
