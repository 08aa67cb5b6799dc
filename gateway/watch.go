package gateway

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// watch cuts a request off when it takes too long, wherever it hangs.
type watch struct {
	cancel context.CancelCauseFunc
	rc     *http.ResponseController
	body   *body // nil without one

	mu   sync.Mutex // guards the fields below
	idle time.Duration
	bark *time.Timer // nil before the answer has begun, and after the end
}

type watchKey struct{}

func watchOf(ctx context.Context) *watch {
	return ctx.Value(watchKey{}).(*watch) // pass puts it there
}

// cut ends the request for a cause: what waits for the upstream, what reads from the caller, and, once the answer has
// begun, what writes to him.
func (w *watch) cut(cause error) {
	w.cancel(cause)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.body != nil && !w.body.ended.Load() {
		_ = w.rc.SetReadDeadline(time.Now()) // fails when the connection is gone
	}
	if w.bark != nil {
		_ = w.rc.SetWriteDeadline(time.Now()) // likewise
	}
}

// begin is called when the answer begins: from now on touch must be called again and again.
func (w *watch) begin(idle time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle, w.bark = idle, time.AfterFunc(idle, func() { w.cut(errIdle) })
}

func (w *watch) touch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bark != nil {
		w.bark.Reset(w.idle)
	}
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bark != nil {
		w.bark.Stop()
		w.bark = nil
	}
}

// body is a request's body on its way.
type body struct {
	io.ReadCloser
	watch *watch // nil before it is known where the request goes
	// ended: there is nothing more to read; complete: for there was no error.
	ended, complete atomic.Bool
}

// Read reads.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.complete.Store(errors.Is(err, io.EOF))
		b.ended.Store(true)
	}
	if n > 0 && b.watch != nil {
		b.watch.touch()
	}
	return n, err
}

// leave is called when the request is answered. net/http reads what is left of a body, to find the next request behind
// it: it is to wait for that no longer than for headers.
func (b *body) leave(w http.ResponseWriter, within time.Duration) {
	if !b.ended.Load() {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(within)) // fails when the connection is gone
	}
}
