package rpc

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// The sizes of buffers that are kept, as powers of two. The library keeps none of up to 1 KiB; the largest holds any
// frame.
const minFrameBits, maxFrameBits = 11, 18

// frameBuffers are buffers for frames, which are used again once their frame was read, or has left. They hold about
// what a check takes in its frame and its answer in another, so without them a third of the garbage of a streamed
// check would be theirs. They are not cleared, as the library's own would be, which is 1 MiB for all above 32 KiB.
type frameBuffers struct {
	free [maxFrameBits + 1]sync.Pool // by size; a frame that waits for its reader holds twice what it needs at most
}

var framePool mem.BufferPool = &frameBuffers{}

// Get returns a buffer of numBytes, with anything in it.
func (p *frameBuffers) Get(numBytes int) *[]byte {
	size := max(minFrameBits, bits.Len(uint(max(1, numBytes)-1)))
	if size > maxFrameBits {
		b := make([]byte, numBytes)
		return &b
	}
	b, ok := p.free[size].Get().(*[]byte)
	if !ok {
		made := make([]byte, 1<<size)
		b = &made
	}
	*b = (*b)[:numBytes]
	return b
}

// Put takes a buffer back. One of another size than those that are kept is left to the garbage collector.
func (p *frameBuffers) Put(b *[]byte) {
	size := bits.Len(uint(cap(*b))) - 1
	if size >= minFrameBits && size <= maxFrameBits {
		p.free[size].Put(b)
	}
}

// withRoom is a message in a buffer of framePool that has room for so many bytes more.
func withRoom(message []byte, numBytes int) []byte {
	if cap(message)-len(message) >= numBytes {
		return message
	}
	larger := append((*framePool.Get(len(message) + numBytes))[:0], message...)
	small := message // which alone goes to the heap, not each message that has room
	framePool.Put(&small)
	return larger
}

// passing is a message that is encoded already, in a buffer of framePool, which goes back when the message has left.
type passing []byte

func (m passing) buffer() mem.Buffer {
	b := []byte(m)
	return mem.NewBuffer(&b, framePool)
}
