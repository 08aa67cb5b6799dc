package gateway

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// errLate is the cause for which a request is cut off whose body the gateway waits for.
var errLate = errors.New("the request's body did not come in time")

// upload is a request's body as it comes from the caller. It knows what is his fault.
type upload struct {
	io.ReadCloser
	waiting atomic.Bool           // for the caller to send more
	failed  atomic.Pointer[error] // what reading it failed for
}

// Read reads. What it fails for is known before it returns.
func (u *upload) Read(p []byte) (int, error) {
	u.waiting.Store(true)
	n, err := u.ReadCloser.Read(p)
	u.waiting.Store(false)
	if err != nil && !errors.Is(err, io.EOF) {
		u.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

// upload is the request's body; nil when there is none.
func (w *watch) upload() *upload {
	if w.body == nil {
		return nil
	}
	return w.body.ReadCloser.(*upload) // pass puts it there
}

// blame is the cause for a request to be cut off as it has taken too long: upstream, unless the caller is waited for.
func (w *watch) blame(upstream error) error {
	if u := w.upload(); u != nil && u.waiting.Load() {
		return errLate
	}
	return upstream
}

// fault is what the caller is told when his own body is why the upstream did not answer; status is 0 when it is not.
func (a *answer) fault(r *http.Request, cause error) (status int, reason, detail string) {
	var failed error
	if u := watchOf(r.Context()).upload(); u != nil {
		if err := u.failed.Load(); err != nil {
			failed = *err
		}
	}
	var large *http.MaxBytesError
	broken := a.conn != nil && a.conn.Fault() != nil
	switch {
	case errors.As(failed, &large):
		return http.StatusRequestEntityTooLarge, refusedBody, "the body is too large"
	case errors.Is(cause, errLate):
		return http.StatusRequestTimeout, refusedLate, "the body did not come in time"
	case broken, cause == nil && failed != nil: // otherwise reading it failed as the request is cut off
		return http.StatusBadRequest, refusedBroken, "the body is malformed, or shorter than was said"
	}
	return 0, "", ""
}
