package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// demoProcess is `quorate gateway demo`.
type demoProcess struct {
	demoView
	cmd    *exec.Cmd
	stderr *lockedBuffer
}

func mustDemo(t *testing.T) *demoProcess {
	t.Helper()
	p := &demoProcess{stderr: &lockedBuffer{}}
	p.cmd = exec.Command(mustBinary(t), "gateway", "demo", "-o", "json", "--base-port", fmt.Sprint(mustFreePorts(t, 3)))
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	mustSpawn(t, p.cmd)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.demoView)
	}
	if err != nil {
		t.Fatalf("the demonstration was not ready: %v\n%s", err, p.stderr)
	}
	return p
}

func (p *demoProcess) convert(t *testing.T, key string) httpAnswer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.Gateway+"/convert", strings.NewReader("abc"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", key)
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

// Shows with real processes what the demonstration's lines show: 200 three times, 429 with its headers, 401 without a
// known key, a configuration that is refused and one that is taken, 503 once the nodes are killed, and that SIGINT
// ends all in an orderly way and leaves nothing.
func TestGatewayDemo(t *testing.T) {
	t.Parallel()
	p := mustDemo(t)
	for i := range 3 {
		a := p.convert(t, p.APIKey)
		if a.status != http.StatusOK || a.body != "the upstream got POST /convert with 3 bytes, from account:demo\n" {
			t.Errorf("%+v", a)
		}
		a.mustHave(t, "RateLimit", fmt.Sprintf(`"per-minute";r=%d;t=`, 2-i))
	}
	a := p.convert(t, p.APIKey)
	wait, err := strconv.Atoi(a.header.Get("Retry-After"))
	if a.status != http.StatusTooManyRequests || err != nil || wait < 50 || wait > 61 {
		t.Errorf("%+v", a)
	}
	a.mustHave(t, "RateLimit", fmt.Sprintf(`"per-minute";r=0;t=%d`, wait))
	a.mustHave(t, "RateLimit-Policy", `"per-minute";q=3;w=60`)
	a.mustHave(t, "Content-Type", "application/problem+json")
	if a := p.convert(t, "guessed"); a.status != http.StatusUnauthorized {
		t.Errorf("%+v", a)
	}
	if a := mustHTTP(t, http.MethodGet, "http://"+p.Gateway+"/health", ""); a.status != http.StatusOK {
		t.Errorf("%+v", a)
	}

	config, err := os.ReadFile(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ text, want string }{
		{"nonsense: true\n" + string(config), `reloads_total{result="refused"} 1`},
		{string(config) + "answers: {legacy_headers: true}\n", `reloads_total{result="applied"} 1`},
	} {
		mustPut(t, p.Config, step.text)
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		until(t, step.want, func() bool {
			a := mustHTTP(t, http.MethodGet, "http://"+p.Admin+"/metrics", "")
			return strings.Contains(a.body, "quorate_gateway_"+step.want)
		})
	}
	p.convert(t, p.APIKey).mustHave(t, "X-RateLimit-Remaining", "0")

	for _, pid := range p.NodePIDs {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the gateway answers 503", func() bool { // until then a hint may deny
		return p.convert(t, p.APIKey).status == http.StatusServiceUnavailable
	})
	a = p.convert(t, p.APIKey)
	if !strings.Contains(a.body, `"reason":"unavailable"`) || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
	if a := mustHTTP(t, http.MethodGet, "http://"+p.Admin+"/readyz", ""); a.status != http.StatusOK {
		t.Errorf("%+v", a)
	}
	mustEnd(t, "the demonstration", p.cmd, syscall.SIGINT)
	if left := processesOf(filepath.Dir(p.Config)); len(left) > 0 {
		t.Errorf("these are left: %v", left)
	}
	if _, err := os.Stat(filepath.Dir(p.Config)); !os.IsNotExist(err) {
		t.Errorf("%s: %v", filepath.Dir(p.Config), err)
	}
}
