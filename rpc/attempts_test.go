package rpc

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/identity"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// notebook notes what an Admin is told of refused attempts.
type notebook struct {
	mu    sync.Mutex // guards the rest
	lines []string
}

func (b *notebook) attempt(_ context.Context, who Actor, method, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, fmt.Sprintf("%s %s %s %s", who.Name, who.Role, lastOf(method), reason))
}

func (b *notebook) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.lines
	b.lines = nil
	return out
}

// Shows over real TLS, for a viewer, a gateway and another node, that every operator's call that changes something
// is refused, reaches nobody, and is noted once, with who tried what; and that what they may not read, or are
// allowed to, is not noted.
func TestRefusedAttemptsAreNoted(t *testing.T) {
	ca := mustCA(t, tlsCluster)
	backend := allowing()
	var book notebook
	backend.admin.attempt = book.attempt
	n := mustSecure(t, ca, "n1", backend)
	for _, role := range []identity.Role{identity.Viewer, identity.Gateway, identity.Node} {
		changes := 0
		for _, m := range methodsOf(n.Server) {
			if access[m] != accessChange {
				continue
			}
			changes++
			who := fmt.Sprintf("x%d", changes)
			err := callEmpty(t, mustDial(t, n.grpcAddr, ca.must(t, role, who)), m)
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s calls %s: %v", role, m, err)
			}
			mustEqual(t, book.take(), []string{fmt.Sprintf("%s/%s %s %s permission_denied", role, who, role, lastOf(m))})
		}
		if changes < 13 {
			t.Errorf("only %d methods change something", changes)
		}
	}
	gateway := mustDial(t, n.grpcAddr, ca.must(t, identity.Gateway, "g"))
	if err := callEmpty(t, gateway, quoratev1.Admin_ListNodes_FullMethodName); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a gateway reads: %v", err)
	}
	admin := mustDial(t, n.grpcAddr, ca.must(t, identity.Admin, "a"))
	for range 2 * attemptsNoted {
		if err := callEmpty(t, admin, quoratev1.Admin_AddNode_FullMethodName); err != nil {
			t.Errorf("an admin: %v", err)
		}
	}
	if got := book.take(); len(got) != 0 {
		t.Errorf("noted: %v", got)
	}
	if got := len(backend.admin.asked()); got != 2*attemptsNoted {
		t.Errorf("%d calls reached the backend", got)
	}
}

// Shows that of one actor's refused attempts ten a minute are noted and the rest counted, that others are not kept
// from being noted thereby, and that the actors that are kept count of are bounded.
func TestAttemptsAreBounded(t *testing.T) {
	admin := &fakeAdmin{}
	var book notebook
	admin.attempt = book.attempt
	m := newMetrics()
	a := newAttempts(func() Admin { return admin }, m)
	now := time.Unix(1e9, 0)
	a.now = func() time.Time { return now }
	refused := quotaerr.New(quotaerr.PermissionDenied, "")
	flood := func(who string) int {
		for range 3 * attemptsNoted {
			a.note(t.Context(), Actor{Name: who}, quoratev1.Admin_AddNode_FullMethodName, refused)
		}
		return len(book.take())
	}
	for i := range 2 * maxAttemptActors {
		want := attemptsNoted
		if i >= maxAttemptActors {
			want = 0
		}
		if got := flood(fmt.Sprint(i)); got != want {
			t.Fatalf("actor %d: %d are noted, want %d", i, got, want)
		}
	}
	now = now.Add(attemptWindow - 1)
	if got := flood("0"); got != 0 {
		t.Errorf("%d more within the minute", got)
	}
	now = now.Add(1)
	if got := flood("0"); got != attemptsNoted {
		t.Errorf("%d in the next minute", got)
	}
}

// Shows that noting does not hold a refusal for longer than its bound, is not ended by a caller that hangs up, and
// that attempts beyond those being noted at once are counted and not waited for.
func TestNotingIsNotWaitedFor(t *testing.T) {
	admin := &fakeAdmin{}
	hold := make(chan struct{})
	var ends sync.Map
	admin.attempt = func(ctx context.Context, who Actor, _, _ string) {
		end, bounded := ctx.Deadline()
		ends.Store(who.Name, bounded && time.Until(end) <= attemptTimeout && ctx.Err() == nil)
		<-hold
	}
	a := newAttempts(func() Admin { return admin }, newMetrics())
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var all sync.WaitGroup
	for i := range maxAttemptsAside {
		all.Go(func() { a.note(gone, Actor{Name: fmt.Sprint(i)}, "/x/Y", nil) })
	}
	eventually(t, "all are being noted", func() bool { return len(a.busy) == maxAttemptsAside })
	a.note(gone, Actor{Name: "one more"}, "/x/Y", nil) // returns
	close(hold)
	all.Wait()
	count := 0
	ends.Range(func(who, bounded any) bool {
		count++
		if bounded != true {
			t.Errorf("%s: no bound, or ended", who)
		}
		return true
	})
	if count != maxAttemptsAside {
		t.Errorf("%d were noted", count)
	}
}
