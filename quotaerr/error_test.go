package quotaerr

import (
	"errors"
	"fmt"
	"testing"
)

// Shows that errors.Is compares reasons through wrapping, and tells different reasons apart.
func TestIsComparesReasons(t *testing.T) {
	err := fmt.Errorf("asking: %w", &Error{Reason: NotLeader, Leader: "n2", Message: "ask n2"})
	if !errors.Is(err, ErrNotLeader) {
		t.Fatal("a wrapped not_leader is not recognised")
	}
	if errors.Is(err, ErrNoQuorum) {
		t.Fatal("not_leader passes for no_quorum")
	}
	if got := As(err).Leader; got != "n2" {
		t.Fatalf("leader = %q, want n2", got)
	}
}

// Shows that an error without a reason, with a decision's reason, or of another type is internal
// and thus never an allow.
func TestNoReasonIsInternal(t *testing.T) {
	for _, err := range []error{&Error{}, &Error{Reason: Allowed}, errors.New("x"), (*Error)(nil)} {
		if got := ReasonOf(err); got != Internal {
			t.Errorf("%#v: reason %q, want internal", err, got)
		}
	}
	if got := ReasonOf(nil); got != "" {
		t.Errorf("nil has reason %q", got)
	}
}

// Shows that the cause reaches the text and the chain, and that names are unique and known.
func TestCauseAndNames(t *testing.T) {
	cause := errors.New("disk")
	err := Wrap(NoQuorum, cause, "no leader")
	if !errors.Is(err, cause) || err.Error() != "no_quorum: no leader: disk" {
		t.Fatalf("got %q", err)
	}
	seen := map[Reason]bool{}
	for _, r := range All() {
		if seen[r] || !r.Known() {
			t.Errorf("%q is declared twice or unknown", r)
		}
		seen[r] = true
	}
	if Reason("bogus").Known() {
		t.Error("bogus is known")
	}
}
