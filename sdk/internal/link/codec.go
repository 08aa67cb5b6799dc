package link

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"

	"github.com/quorate/quorate/sdk/internal/bound"
)

// codec has a CheckStream send frames that are encoded already, and decode answers where they lie: what goes over the
// wire is protobuf all the same, and is called so.
type codec struct{}

var _ encoding.CodecV2 = codec{}

// Name is that of the format.
func (codec) Name() string { return proto.Name }

// Marshal hands a frame over, which the library frees when it was sent.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(mem.Buffer)
	if !ok {
		return nil, fmt.Errorf("a stream of checks sends frames, and not %T", v)
	}
	return mem.BufferSlice{f}, nil
}

// Unmarshal decodes a frame of answers.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*inbox)
	if !ok {
		return fmt.Errorf("a stream of checks receives frames, and not %T", v)
	}
	return f.take(data)
}

// inbox is where a stream's answers come in, frame after frame.
type inbox struct {
	decoder decoder
	frame   mem.Buffer // that the answers lie in; nil between two frames
	answers []answer
}

func (i *inbox) take(data mem.BufferSlice) (err error) {
	i.free()
	i.frame = data.MaterializeToBuffer(mem.DefaultBufferPool())
	i.answers, err = i.decoder.decode(i.frame.ReadOnlyData())
	return err
}

// free gives the frame's memory back. Its answers are not valid any more.
func (i *inbox) free() {
	if i.frame != nil {
		i.frame.Free()
		i.frame, i.answers = nil, nil
	}
}

// frames are the buffers of frames that were sent, to be used again.
type frames struct{ pool sync.Pool }

var _ mem.BufferPool = (*frames)(nil)

// firstFrameBytes is what a frame has room for before it has to grow.
const firstFrameBytes = 4 << 10

// Get is a buffer; its length is n.
func (f *frames) Get(n int) *[]byte {
	if b, ok := f.pool.Get().(*[]byte); ok && cap(*b) >= n {
		*b = (*b)[:n]
		return b
	}
	b := make([]byte, n, max(n, firstFrameBytes))
	return &b
}

// Put takes a buffer back.
func (f *frames) Put(b *[]byte) {
	if cap(*b) <= 2*bound.FrameBytes {
		f.pool.Put(b)
	}
}
