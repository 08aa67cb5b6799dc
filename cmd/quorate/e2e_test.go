package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Shows the main job with the example policy: three allows, a denial with the wait until the oldest
// expires, and the exit statuses; a cluster that is ready in under five seconds; and that usage is told
// without consuming.
func TestThreeNodesHoldACap(t *testing.T) {
	begin := time.Now()
	p := mustStart(t, t.TempDir(), mustFreePorts(t, 3))
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("ready after %s", took)
	}
	for i, want := range []int{exitDone, exitDone, exitDone, exitDenied} {
		if status, out, errOut := p.command(t, "", "check", "u42", "convert"); status != want {
			t.Fatalf("check %d: exit status %d, want %d\n%s%s", i+1, status, want, out, errOut)
		}
	}
	since := time.Since(begin)
	d := p.check(t, "", "u42", "convert", "fifth")
	if d.Reason != "quota_exhausted" || d.Limit != "per-minute" || d.Remaining != 0 {
		t.Errorf("denied as %+v", d)
	}
	// The oldest was admitted after begin and before since; partition time is slow by up to 0.05 %.
	if most := int64(60_100); d.RetryAfterMs > most || d.RetryAfterMs < 60_000-since.Milliseconds()-1000 {
		t.Errorf("the wait is %d ms, %s after the first admission at most", d.RetryAfterMs, since)
	}
	if _, out, _ := p.command(t, "", "peek", "u42", "convert", "-o", "json"); !strings.Contains(out, `"used":3`) {
		t.Errorf("peek: %s", out)
	}
}

// Shows that the wait of a denial is right to the moment: a check made then is allowed, one made a little
// earlier is not.
func TestTheWaitOfADenial(t *testing.T) {
	p := mustCluster(t)
	for i := range 3 {
		if d := p.check(t, "", "u1", "quick", fmt.Sprint("a", i)); !d.Allowed {
			t.Fatalf("check %d: %+v", i, d)
		}
	}
	d, err := p.post(p.nodes[0], "u1", "quick", "denied")
	if err != nil || d.Allowed || d.RetryAfterMs <= 0 {
		t.Fatalf("%+v %v", d, err)
	}
	told := time.After(time.Duration(d.RetryAfterMs) * time.Millisecond)
	<-time.After(time.Duration(d.RetryAfterMs-100) * time.Millisecond)
	if d, err := p.post(p.nodes[1], "u1", "quick", "early"); err != nil || d.Allowed {
		t.Errorf("100 ms early: %+v %v", d, err)
	}
	<-told
	if d, err := p.post(p.nodes[2], "u1", "quick", "in time"); err != nil || !d.Allowed {
		t.Errorf("at the time that was told: %+v %v", d, err)
	}
}

// Shows that killing the leader between any two checks changes nothing but a pause: three allows and no
// more, and each decision id has the same answer before and after, from every node.
func TestKilledLeader(t *testing.T) {
	p := mustCluster(t)
	for killAt := range 4 {
		principal := fmt.Sprint("k", killAt)
		var before []decision
		for i := range 4 {
			if i == killAt {
				p.kill(t, p.leader(t))
			}
			d := p.check(t, "", principal, "convert", fmt.Sprint("d", i))
			if d.Allowed != (i < 3) {
				t.Fatalf("leader killed before check %d: check %d is %+v", killAt, i, d)
			}
			before = append(before, d)
		}
		p.mend(t)
		for _, n := range p.nodes {
			for i, was := range before {
				d := p.check(t, n.GRPC, principal, "convert", fmt.Sprint("d", i))
				if d.Allowed != was.Allowed || d.Reason != was.Reason || d.Remaining != was.Remaining || !d.Replayed {
					t.Errorf("node %s answers %+v, it was %+v", n.ID, d, was)
				}
			}
		}
	}
}

// mend starts every node again that is down.
func (p *processes) mend(t *testing.T) {
	t.Helper()
	for _, n := range p.nodes {
		if !p.ready(n) && p.own[n.ID] == nil && syscall.Kill(n.PID, 0) != nil {
			p.restart(t, n.ID)
		}
	}
}

