package sim

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// pipelined is the room in each channel of a pipeline: none, as in Raft's own for two requests on their
// way.
const pipelined = 0

// pipeline is one connection with several AppendEntries on their way, answered in order.
type pipeline struct {
	t      *transport
	id     raft.ServerID
	target raft.ServerAddress
	sent   chan *future
	out    chan raft.AppendFuture
	closed chan struct{}
	once   sync.Once
	loop   sync.WaitGroup
	last   <-chan struct{} // closed when the request before was delivered
}

var _ raft.AppendPipeline = (*pipeline)(nil)

// future is a request of a pipeline.
type future struct {
	start   time.Time
	args    *raft.AppendEntriesRequest
	resp    *raft.AppendEntriesResponse
	replies <-chan reply
	done    chan struct{}
	err     error
}

var _ raft.AppendFuture = (*future)(nil)

func (f *future) Error() error {
	<-f.done
	return f.err
}
func (f *future) Start() time.Time                      { return f.start }
func (f *future) Request() *raft.AppendEntriesRequest   { return f.args }
func (f *future) Response() *raft.AppendEntriesResponse { return f.resp }

// AppendEntriesPipeline opens a pipeline.
func (t *transport) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress,
) (raft.AppendPipeline, error) {
	t.life.breathe()
	p := &pipeline{
		t: t, id: id, target: target, sent: make(chan *future, pipelined),
		out: make(chan raft.AppendFuture, pipelined), closed: make(chan struct{}),
	}
	p.loop.Go(p.receive)
	return p, nil
}

func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) (raft.AppendFuture, error) {
	f := &future{start: time.Now(), args: args, resp: resp, done: make(chan struct{})}
	f.replies, p.last = p.t.send(p.id, p.target, args, nil, p.last)
	select {
	case p.sent <- f:
		return f, nil
	case <-p.closed:
		return nil, raft.ErrPipelineShutdown
	case <-p.t.life.dead:
		return nil, raft.ErrPipelineShutdown
	}
}

func (p *pipeline) receive() {
	for {
		select {
		case f := <-p.sent:
			f.err = await(p.t, f.replies, p.t.timeout, f.resp)
			close(f.done)
			select {
			case p.out <- f:
			case <-p.closed:
				return
			}
		case <-p.closed:
			return
		}
	}
}

func (p *pipeline) Consumer() <-chan raft.AppendFuture { return p.out }

func (p *pipeline) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}
