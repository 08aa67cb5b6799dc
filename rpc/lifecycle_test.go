package rpc

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/fsm"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// Shows that a hundred callers with names, classes, tiers and ids of their own add no series to
// /metrics, and that none of their names is in it.
func TestCallersAddNoSeries(t *testing.T) {
	n := mustNode(t, "n1", allowing())
	quota := quoratev1.NewQuotaClient(n.conn)
	stream := mustStream(t, n.conn)
	ask := func(i int) {
		name := func(kind string) string { return fmt.Sprintf("zz%s%d", kind, i) }
		_, err := quota.CheckAndConsume(within(t, 5*time.Second), &quoratev1.CheckRequest{
			Principal: name("p"), ApiClass: name("c"), DecisionId: name("d"), Tier: name("t"),
			Also: []*quoratev1.Charge{{ApiClass: name("a")}}})
		if err != nil {
			t.Fatal(err)
		}
		mustSend(t, stream, &quoratev1.StreamedCheck{Check: &quoratev1.CheckRequest{
			Principal: name("p"), ApiClass: name("c"), DecisionId: name("d"), Tier: name("t")}})
		mustAnswers(t, stream, 1)
		body := fmt.Sprintf(`{"principal":%q,"api_class":%q,"decision_id":%q,"tier":%q}`,
			name("p"), name("c"), name("d"), name("t"))
		if r := n.mustPost(t, body); r.status != 200 {
			t.Fatalf("HTTP %d", r.status)
		}
		n.mustPost(t, fmt.Sprintf(`{%q:1}`, name("field")))
	}
	scrape := func() (string, int) {
		text := n.mustDo(t, "GET", "/metrics", nil).body
		return text, len(regexp.MustCompile(`(?m)^quorate_`).FindAllString(text, -1))
	}
	ask(0)
	_, before := scrape()
	for i := 1; i <= 100; i++ {
		ask(i)
	}
	text, after := scrape()
	if before == 0 || after != before {
		t.Errorf("%d series after one caller, %d after a hundred more", before, after)
	}
	if strings.Contains(text, "zz") {
		t.Error("/metrics shows a caller's name")
	}
	for _, want := range []string{`quorate_decisions_total{outcome="allowed",reason="allowed"} 303`,
		`quorate_decisions_total{outcome="allowed"`} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}
}

// Shows that a node which is not ready says so line by line, and is alive all the same.
func TestNotReadyIsExplained(t *testing.T) {
	n := mustNode(t, "n1", allowing(), func(c *Config) {
		c.Ready = func() []Condition {
			return []Condition{{Name: "partition p1", Ready: true, Detail: "led by n1"},
				{Name: "partition p2", Detail: "no leader is known"}}
		}
	})
	r := n.mustDo(t, "GET", "/readyz?verbose", nil)
	mustEqual(t, r.status, 503)
	mustEqual(t, r.body, "[+] serving \n[+] partition p1 led by n1\n"+
		"[-] partition p2 no leader is known\nnot ready\n")
	mustEqual(t, n.mustDo(t, "GET", "/livez", nil).status, 200)
	mustEqual(t, n.mustDo(t, "HEAD", "/readyz", nil).status, 503)
}

// Shows that a node with its share of unanswered checks refuses the next one at once over HTTP too,
// and a check that another node passes on.
func TestOverloadAtEveryDoor(t *testing.T) {
	backend := allowing()
	entered, release := make(chan struct{}), make(chan struct{})
	backend.check = func(context.Context, fsm.Check) (Answer, error) {
		close(entered) // a second check here would panic
		<-release
		return Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed}}, nil
	}
	n := mustNode(t, "n1", backend, func(c *Config) { c.MaxInFlight = 1 })
	held := make(chan int, 1)
	go func() { held <- n.mustPost(t, aBody).status }()
	<-entered
	r := n.mustPost(t, aBody)
	if r.status != 503 || r.header.Get("Retry-After") == "" || !strings.Contains(r.body, `"reason":"overloaded"`) {
		t.Errorf("HTTP %d %s", r.status, r.body)
	}
	req := aCheck()
	req.RouteEpoch = 7
	_, err := quoratev1.NewPeerClient(n.conn).ForwardCheck(within(t, 5*time.Second),
		&quoratev1.ForwardCheckRequest{ClusterId: testCluster, Gateway: "g", Check: req})
	if err == nil || !strings.Contains(err.Error(), "unanswered") {
		t.Errorf("passed on: %v", err)
	}
	close(release)
	if got := <-held; got != 200 {
		t.Errorf("the held check: HTTP %d", got)
	}
}

