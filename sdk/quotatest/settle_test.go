package quotatest

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Shows in virtual time that a change does not return before an open watch was sent it, that it does when the watch is
// told or over, and that it says so after ten seconds if neither comes.
func TestSettle(t *testing.T) {
	const text = "version: v1\ndefault: {limits: [{name: d, limit: 1, window: 60s}]}\n"
	synctest.Test(t, func(t *testing.T) {
		s := Start(t, text, InMemory())
		var w *watcher
		for name, end := range map[string]func(){
			"told": func() { s.toldWatch(w, s.told) }, "over": func() { s.leave(w) },
		} {
			w = s.attend(s.nodes[0])
			done := make(chan error, 1)
			go func() { done <- s.Apply(text) }()
			synctest.Wait()
			select {
			case err := <-done:
				t.Errorf("%s: it returned before: %v", name, err)
			default:
			}
			end()
			if err := <-done; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			s.leave(w)
		}
		w = s.attend(s.nodes[0])
		defer s.leave(w)
		begun := time.Now()
		if err := s.Apply(text); err == nil || !strings.Contains(err.Error(), "1 watches") || time.Since(begun) != settleWithin {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}
