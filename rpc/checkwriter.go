package rpc

import (
	"context"
	"runtime"

	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// write sends answers until there are none to come, or one cannot be sent. It runs beside run, since a frame takes as
// long as its reader does: whoever waits for it must be able to go.
func (c *checkStream) write(ctx context.Context) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = caught(ctx, c.desk.metrics, c.log, p)
		}
	}()
	for {
		f, last := c.next()
		switch {
		case last:
			return c.why // which does not change once the stream is closed
		case f.answers > 0:
			c.patience.Reset(streamPatience)
			err := c.send(f.message)
			c.patience.Stop()
			if err != nil {
				return lost(err)
			}
			if !c.sent(f) {
				return nil // nobody waits for it
			}
		default:
			select {
			case <-c.wake:
				// What was decided together is answered at the same moment: let those answers get in line as well.
				runtime.Gosched()
			case <-ctx.Done():
				return brokenOff(ctx.Err())
			}
		}
	}
}

// lost is what a stream ends with whose answers are lost: none that is missing says that nothing was consumed.
func lost(err error) error {
	return quotaerr.Wrap(quotaerr.OutcomeUnknown, err, "answers could not be sent, or were not read in time")
}

// interrupted is what the stream ends with when its context has.
func (c *checkStream) interrupted(cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending {
		return lost(quotaerr.Wrap(quotaerr.Overloaded, cause, "the transfer was broken off, or its time is up"))
	}
	return brokenOff(cause)
}

// put lines an answer up to be sent. granted: its check was.
func (c *checkStream) put(a *quoratev1.StreamedAnswer, granted bool) {
	message := appendAnswer(nil, a)
	c.mu.Lock()
	c.line(a.GetSequence(), granted, 1, func(to []byte) []byte { return append(to, message...) })
	c.mu.Unlock()
	signal(c.wake)
}

// typicalAnswerBytes is about what an answer takes that has a limit.
const typicalAnswerBytes = 160

// line lines the answer up that encode appends, one of several that come now. It needs mu.
func (c *checkStream) line(sequence uint64, granted bool, several int, encode func(to []byte) []byte) {
	n := len(c.ready) - 1
	if n < 0 || c.ready[n].answers >= MaxFrameChecks {
		c.ready = append(c.ready, answerFrame{})
		n++
	}
	f := &c.ready[n]
	before := len(f.message)
	room := min(several*typicalAnswerBytes, MaxFrameBytes-before)
	f.message = encode(withRoom(f.message, room))
	if len(f.message) > MaxFrameBytes && before > 0 { // it begins another
		answer := f.message[before:]
		f.message = f.message[:before]
		c.ready = append(c.ready, answerFrame{message: append(withRoom(nil, len(answer)), answer...)})
		f, before = &c.ready[n+1], 0
	}
	f.answers++
	if granted {
		f.granted++
	}
	c.unsent += len(f.message) - before
	delete(c.open, sequence)
}

// next is the next frame to send, with answers; without, there is none at present. last: and there never will be.
func (c *checkStream) next() (f answerFrame, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sending = len(c.ready) > 0; !c.sending {
		return f, c.closed && len(c.open) == 0
	}
	f, c.ready[0] = c.ready[0], answerFrame{}
	c.ready = c.ready[1:]
	return f, false
}

// sent makes room for what a frame that has left was in the way of. It is false when the stream has ended meanwhile.
func (c *checkStream) sent(f answerFrame) bool {
	c.mu.Lock()
	if c.over {
		c.mu.Unlock()
		return false
	}
	c.unsent -= len(f.message)
	c.granted -= f.granted
	c.mu.Unlock()
	c.desk.streamed.giveBack(c.who, f.granted)
	c.desk.metrics.frames.WithLabelValues("out").Inc()
	signal(c.room)
	return true
}

// giveBack gives back what was granted, since no answers leave any more.
func (c *checkStream) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.desk.streamed.giveBack(c.who, c.granted)
}
