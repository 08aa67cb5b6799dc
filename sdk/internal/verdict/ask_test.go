package verdict

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/sdk"
	"github.com/quorate/quorate/sdk/caller"
)

// slow allows after a second, unless the context ends.
type slow struct{}

func (slow) CheckAll(ctx context.Context, identities []sdk.Identity) (sdk.Decisions, error) {
	select {
	case <-time.After(time.Second):
		all := make([]sdk.Decision, len(identities))
		for i := range all {
			all[i] = sdk.Decision{Allowed: true, Source: sdk.SourceOwner}
		}
		return sdk.Decisions{Allowed: true, Denied: -1, Decisions: all}, nil
	case <-ctx.Done():
		return sdk.Decisions{}, ctx.Err()
	}
}

// Shows that a caller's deadline does not end his check, since it would then be he who chooses when the failure mode
// decides; and that his going away does.
func TestCallersDeadline(t *testing.T) {
	key := caller.KeyFunc(func(*caller.Request) (string, error) { return "acme", nil })
	synctest.Test(t, func(t *testing.T) {
		soon, stop := context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		began := time.Now()
		if _, refusal := Ask(soon, slow{}, caller.Limit("convert", key), &caller.Request{}); refusal != nil ||
			time.Since(began) != time.Second {
			t.Errorf("%+v after %s", refusal, time.Since(began))
		}
		gone, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, leave)
		began = time.Now()
		_, refusal := Ask(gone, slow{}, caller.Limit("convert", key), &caller.Request{})
		if refusal == nil || !errors.Is(refusal.Cause, context.Canceled) || time.Since(began) != time.Millisecond {
			t.Errorf("%+v after %s", refusal, time.Since(began))
		}
	})
}

// Shows that an error of several lines is told in one, and is the same error in every other respect; and that one of one
// line is left as it is.
func TestOneLine(t *testing.T) {
	one := errors.New("away")
	if OneLine(one) != one { //nolint:errorlint // it is to be the very same
		t.Error("an error of one line is another")
	}
	got := OneLine(errors.Join(one, errors.New("and\r\nthe other")))
	if got.Error() != "away; and; the other" || !errors.Is(got, one) {
		t.Errorf("%q", got)
	}
}
