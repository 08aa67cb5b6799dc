package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/router"
	"github.com/quorate/quorate/sdk/internal/class"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told is a sink that notes what it is told.
type told struct{ log []string }

func (s *told) Map(m *router.Map) { s.log = append(s.log, fmt.Sprint("map ", m.Version())) }
func (s *told) Broken()           { s.log = append(s.log, "broken") }
func (s *told) Settings(set *class.Set, restored bool) {
	n := 0
	set.Each(func(*class.Class) { n++ })
	s.log = append(s.log, fmt.Sprintf("revision %d of %d classes, restored %t", set.Revision, n, restored))
}

func mapAt(version uint64) *quoratev1.RoutingMap {
	return &quoratev1.RoutingMap{
		Version: version, Seed: make([]byte, 16), Nodes: []*quoratev1.RoutingNode{{Id: "a", Grpc: "127.0.0.1:1"}},
		Partitions: []*quoratev1.RoutingPartition{{Id: "p", Leader: "a", Replicas: []string{"a"}}},
		Ranges:     []*quoratev1.RoutingRange{{Slots: &quoratev1.SlotRange{LastSlot: 16383, Epoch: 1}, Partition: "p"}},
	}
}

func message(m *quoratev1.RoutingMap, p *quoratev1.PolicySettings) *quoratev1.WatchConfigResponse {
	return &quoratev1.WatchConfigResponse{ClusterId: "c", Map: m, Policy: p}
}

func settings(revision uint64, more bool, names ...string) *quoratev1.PolicySettings {
	p := &quoratev1.PolicySettings{Revision: revision, More: more}
	for _, n := range names {
		p.Classes = append(p.Classes, &quoratev1.ClassSettings{Name: n})
	}
	return p
}

// Shows what the sink is told of a course of messages: a policy counts when its last part is there, an older revision of
// a node that is behind never, but any after a restore; and that a node counts as behind just then.
func TestTake(t *testing.T) {
	s := &told{}
	w := New(&Watcher{Sink: s})
	var parts assembly
	outdated := map[int]bool{}
	for i, m := range []*quoratev1.WatchConfigResponse{
		message(mapAt(3), nil),
		message(nil, settings(5, true, "default", "a")),
		message(nil, settings(5, false, "b")),
		message(nil, nil),
		message(nil, settings(6, true, "x", "y")), // a newer one comes before it is complete
		message(nil, settings(7, false, "default")),
		message(mapAt(2), settings(6, false, "default")), // this node is behind
		message(mapAt(1<<restoredMapShift+1), settings(4, false, "default")),
		message(nil, settings(3, false, "default")),
	} {
		if err := w.take(m, &parts); err != nil {
			t.Errorf("message %d: %v", i, err)
		}
		if behind, old := w.behind(&parts); behind != old {
			t.Errorf("message %d: behind %t, outdated %t", i, behind, old)
		} else if old {
			outdated[i] = true
		}
	}
	if diff := cmp.Diff(map[int]bool{6: true, 8: true}, outdated); diff != "" {
		t.Error(diff)
	}
	want := []string{
		"map 3", "revision 5 of 3 classes, restored false", "revision 7 of 1 classes, restored false", "map 2",
		fmt.Sprint("map ", 1<<restoredMapShift+1), "revision 4 of 1 classes, restored true",
	}
	if diff := cmp.Diff(want, s.log); diff != "" {
		t.Error(diff)
	}
}

// Shows that what cannot be is refused, and that nothing of it reaches the sink: no cluster, not even in a beat, another one, a map that makes
// no sense, too many classes.
func TestTakeRefuses(t *testing.T) {
	bad := func(change func(*quoratev1.RoutingMap)) *quoratev1.WatchConfigResponse {
		m := mapAt(9)
		change(m)
		return message(m, settings(9, false, "default"))
	}
	many := make([]string, class.MaxClasses+1)
	for name, m := range map[string]*quoratev1.WatchConfigResponse{
		"no cluster": {Map: mapAt(9)}, "a beat of none": {}, "another": {ClusterId: "d", Map: mapAt(9)}, "another's beat": {ClusterId: "d"},
		"seed":         bad(func(m *quoratev1.RoutingMap) { m.Seed = m.Seed[:15] }),
		"long seed":    bad(func(m *quoratev1.RoutingMap) { m.Seed = append(m.Seed, 0) }),
		"slots":        bad(func(m *quoratev1.RoutingMap) { m.Ranges[0].Slots.LastSlot = 1 << 16 }),
		"partition":    bad(func(m *quoratev1.RoutingMap) { m.Ranges[0].Partition = "q" }),
		"too many":     message(nil, settings(9, true, many...)),
		"node's empty": bad(func(m *quoratev1.RoutingMap) { m.Nodes[0].Grpc = "" }),
	} {
		s := &told{}
		w := New(&Watcher{Sink: s})
		var parts assembly
		if err := w.take(message(mapAt(3), settings(5, false, "default")), &parts); err != nil {
			t.Fatal(err)
		}
		s.log = nil
		if err := w.take(m, &parts); err == nil || len(s.log) != 0 {
			t.Errorf("%s: %v, told %v", name, err, s.log)
		}
	}
}

// Shows that while no node can be reached all of them are tried, with pauses that grow to half a second at most; that it
// is logged once; and that Run ends with its context.
func TestNobodyThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		tries := map[string]int{}
		began := time.Now()
		w := New(&Watcher{
			Sink: &told{}, Log: slog.New(slog.NewTextHandler(&out, nil)),
			Now:     func() int64 { return int64(time.Since(began)) + 1 },
			Targets: func() []Target { return []Target{{Addr: "x"}, {Addr: "y"}} },
			Dial:    func(t Target) (*grpc.ClientConn, error) { tries[t.Addr]++; return nil, errors.New("not there") },
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		w.Run(ctx)
		if n := tries["x"]; n != tries["y"] || n < 120 || n > 260 {
			t.Errorf("%v tries in a minute", tries)
		}
		if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), "not there") {
			t.Error(out.String())
		}
		select {
		case <-w.Tried():
		default:
			t.Error("it does not say that all were tried")
		}
		select {
		case <-w.Ready():
			t.Error("it says that the configuration is known")
		default:
		}
		if w.Live(w.Now()) || w.LastNanos() != 0 {
			t.Error("it says that it is live")
		}
	})
}

// Shows that no message, however odd, panics, and that what the sink is told of a map makes sense.
func FuzzTake(f *testing.F) {
	for _, m := range []*quoratev1.WatchConfigResponse{
		message(mapAt(3), settings(1, false, "default")), message(nil, settings(2, true, "a")), {},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &quoratev1.WatchConfigResponse{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		s := &told{}
		w := New(&Watcher{Sink: s})
		var parts assembly
		if err := w.take(m, &parts); err != nil && w.haveClasses {
			t.Errorf("refused, but its policy was taken: %v", s.log)
		}
	})
}
