package rpc

import (
	"cmp"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

const (
	// watchInterval is the least time between two changes that one watch is told.
	watchInterval = 200 * time.Millisecond
	// watchJitter is how much later, at random, so that not all watches are served at once.
	watchJitter = 100 * time.Millisecond
	// watchHeartbeat is how long a watch says nothing at most: whoever hears nothing for longer cannot rely on it.
	watchHeartbeat = 2 * time.Second
	// settingsPerMessage bounds the classes in one message of a watch.
	settingsPerMessage = 512
)

// encoded is a message that is encoded already, so that all watches can be sent the same bytes.
type encoded []byte

// bulletin is what is told to all watches: the newest view, encoded once.
type bulletin struct {
	cluster string
	backend Backend

	mu    sync.Mutex // guards the rest
	sheet sheet
	made  int // how often something was encoded
}

// sheet is a view as watches are told it. It does not change.
type sheet struct {
	view ConfigView
	// routes has the map, settings the policy's classes. All of settings are needed, in order.
	routes, settings []encoded
}

// newest is the sheet of the newest view, and a channel that is closed when there is a newer one. Views are
// looked at one after another, so that no older one comes after a newer.
func (b *bulletin) newest() (sheet, <-chan struct{}, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.confirmed(); err != nil {
		return sheet{}, nil, err
	}
	view, changed := b.backend.Config()
	if view == nil || view.Map == nil {
		return sheet{}, changed, quotaerr.New(quotaerr.NoQuorum, "this node has no map of the cluster yet: ask another")
	}
	next := b.sheet
	next.view = *view
	var err error
	if view.Map != b.sheet.view.Map {
		if next.routes, err = b.encode(&quoratev1.WatchConfigResponse{Map: view.Map}); err != nil {
			return sheet{}, nil, err
		}
	}
	if view.Policy != b.sheet.view.Policy {
		if next.settings, err = b.encode(inMessages(view.Policy)...); err != nil {
			return sheet{}, nil, err
		}
	}
	b.sheet = next
	return next, changed, nil
}

// confirmed refuses to tell what may not be so any more: who watches counts each message as a confirmation.
func (b *bulletin) confirmed() error {
	if b.backend.Confirmed() {
		return nil
	}
	return quotaerr.New(quotaerr.NoQuorum,
		"this node has not heard from the control group for as long as a policy lease is: watch another")
}

func (b *bulletin) encode(messages ...*quoratev1.WatchConfigResponse) (out []encoded, err error) {
	b.made++
	for _, m := range messages {
		m.ClusterId = b.cluster
		e, err := proto.Marshal(m)
		if err != nil {
			return nil, quotaerr.Wrap(quotaerr.Internal, err, "")
		}
		if len(e) > maxMessageBytes {
			return nil, quotaerr.New(quotaerr.Internal, "the configuration has a message of %d bytes, above %d", len(e),
				maxMessageBytes)
		}
		out = append(out, e)
	}
	return out, nil
}

// inMessages divides a policy's settings into messages of a bounded size.
func inMessages(p *quoratev1.PolicySettings) (out []*quoratev1.WatchConfigResponse) {
	if p == nil {
		return nil
	}
	for rest, more := p.GetClasses(), true; more; {
		n := min(len(rest), settingsPerMessage)
		more = n < len(rest)
		out = append(out, &quoratev1.WatchConfigResponse{Policy: &quoratev1.PolicySettings{
			Revision: p.GetRevision(), Version: p.GetVersion(), Classes: rest[:n], More: more,
		}})
		rest = rest[n:]
	}
	return out
}

// WatchConfig tells the newest configuration, at once and after each change, and now and then that there is none, until
// the caller or this node ends.
func (s *quotaService) WatchConfig(
	_ *quoratev1.WatchConfigRequest, stream grpc.ServerStreamingServer[quoratev1.WatchConfigResponse],
) error {
	ctx := stream.Context()
	id := identityOf(ctx)
	done, err := s.desk.watchers.take(id.String())
	if err != nil {
		return err
	}
	defer done()
	w := &watch{bulletin: s.desk.bulletin, id: id, ending: s.desk.ending, send: func(m encoded) error {
		return patiently(ctx, streamPatience, "read", func() error { return stream.SendMsg(m) })
	}}
	return w.run(ctx)
}

// watch is one caller's.
type watch struct {
	bulletin *bulletin
	id       Identity
	ending   <-chan struct{} // of this node
	send     func(encoded) error
	told     ConfigView
	beat     *time.Timer // since the last message
}

func (w *watch) run(ctx context.Context) error {
	w.beat = time.NewTimer(watchHeartbeat)
	defer w.beat.Stop()
	for {
		s, changed, err := w.bulletin.newest()
		if err != nil {
			return err
		}
		if err := w.counts(ctx); err != nil {
			return err
		}
		if err := w.tell(s); err != nil {
			return brokenOff(err)
		}
		if err := w.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// counts says why the caller may not be told anything more.
func (w *watch) counts(ctx context.Context) error {
	if w.id.valid == nil {
		return nil
	}
	return w.id.valid(ctx)
}

// alive tells that nothing has changed.
func (w *watch) alive(ctx context.Context) error {
	if err := cmp.Or(w.counts(ctx), w.bulletin.confirmed()); err != nil {
		return err
	}
	m, err := proto.Marshal(&quoratev1.WatchConfigResponse{ClusterId: w.bulletin.cluster})
	if err != nil {
		return quotaerr.Wrap(quotaerr.Internal, err, "")
	}
	if err := w.say(m); err != nil {
		return brokenOff(err)
	}
	return nil
}

func (w *watch) say(m encoded) error {
	err := w.send(m)
	w.beat.Reset(watchHeartbeat)
	return err
}

// tell sends what differs from what was told before.
func (w *watch) tell(s sheet) error {
	var messages []encoded
	if s.view.Map != w.told.Map {
		messages = append(messages, s.routes...)
	}
	if s.view.Policy != w.told.Policy {
		messages = append(messages, s.settings...)
	}
	for _, m := range messages {
		if err := w.say(m); err != nil {
			return err
		}
	}
	w.told = s.view
	return nil
}

// wait waits for a change and until the last one is long enough ago. What has changed meanwhile is told as one.
func (w *watch) wait(ctx context.Context, changed <-chan struct{}) error {
	rest := time.NewTimer(watchInterval + rand.N(watchJitter))
	defer rest.Stop()
	rested := false
	for {
		select {
		case <-rest.C:
			if changed == nil {
				return nil
			}
			rested = true
		case <-changed:
			changed = nil
			if rested {
				rest.Reset(rand.N(watchJitter))
			}
		case <-w.beat.C:
			if err := w.alive(ctx); err != nil {
				return err
			}
		case <-w.ending:
			return quotaerr.New(quotaerr.NotLeader, "this node is stopping: watch another")
		case <-ctx.Done():
			return brokenOff(ctx.Err())
		}
	}
}
