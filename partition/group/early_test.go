package group

import (
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/partition/storage"
)

// slowDisk is a disk whose log takes appends only while it is not held.
type slowDisk struct {
	storage.Disk
	held atomic.Pointer[chan struct{}] // nil: not held
}

func (d *slowDisk) Log(readOnly bool) (storage.LogBackend, error) {
	b, err := d.Disk.Log(readOnly)
	if err != nil {
		return nil, err
	}
	return slowLog{b, d}, nil
}

// hold holds the log until what it returns is called.
func (d *slowDisk) hold() (release func()) {
	c := make(chan struct{})
	d.held.Store(&c)
	return func() {
		d.held.Store(nil)
		close(c)
	}
}

type slowLog struct {
	storage.LogBackend
	disk *slowDisk
}

func (l slowLog) StoreLogs(logs []*raft.Log) error {
	if c := l.disk.held.Load(); c != nil {
		<-*c
	}
	return l.LogBackend.StoreLogs(logs)
}

func (l slowLog) StoreLog(e *raft.Log) error { return l.StoreLogs([]*raft.Log{e}) }

// slowCluster is a cluster of voters whose disks can be held, by node.
func slowCluster(t *testing.T, voters int) (cluster, map[string]*slowDisk) {
	disks := map[string]*slowDisk{}
	c := newCluster(t, voters, voters, func(c *Config) {
		disks[c.Self.ID] = &slowDisk{Disk: c.Disk}
		c.Disk = disks[c.Self.ID]
	})
	c.mustPropose(t, "warm", 3, 64)
	return c, disks
}

// Shows that the followers write an entry while the leader's disk still does, and that it is committed only when the
// leader's disk has it as well, although they are a majority and have acknowledged it.
func TestEarlyCommit(t *testing.T) {
	c, disks := slowCluster(t, 3)
	leader := c.leader(t)
	release := disks[leader.self.ID].hold()
	p := leader.Propose(make([]byte, 64))
	index := leader.Status().LastIndex
	eventually(t, "the entry is in the leader's memory", func() bool {
		index = leader.Status().LastIndex
		return index > leader.Status().CommitIndex
	})
	followers := c.without(leader)
	eventually(t, "the followers have acknowledged it", func() bool {
		return leader.Acknowledged(followers[0].self).Index >= index && leader.Acknowledged(followers[1].self).Index >= index
	})
	for _, f := range followers { // all that was on its way has come
		heard := leader.Heard(f.self)
		eventually(t, "two heartbeats more", func() bool { return leader.Heard(f.self).Sub(heard) > 50*time.Millisecond })
	}
	if commit := leader.Status().CommitIndex; commit >= index {
		t.Errorf("entry %d is committed, up to %d, before the leader has it on its disk", index, commit)
	}
	select {
	case <-p.Done():
		t.Error("the proposal has ended")
	default:
	}
	release()
	<-p.Done()
	if _, err := p.Result(); err != nil {
		t.Error(err)
	}
	c.agree(t, 4)
}

// Shows that a leader which is a majority alone waits for its disk.
func TestEarlyAlone(t *testing.T) {
	c, disks := slowCluster(t, 1)
	if c[0].early() {
		t.Error("its appends may return early")
	}
	release := disks["a"].hold()
	p := c[0].Propose(make([]byte, 64))
	select {
	case <-p.Done():
		t.Error("the entry is committed and on no disk")
	case <-time.After(100 * time.Millisecond):
	}
	release()
	<-p.Done()
	if _, err := p.Result(); err != nil {
		t.Error(err)
	}
}

// Shows that a replica which led hands Raft no request with entries before its own are on its disk, and answers
// with an error when they never will be; heartbeats pass.
func TestEarlyDeposed(t *testing.T) {
	for name, failure := range map[string]error{"durable": nil, "failed": errors.New("input/output error")} {
		t.Run(name, func(t *testing.T) {
			own := &behindReplica{release: make(chan error), asked: make(chan uint64, 1)}
			inner := &fedTransport{requests: make(chan raft.RPC)}
			g := newGuarded(inner, own)
			defer func() { must(t, g.Close()) }()
			answer := make(chan raft.RPCResponse, 1)
			inner.requests <- raft.RPC{Command: &raft.AppendEntriesRequest{}, RespChan: answer}
			<-g.Consumer()
			request := &raft.AppendEntriesRequest{Entries: []*raft.Log{{Index: 1}}}
			inner.requests <- raft.RPC{Command: request, RespChan: answer}
			if index := <-own.asked; index != math.MaxUint64 {
				t.Errorf("it waits for entry %d, want all", index)
			}
			select {
			case <-g.Consumer():
				t.Fatal("the request was delivered")
			default:
			}
			own.release <- failure
			if failure == nil {
				if r := <-g.Consumer(); r.Command != request {
					t.Errorf("%+v was delivered", r.Command)
				}
			} else if r := <-answer; r.Error == nil {
				t.Errorf("the answer is %+v", r)
			}
		})
	}
}

// behindReplica is a replica whose entries are durable, or have failed to be, when release says so.
type behindReplica struct {
	blankReplica
	release chan error
	asked   chan uint64
}

func (b *behindReplica) durable(index uint64, _ <-chan struct{}) error {
	b.asked <- index
	return <-b.release
}

// fedTransport delivers what the test gives it.
type fedTransport struct {
	Transport
	requests chan raft.RPC
}

func (f *fedTransport) Consumer() <-chan raft.RPC { return f.requests }
func (f *fedTransport) Close() error              { return nil }
