package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Shows the main job with the example policy: a cluster that is ready in under five seconds and says where
// its nodes are; three allows, then a denial with the wait until the oldest expires, and the exit statuses;
// and that usage is told without consuming.
func TestThreeNodesHoldACap(t *testing.T) {
	begin := time.Now()
	p := mustStart(t, t.TempDir(), mustFreePorts(t, 3))
	took := time.Since(begin)
	if took > 5*time.Second {
		t.Errorf("ready after %s", took)
	}
	t.Logf("ready after %s", took)
	var want []devNode
	for k, n := range p.nodes {
		at := func(offset int) string { return fmt.Sprintf("127.0.0.1:%d", p.base+10*k+offset) }
		id := fmt.Sprint("n", k)
		want = append(want, devNode{id, n.PID, at(0), at(1), at(2), at(3), filepath.Join(p.dir, id)})
		if err := syscall.Kill(n.PID, 0); err != nil || n.PID == p.dev.Process.Pid {
			t.Errorf("%s has pid %d: %v", n.ID, n.PID, err)
		}
		if info, err := os.Stat(n.DataDir); err != nil || !info.IsDir() {
			t.Errorf("%s: %v", n.DataDir, err)
		}
	}
	if diff := cmp.Diff(want, p.nodes); diff != "" || len(p.nodes) != 3 {
		t.Errorf("%d nodes: %s", len(p.nodes), diff)
	}
	first := time.Now()
	for i, want := range []int{exitDone, exitDone, exitDone, exitDenied} {
		if r := p.ask(t, "check", "u42", "convert"); r.status != want || r.stderr != "" {
			t.Fatalf("check %d: %+v, want status %d", i+1, r, want)
		}
	}
	d := p.check(t, p.addrs(), "u42", "convert", "fifth")
	since := time.Since(first)
	if d.Reason != "quota_exhausted" || d.Limit != "per-minute" || d.Remaining != 0 {
		t.Errorf("denied as %+v", d)
	}
	// The oldest was admitted after first. Partition time is slow by up to 0.05 %.
	if wait := time.Duration(d.RetryAfterMs) * time.Millisecond; wait > time.Minute+50*time.Millisecond ||
		wait < time.Minute-since {
		t.Errorf("the wait is %s, at most %s after the first admission", wait, since)
	}
	p.mustUsed(t, "u42", "convert", 3)
	p.mustUsed(t, "u42", "convert", 3)
}

// Shows that the wait of a denial is right: a check made when it is over is allowed, one made clearly
// before is not, and then only the room of the expired is there.
func TestTheWaitOfADenial(t *testing.T) {
	// early is clearly before the end of a wait: more than a check takes.
	const early = 400 * time.Millisecond
	p := mustCluster(t)
	c := mustClient(t, p.rotated(0)...)
	before := time.Now()
	first := mustDecide(t, c, "u1", "quick", "a0")
	after := time.Now()
	<-time.After(quickWindow / 3) // so that the oldest expires well before the others
	for i := 1; i < quickLimit; i++ {
		if d := mustDecide(t, c, "u1", "quick", fmt.Sprint("a", i)); !d.Allowed {
			t.Fatalf("check %d: %+v", i, d)
		}
	}
	asked := time.Now()
	d, err := post(p.nodes[0], "u1", "quick", "denied")
	told := time.Duration(d.RetryAfterMs) * time.Millisecond
	over := time.After(told)
	// The first was decided between before and after. Partition time is slow by up to 0.05 %.
	least, most := quickWindow-time.Since(before), quickWindow-asked.Sub(after)+10*time.Millisecond
	if err != nil || !first.Allowed || d.Allowed || told < least || told > most {
		t.Fatalf("told to wait %s, between %s and %s are right: %+v %v", told, least, most, d, err)
	}
	<-time.After(time.Until(asked.Add(told - early)))
	d, err = post(p.nodes[1], "u1", "quick", "early")
	if err != nil || d.Allowed || time.Since(asked) >= told {
		t.Errorf("early, %s of %s after it was told: %+v %v", time.Since(asked), told, d, err)
	}
	<-over
	if d, err := post(p.nodes[2], "u1", "quick", "in time"); err != nil || !d.Allowed {
		t.Errorf("at the time that was told: %+v %v", d, err)
	}
	if d, err := post(p.nodes[0], "u1", "quick", "once more"); err != nil || d.Allowed {
		t.Errorf("after one has expired and one was admitted: %+v %v", d, err)
	}
}

// httpAnswer is one answer of the HTTP door.
type httpAnswer struct {
	status int
	header http.Header
	body   string
}

func mustHTTP(t *testing.T, method, url, body string) httpAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := web.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return httpAnswer{resp.StatusCode, resp.Header, string(text)}
}

