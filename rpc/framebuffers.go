package rpc

import (
	"slices"
	"sync"

	"google.golang.org/grpc/mem"
)

// frameBuffers are buffers for frames, which are used again once their frame was read, or has left. They hold about
// what a check takes in its frame and its answer in another, so without them a third of the garbage of a streamed
// check would be theirs. They are not cleared, as the library's own would be, whose size above 32 KiB is 1 MiB.
type frameBuffers struct{ free sync.Pool }

var framePool mem.BufferPool = &frameBuffers{}

// Get returns a buffer of numBytes, with anything in it.
func (p *frameBuffers) Get(numBytes int) *[]byte {
	b, ok := p.free.Get().(*[]byte)
	if !ok {
		b = new([]byte)
	}
	*b = slices.Grow((*b)[:0], numBytes)[:numBytes]
	return b
}

// Put takes a buffer back. One that is larger than a frame may be is left to the garbage collector.
func (p *frameBuffers) Put(b *[]byte) {
	if cap(*b) <= 2*MaxFrameBytes {
		p.free.Put(b)
	}
}

// passing is a message that is encoded already, in a buffer of framePool, which goes back when the message has left.
type passing []byte

func (m passing) buffer() mem.Buffer {
	b := []byte(m)
	return mem.NewBuffer(&b, framePool)
}
