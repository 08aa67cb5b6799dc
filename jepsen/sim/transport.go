package sim

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/partition/group"
)

// transport is what a replica's Raft sends and receives by.
type transport struct {
	*network
	life     *life
	self     group.Member
	timeout  time.Duration
	requests chan raft.RPC
	closed   chan struct{}
	once     sync.Once
	hangups  chan raft.ServerID

	heartbeat func(raft.RPC) // guarded by the network's mu
	dark      bool           // its machine has no power; guarded by the network's mu
}

var _ group.Transport = (*transport)(nil)

func (t *transport) Consumer() <-chan raft.RPC     { return t.requests }
func (t *transport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.self.Addr) }

func (t *transport) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte { return []byte(a) }
func (t *transport) DecodePeer(b []byte) raft.ServerAddress                  { return raft.ServerAddress(b) }

// SetHeartbeatHandler takes heartbeats away from the queue, as Raft's network transport does.
func (t *transport) SetHeartbeatHandler(f func(raft.RPC)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.heartbeat = f
}

func (t *transport) Close() error {
	t.once.Do(func() {
		close(t.closed)
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.at[t.self.Addr] == t {
			delete(t.at, t.self.Addr)
		}
	})
	return nil
}

// Hangups delivers the replicas whose processes have ended.
func (t *transport) Hangups() <-chan raft.ServerID { return t.hangups }

// Absent reports whether nobody listens at the target, and its machine says so.
func (t *transport) Absent(id raft.ServerID, target raft.ServerAddress) bool {
	t.life.breathe()
	t.mu.Lock()
	to := t.at[string(target)]
	node, _, _ := strings.Cut(string(id), "@")
	l, back := t.link(t.self.ID, node), t.link(node, t.self.ID)
	gone := (to == nil || to.life.over() && !to.dark) && !l.cut && !back.cut
	wait := t.takes(l) + t.takes(back)
	t.mu.Unlock()
	return t.pass(wait) && gone
}

// is reports whether the transport is that of the replica with Raft's id.
func (t *transport) is(id raft.ServerID) bool {
	return string(id) == t.self.ID || string(id) == t.self.ID+"@"+t.self.Instance
}

// reply is what came of a request.
type reply struct {
	response any
	err      error
}

// send puts a request on its way; the reply comes on the channel, if it does. after, if set, is closed when
// the request may be delivered; the channel that is returned is closed when it was, or never will be.
func (t *transport) send(id raft.ServerID, target raft.ServerAddress, command any, snapshot []byte,
	after <-chan struct{},
) (replies <-chan reply, delivered <-chan struct{}) {
	t.life.breathe()
	p := t.pack(id, target, command, snapshot)
	out, done := make(chan reply, 1), make(chan struct{})
	if p.to == nil {
		close(done)
		out <- reply{err: errRefused}
		return out, done
	}
	t.flights.Go(func() {
		var once sync.Once
		taken := func() { once.Do(func() { close(done) }) }
		defer taken()
		if p.lost || !t.pass(p.delay) {
			return
		}
		if after != nil {
			select {
			case <-after:
			case <-t.done:
				return
			}
		}
		t.carry(p, taken, out)
	})
	if p.again > 0 {
		t.flights.Go(func() {
			if t.pass(p.again) {
				p.to.serve(p, func() {})
			}
		})
	}
	return out, done
}

// carry delivers a packet and brings back the answer.
func (t *transport) carry(p *packet, taken func(), out chan<- reply) {
	r, ok := p.to.serve(p, taken)
	if !ok {
		out <- reply{err: errRefused}
		return
	}
	if t.answered != nil {
		t.answered(p, r.response)
	}
	if p.answerLost || !t.pass(p.answerDelay) {
		return
	}
	t.mu.Lock()
	cut := t.link(p.to.self.ID, t.self.ID).cut
	t.mu.Unlock()
	if !cut {
		out <- r
	}
}

// pack decides how a request fares.
func (t *transport) pack(id raft.ServerID, target raft.ServerAddress, command any, snapshot []byte) *packet {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := &packet{from: t, command: copied(command), snapshot: snapshot}
	if to := t.at[string(target)]; to != nil && to.is(id) && !to.life.over() {
		p.to = to
	}
	if t.seen != nil {
		t.seen(p)
	}
	if p.to == nil {
		return p
	}
	l := t.link(t.self.ID, p.to.self.ID)
	p.delay, p.answerDelay = t.takes(l), t.takes(l)+l.held
	p.lost = l.cut || t.rng.Float64() < l.loss
	p.answerLost = t.rng.Float64() < l.answerLoss
	if !l.cut && t.rng.Float64() < l.repeats && snapshot == nil {
		p.again = p.delay + time.Duration(t.rng.Int64N(int64(3*time.Second)))
	}
	if t.tap != nil {
		t.tap(p)
	}
	return p
}

// serve is the receiving connection: heartbeats go to the handler if there is one, all else to Raft's queue.
func (t *transport) serve(p *packet, taken func()) (reply, bool) {
	answer := make(chan raft.RPCResponse, 1)
	r := raft.RPC{Command: copied(p.command), RespChan: answer}
	if p.snapshot != nil {
		r.Reader = bytes.NewReader(p.snapshot)
	}
	t.mu.Lock()
	handler := t.heartbeat
	t.mu.Unlock()
	if t.life.over() {
		return reply{}, false
	}
	if handler != nil && isHeartbeat(p.command) {
		taken()
		handler(r)
	} else {
		select {
		case t.requests <- r:
			taken()
		case <-t.closed:
			return reply{}, false
		case <-t.life.dead:
			return reply{}, false
		}
	}
	select {
	case a := <-answer:
		if a.Error != nil {
			return reply{err: errors.New(a.Error.Error())}, true
		}
		return reply{response: a.Response}, true
	case <-t.closed:
		return reply{}, false
	case <-t.life.dead:
		return reply{}, false
	}
}

// ask sends a request and waits for the answer.
func ask[T any](
	t *transport, id raft.ServerID, target raft.ServerAddress, command any, snapshot []byte, into *T,
) error {
	replies, _ := t.send(id, target, command, snapshot, nil)
	return await(t, replies, t.timeout, into)
}

func await[T any](t *transport, replies <-chan reply, limit time.Duration, into *T) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-replies:
		if r.err != nil {
			return r.err
		}
		*into = *r.response.(*T)
		return nil
	case <-timer.C:
		return errCut
	case <-t.closed:
		return errRefused
	case <-t.life.dead:
		return errRefused
	}
}

func (t *transport) AppendEntries(id raft.ServerID, target raft.ServerAddress,
	args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	return ask(t, id, target, args, nil, resp)
}

func (t *transport) RequestVote(id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse,
) error {
	return ask(t, id, target, args, nil, resp)
}

func (t *transport) RequestPreVote(id raft.ServerID, target raft.ServerAddress,
	args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse,
) error {
	return ask(t, id, target, args, nil, resp)
}

func (t *transport) InstallSnapshot(id raft.ServerID, target raft.ServerAddress,
	args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader,
) error {
	b, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	return ask(t, id, target, args, append([]byte{}, b...), resp)
}

func (t *transport) TimeoutNow(id raft.ServerID, target raft.ServerAddress,
	args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse,
) error {
	return ask(t, id, target, args, nil, resp)
}