// Shows the HTTP door on every node: what an allow, a denial and a malformed request look like, and the
// paths of health and metrics; and that the others go on answering when one node is killed.
func TestHTTPDoor(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	for _, n := range p.nodes {
		url := "http://" + n.HTTP
		check := func(i int) string {
			return fmt.Sprintf(`{"principal":"h-%s","api_class":"convert","decision_id":"r%d"}`, n.ID, i)
		}
		for i := range 3 {
			a := mustHTTP(t, http.MethodPost, url+"/v1/check", check(i))
			if a.status != http.StatusOK || !strings.Contains(a.body, `"allowed":true`) {
				t.Errorf("%s: %+v", n.ID, a)
			}
			a.mustHave(t, "Cache-Control", "no-store")
			a.mustHave(t, "RateLimit-Policy", `"per-minute";q=3;w=60`)
			a.mustHave(t, "RateLimit", fmt.Sprintf(`"per-minute";r=%d;t=`, 2-i))
		}
		a := mustHTTP(t, http.MethodPost, url+"/v1/check", check(3))
		wait, err := strconv.Atoi(a.header.Get("Retry-After"))
		if a.status != http.StatusTooManyRequests || err != nil || wait < 50 || wait > 61 {
			t.Errorf("%s: denied: %+v", n.ID, a)
		}
		a.mustHave(t, "Cache-Control", "no-store")
		a.mustHave(t, "Content-Type", "application/problem+json")
		a.mustHave(t, "RateLimit", fmt.Sprintf(`"per-minute";r=0;t=%d`, wait))
		for _, want := range []string{
			`"allowed":false`, `"reason":"quota_exhausted"`, `"limit":"per-minute"`, `"status":429`, `"type":"`,
		} {
			if !strings.Contains(a.body, want) {
				t.Errorf("%s: %s lacks %s", n.ID, a.body, want)
			}
		}
		mustRefuseMalformed(t, url)
		mustBeHealthy(t, url)
	}
	dead := p.nodes[1]
	p.kill(t, dead.ID)
	for _, n := range p.others(dead.ID) {
		// The first check may have to wait for another leader.
		until(t, n.ID+" answers with one node down", func() bool {
			d, err := post(n, "h-after", "convert", "r-"+n.ID)
			if _, ok := honest(err); err != nil && !ok {
				t.Fatal(err)
			}
			return err == nil && d.Allowed
		})
		mustBeHealthy(t, "http://"+n.HTTP)
	}
}

func (a httpAnswer) mustHave(t *testing.T, name, prefix string) {
	t.Helper()
	if got := a.header.Get(name); !strings.HasPrefix(got, prefix) {
		t.Errorf("%s is %q, want %q", name, got, prefix)
	}
}

func mustRefuseMalformed(t *testing.T, url string) {
	t.Helper()
	for _, bad := range []string{
		``, `{`, `[]`, `{"principal":"h"}`,
		`{"principal":"","api_class":"convert","decision_id":"x"}`,
		`{"principal":"h","api_class":"convert","decision_id":""}`,
		`{"principal":"h","api_class":"convert","decision_id":"x","cost":0}`,
		`{"principal":"h","api_class":"convert","decision_id":"x","cost":-1}`,
		`{"principal":"h","api_class":"convert","decision_id":"x","surprise":1}`,
		`{"principal":"h\u0000","api_class":"convert","decision_id":"x"}`,
		`{"principal":"` + strings.Repeat("h", 513) + `","api_class":"convert","decision_id":"x"}`,
		"{\"principal\":\"h\xff\",\"api_class\":\"convert\",\"decision_id\":\"x\"}",
	} {
		a := mustHTTP(t, http.MethodPost, url+"/v1/check", bad)
		if a.status != http.StatusBadRequest || !strings.Contains(a.body, `"reason":"invalid_argument"`) ||
			!strings.Contains(a.body, `"allowed":false`) {
			t.Errorf("%.80q: %+v", bad, a)
		}
	}
	if a := mustHTTP(t, http.MethodGet, url+"/v1/check", ""); a.status != http.StatusMethodNotAllowed {
		t.Errorf("GET: %+v", a)
	}
}

func mustBeHealthy(t *testing.T, url string) {
	t.Helper()
	for path, want := range map[string]string{
		"/livez": "ok", "/readyz": "ok", "/readyz?verbose": "led by n", "/metrics": "# HELP quorate_",
	} {
		a := mustHTTP(t, http.MethodGet, url+path, "")
		if a.status != http.StatusOK || !strings.Contains(a.body, want) {
			t.Errorf("%s: status %d, %.200q", path, a.status, a.body)
		}
	}
}