// Shows that usage and recorded answers survive kill -9 of all nodes at once, and a start on the same
// directory.
func TestAllKilled(t *testing.T) {
	p := mustCluster(t)
	for i := range 2 {
		p.check(t, "", "u1", "convert", fmt.Sprint("a", i))
	}
	for _, n := range p.nodes {
		if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	base := mustPort(t, p.nodes[0].GRPC)
	p.stop(t)
	again := mustStart(t, p.dir, base)
	if d := again.check(t, "", "u1", "convert", "a0"); !d.Allowed || !d.Replayed || d.Remaining != 2 {
		t.Errorf("the first answer is now %+v", d)
	}
	if d := again.check(t, "", "u1", "convert", "a2"); !d.Allowed || d.Remaining != 0 {
		t.Errorf("the third check: %+v", d)
	}
	if d := again.check(t, "", "u1", "convert", "a3"); d.Allowed {
		t.Errorf("the fourth check: %+v", d)
	}
}

func mustPort(t *testing.T, addr string) int {
	t.Helper()
	_, port, _ := strings.Cut(addr, ":")
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// rounds is how often the crowd comes: $QUORATE_E2E_ROUNDS, or a few times.
func rounds(t *testing.T) int {
	t.Helper()
	v := os.Getenv("QUORATE_E2E_ROUNDS")
	if v == "" {
		return 3
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Shows that 200 concurrent checks for one principal through all three nodes, while the leader is killed,
// get three allows: never a fourth, never a lost one. Whatever was left open is resolved by asking again
// with the same id, at another node.
func TestCrowdAndKilledLeaders(t *testing.T) {
	const crowd = 200
	p := mustCluster(t)
	var longest time.Duration
	counts := map[string]int{}
	for round := range rounds(t) {
		principal := fmt.Sprint("crowd", round)
		answers := make([]decision, crowd)
		failed := make([]error, crowd)
		took := make([]time.Duration, crowd)
		leader := p.leader(t)
		var wg sync.WaitGroup
		for i := range crowd {
			if i == crowd/2 {
				p.kill(t, leader)
			}
			wg.Go(func() {
				begin := time.Now()
				answers[i], failed[i] = p.post(p.nodes[i%3], principal, "convert", fmt.Sprint("c", i))
				took[i] = time.Since(begin)
			})
		}
		wg.Wait()
		longest = max(longest, slices.Max(took))
		p.restart(t, leader)
		allowed := 0
		for i := range crowd {
			reason := answers[i].Reason
			if failed[i] != nil {
				reason = "transport"
			}
			counts[reason]++
			if reason == "quota_exhausted" {
				continue
			}
			d := p.checkHTTP(t, p.nodes[(i+1)%3], principal, fmt.Sprint("c", i))
			if answers[i].Allowed && (!d.Allowed || !d.Replayed) {
				t.Fatalf("round %d: the allow of %d was lost: %+v", round, i, d)
			}
			if d.Allowed {
				allowed++
			}
		}
		if allowed != 3 {
			t.Fatalf("round %d: %d allows; %v", round, allowed, counts)
		}
		if _, out, _ := p.command(t, "", "peek", principal, "convert", "-o", "json"); !strings.Contains(out, `"used":3`) {
			t.Fatalf("round %d: %s", round, out)
		}
	}
	t.Logf("%d rounds, answers %v, longest %s", rounds(t), counts, longest)
}

// checkHTTP asks until there is a decision.
func (p *processes) checkHTTP(t *testing.T, n devNode, principal, id string) (d decision) {
	t.Helper()
	until(t, "a decision for "+id, func() bool {
		var err error
		d, err = p.post(n, principal, "convert", id)
		return err == nil && (d.Reason == "allowed" || d.Reason == "quota_exhausted")
	})
	return d
}

// Shows that a leader that is stopped for longer than an election, and woken when another leads, answers
// no check by what it knew.
func TestStoppedLeader(t *testing.T) {
	p := mustCluster(t)
	leader := p.leader(t)
	pid := p.node(leader).PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }() // it may run already
	for i := range 3 {
		if d := p.check(t, "", "u1", "convert", fmt.Sprint("a", i)); !d.Allowed {
			t.Fatalf("check %d: %+v", i, d)
		}
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		d := p.check(t, p.node(leader).GRPC, "u1", "convert", fmt.Sprint("b", i))
		if d.Allowed {
			t.Fatalf("the woken leader allows a fourth: %+v", d)
		}
	}
}

// Shows the HTTP door on every node: statuses, headers, health, and malformed requests.
func TestHTTPDoor(t *testing.T) {
	p := mustCluster(t)
	for i, n := range p.nodes {
		body := strings.NewReader(fmt.Sprintf(`{"principal":"h","api_class":"convert","decision_id":"r%d"}`, i))
		resp, err := http.Post("http://"+n.HTTP+"/v1/check", "application/json", body)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK || resp.Header.Get("RateLimit-Policy") != `"per-minute";q=3;w=60` {
			t.Errorf("%s: %s, %v", n.ID, resp.Status, resp.Header)
		}
	}
	resp, err := http.Post("http://"+p.nodes[0].HTTP+"/v1/check", "application/json",
		strings.NewReader(`{"principal":"h","api_class":"convert","decision_id":"r9"}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	wait, err := strconv.Atoi(resp.Header.Get("Retry-After"))
	if resp.StatusCode != http.StatusTooManyRequests || err != nil || wait < 1 || wait > 61 ||
		resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("denied: %s, %v", resp.Status, resp.Header)
	}
	for _, bad := range []string{``, `{`, `{"principal":"h"}`, `{"principal":"h","api_class":"c","decision_id":"x","cost":0}`} {
		resp, err := http.Post("http://"+p.nodes[1].HTTP+"/v1/check", "application/json", strings.NewReader(bad))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", bad, resp.Status)
		}
	}
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		resp, err := http.Get("http://" + p.nodes[2].HTTP + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// Shows that a node refuses, in one line and with exit status 1, what it must not start with: another
// node's directory, an address that others can reach, and a key that it does not know; and dev a cluster
// of another size and ports in use.
func TestRefusalsToStart(t *testing.T) {
	p := mustCluster(t)
	config := filepath.Join(p.dir, "n0.yaml")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string][2]string{
		"another node": {"node_id: n0", "node_id: n1"},
		"not loopback": {p.nodes[0].Raft, "0.0.0.0:" + strconv.Itoa(mustPort(t, p.nodes[0].Raft))},
		"unknown key":  {"node_id:", "nodeid: x\nnode_id:"},
	} {
		changed := strings.ReplaceAll(string(text), edit[0], edit[1])
		if changed == string(text) {
			t.Fatalf("%s: nothing to change in\n%s", name, text)
		}
		if name == "not loopback" { // a directory of its own, so that only the address is wrong
			changed = strings.ReplaceAll(changed, p.nodes[0].DataDir, t.TempDir())
		}
		file := filepath.Join(p.dir, "changed.yaml")
		if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		status, _, errOut := p.command(t, "", "server", "--config", file)
		if status != exitError || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: exit status %d, %q", name, status, errOut)
		}
	}
	base := strconv.Itoa(mustPort(t, p.nodes[0].GRPC))
	if status, _, errOut := p.command(t, "", "dev", "--processes", "--base-port", base); status != exitError ||
		!strings.Contains(errOut, "address already in use") {
		t.Errorf("ports in use: exit status %d, %q", status, errOut)
	}
	p.stop(t)
	if status, _, errOut := p.command(t, "", "dev", "--nodes", "1", "--data-dir", p.dir); status != exitError ||
		!strings.Contains(errOut, "--nodes 3") {
		t.Errorf("another size: exit status %d, %q", status, errOut)
	}
}
