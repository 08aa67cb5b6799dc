package gateways

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/process"
)

const (
	wrkThreads = 2
	// wrkPause is the mean between two requests of a connection. With it wrk asks for some 4,000 a second. Without, on two
	// cores, it and what is denied leave the nodes so little that next to nothing is decided, and so no cap is tried.
	wrkPause = 500 * time.Millisecond
	// wrkLate is how long an answer may take on a busy machine.
	wrkLate = 20 * time.Second
	// wrkGrace is how much longer than told wrk may run.
	wrkGrace = time.Minute
)

// TestProxyUnderWrk shows the same as TestProxyUnderLoad with wrk for a crowd, a client that knows nothing of the proxy,
// while another one sends requests with two readings and headers that are too large: caps are kept, as the upstream sees
// it, all garbage is refused and nothing of it comes through, no goroutine is left, and memory is flat.
//
// Flat is: within proxyGrowth of when each connection had been answered twice, and so had its buffers and goroutines.
// Then some 50 MiB live, and Go's collector lets the heap become some 105 MiB before it collects; what it has freed it
// returns to the system in minutes. So what is resident may be larger by 55 MiB with nothing kept, as each look may fall
// anywhere between two collections. By the same rule what lives counts twice: half a KiB kept of each of 70,000 requests,
// and there are more, would alone be 68 MiB.
func TestProxyUnderWrk(t *testing.T) {
	wrk := mustWrk(t)
	w, up, p := mustProxied(t)
	calm := p.mustMeasure(t)

	d := mustSeconds(t, "QUORATE_GATEWAYS_SECONDS", 30*time.Second)
	began, await := w.now(), w.mustStartWrk(wrk, "http://"+p.listen+"/convert", d)
	endLitter := w.mustLitter(p.listen)
	var begun usage
	must(t, process.Await(within(t, d/2), "each of wrk's connections is answered twice", func() bool {
		begun = p.mustMeasure(t)
		return begun.connections >= proxyConnections && begun.requests-calm.requests >= 2*proxyConnections
	}))
	w.mustKillLeaders(d - (w.now() - began))
	kills := len(w.killed)
	r := await()
	ended := p.mustMeasure(t)
	endLitter()
	w.say("calm: %v; when the load had begun: %v; when it had ended: %v", calm, begun, ended)
	mustBeFlat(t, begun, ended)
	w.say("wrk: half within %v, 99 %% within %v", micros(r.HalfMicros), micros(r.MostMicros))
	if r.Connect != 0 || r.Read != 0 || r.Write != 0 || r.Late != 0 {
		t.Errorf("wrk could not connect %d times, read %d times, write %d times, and waited for longer than %v %d times",
			r.Connect, r.Read, r.Write, wrkLate, r.Late)
	}
	if least := int(d / (2 * killEvery)); kills < least {
		t.Errorf("%d leaders were killed in %v, want %d: too little to be worth anything", kills, d, least)
	}
	w.mustBeWorth(proxyCallers/2, up.mustKeepCaps(), r.Statuses)
	if let, _ := up.noted(); len(let) < r.Statuses[http.StatusOK] {
		t.Errorf("%d requests came to the upstream, and %d are answered as if they had", len(let), r.Statuses[http.StatusOK])
	}
	p.mustLeaveNothing(w, calm)
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// mustWrk is the path of wrk. Without QUORATE_WRK=1 its test is skipped.
func mustWrk(t *testing.T) string {
	t.Helper()
	if os.Getenv("QUORATE_WRK") != "1" {
		t.Skip("set QUORATE_WRK=1 to run it; it needs wrk: apt-get install wrk")
	}
	path, err := exec.LookPath("wrk")
	if err != nil {
		t.Fatalf("QUORATE_WRK is 1, and there is no wrk: apt-get install wrk: %v", err)
	}
	return path
}

// wrkResult is what testdata/convert.lua tells at its end: how often which status came, and which errors wrk had.
type wrkResult struct {
	Statuses                   map[int]int
	Connect, Read, Write, Late int
	HalfMicros                 int64 `json:"half_micros"`
	MostMicros                 int64 `json:"most_micros"`
}

// mustStartWrk starts wrk. await waits for its end.
func (w *world) mustStartWrk(wrk, url string, d time.Duration) (await func() wrkResult) {
	w.t.Helper()
	// A shell raises, or lowers, how many files wrk may open: of those there are few by default, and it does not itself.
	args := []string{
		"-c", `ulimit -n 4096 && exec "$0" "$@"`, wrk, "-c", fmt.Sprint(proxyConnections), "-t", fmt.Sprint(wrkThreads),
		"-d", fmt.Sprintf("%ds", int(d.Seconds())), "--timeout", fmt.Sprintf("%ds", int(wrkLate.Seconds())),
		"-s", filepath.Join("testdata", "convert.lua"), url, "--", fmt.Sprint(proxyCallers), fmt.Sprint(wrkPause.Milliseconds()),
	}
	ctx, stop := context.WithTimeout(w.t.Context(), d+wrkGrace)
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	must(w.t, cmd.Start())
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = cmd.Wait()
	}()
	w.t.Cleanup(func() {
		stop()
		<-ended
	})
	return func() (r wrkResult) {
		w.t.Helper()
		<-ended
		if err != nil {
			w.t.Fatalf("wrk: %v\n%s", err, &out)
		}
		w.t.Logf("wrk says:\n%s", &out)
		line := out.Bytes()[max(0, bytes.LastIndex(bytes.TrimSpace(out.Bytes()), []byte("\n"))):]
		if err := json.Unmarshal(line, &r); err != nil {
			w.t.Fatalf("its script tells %q: %v", line, err)
		}
		return r
	}
}