// Shows that a node which shuts down finishes the checks it has in hand, over both protocols, and
// takes no further ones.
func TestShutdownFinishesWhatRuns(t *testing.T) {
	backend := allowing()
	entered, release := make(chan struct{}, 2), make(chan struct{})
	backend.check = func(context.Context, fsm.Check) (Answer, error) {
		entered <- struct{}{}
		<-release
		return Answer{Decision: fsm.Decision{Reason: fsm.ReasonAllowed}}, nil
	}
	n := mustNode(t, "n1", backend)
	quota := quoratev1.NewQuotaClient(n.conn)
	overGRPC, overHTTP := make(chan error, 1), make(chan int, 1)
	go func() {
		_, err := quota.CheckAndConsume(within(t, 10*time.Second), aCheck())
		overGRPC <- err
	}()
	go func() { overHTTP <- n.mustPost(t, aBody).status }()
	<-entered
	<-entered
	down := make(chan struct{})
	go func() {
		defer close(down)
		n.Shutdown(within(t, 10*time.Second))
	}()
	for _, addr := range []string{n.grpcAddr, strings.TrimPrefix(n.url, "http://")} {
		mustBecomeDeaf(t, addr)
	}
	if c := n.conditions()[0]; c.Ready {
		t.Error("the node says it is ready")
	}
	select {
	case <-down:
		t.Error("the node stopped with two checks in hand")
	default:
	}
	close(release)
	if err := <-overGRPC; err != nil {
		t.Errorf("gRPC: %v", err)
	}
	if got := <-overHTTP; got != 200 {
		t.Errorf("HTTP %d", got)
	}
	<-down
	if _, err := quota.CheckAndConsume(within(t, 5*time.Second), aCheck()); err == nil {
		t.Error("a stopped node answered")
	}
	if got := len(backend.seen()); got != 2 {
		t.Errorf("%d checks reached the backend", got)
	}
}

// mustBecomeDeaf waits until nobody listens at addr any more.
func mustBecomeDeaf(t *testing.T, addr string) {
	t.Helper()
	var d net.Dialer
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for ctx := within(t, 5*time.Second); ctx.Err() == nil; <-tick.C {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err != nil {
			return
		}
		_ = conn.Close()
	}
	t.Fatalf("%s is still listened on", addr)
}

// Shows that a shutdown whose time is over breaks off the checks that still run.
func TestShutdownIsBounded(t *testing.T) {
	backend := allowing()
	entered := make(chan struct{})
	backend.check = func(ctx context.Context, _ fsm.Check) (Answer, error) {
		close(entered)
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}
	n := mustNode(t, "n1", backend)
	got := make(chan error, 1)
	go func() {
		_, err := quoratev1.NewQuotaClient(n.conn).CheckAndConsume(within(t, time.Minute), aCheck())
		got <- err
	}()
	<-entered
	start := time.Now()
	n.Shutdown(within(t, 50*time.Millisecond))
	if took := time.Since(start); took > 10*time.Second { // the caller's own deadline is a minute away
		t.Errorf("the shutdown took %v", took)
	}
	select {
	case err := <-got:
		if err == nil {
			t.Error("a check that was broken off got a decision")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the check is still running")
	}
}
