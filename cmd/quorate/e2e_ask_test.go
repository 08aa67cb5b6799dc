package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/internal/errtable"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
	"github.com/quorate/quorate/rpc/client"
)

// askTimeout is how long one question may take in all: longer than any failover.
const askTimeout = 15 * time.Second

// web connects anew for each request, so that a node that was killed leaves no dead connection behind.
var web = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true},
	Timeout:   askTimeout,
}

// decision is what check -o json and /v1/check print.
type decision struct {
	Allowed      bool   `json:"allowed"`
	Reason       string `json:"reason"`
	Limit        string `json:"limit"`
	Remaining    int64  `json:"remaining"`
	RetryAfterMs int64  `json:"retry_after_ms"`
	DecisionID   string `json:"decision_id"`
	Replayed     bool   `json:"replayed"`
	Recorded     bool   `json:"recorded"`
}

// lasting is what of a decision stays the same when it is asked for again.
func (d decision) lasting() decision {
	d.RetryAfterMs, d.Replayed = 0, false
	return d
}

func (p *processes) addrs() string { return strings.Join(p.rotated(0), ",") }

// rotated are the gRPC addresses of all nodes, node k's first.
func (p *processes) rotated(k int) (addrs []string) {
	for i := range p.nodes {
		addrs = append(addrs, p.nodes[(k+i)%len(p.nodes)].GRPC)
	}
	return addrs
}

// command runs the program until it ends.
func command(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, mustBinary(t), args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// ask runs a client command against all nodes.
func (p *processes) ask(t *testing.T, args ...string) result {
	t.Helper()
	return command(t, append(args, "--addr", p.addrs())...)
}

// check has one check decided with the command line, by the nodes at addr.
func (p *processes) check(t *testing.T, addr, principal, class, id string) (d decision) {
	t.Helper()
	r := command(t, "check", principal, class, "--id", id, "-o", "json", "--addr", addr)
	if err := json.Unmarshal([]byte(r.stdout), &d); err != nil {
		t.Fatalf("check %s %s: %+v", principal, id, r)
	}
	if want := map[bool]int{true: exitDone, false: exitDenied}[d.Allowed]; r.status != want {
		t.Fatalf("check %s %s: exit status %d with allowed %v", principal, id, r.status, d.Allowed)
	}
	return d
}

// mustUsed checks what peek says of the only limit of the class.
func (p *processes) mustUsed(t *testing.T, principal, class string, want int64) {
	t.Helper()
	r := p.ask(t, "peek", principal, class, "-o", "json")
	var v peekView
	if err := json.Unmarshal([]byte(r.stdout), &v); err != nil || len(v.Limits) != 1 {
		t.Fatalf("peek %s %s: %+v", principal, class, r)
	}
	if v.Limits[0].Used != want {
		t.Errorf("peek %s %s: used %d, want %d", principal, class, v.Limits[0].Used, want)
	}
}

// status is the cluster's status; false while no node tells it.
func (p *processes) status(t *testing.T) (v clusterView, ok bool) {
	t.Helper()
	r := p.ask(t, "cluster", "status", "-o", "json")
	return v, json.Unmarshal([]byte(r.stdout), &v) == nil && len(v.Partitions) > 0
}

// mustClient makes a gRPC client of some addresses for the time of the test.
func mustClient(t *testing.T, addrs ...string) *client.Client {
	t.Helper()
	c, err := client.New(addrs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// decide has one check decided over gRPC; failures are *quotaerr.Error.
func decide(ctx context.Context, c *client.Client, principal, class, id string) (d decision, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req := &quoratev1.CheckRequest{Principal: principal, ApiClass: class, DecisionId: id}
	out, err := c.CheckAndConsume(ctx, req)
	if err != nil {
		return d, err
	}
	b, err := rpc.MarshalDecision(out)
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(b, &d)
}

func mustDecide(t *testing.T, c *client.Client, principal, class, id string) decision {
	t.Helper()
	d, err := decide(t.Context(), c, principal, class, id)
	if err != nil {
		t.Fatalf("check %s %s: %v", principal, id, err)
	}
	return d
}

// mustSame asks each of some nodes for decisions that were made, and checks that it tells them as they
// were.
func mustSame(t *testing.T, nodes []devNode, principal, class string, made []decision) {
	t.Helper()
	for _, n := range nodes {
		c := mustClient(t, n.GRPC)
		for _, was := range made {
			d := mustDecide(t, c, principal, class, was.DecisionID)
			if !d.Replayed {
				t.Errorf("node %s decides %s again: %+v", n.ID, was.DecisionID, d)
			}
			if diff := cmp.Diff(was.lasting(), d.lasting()); diff != "" {
				t.Errorf("node %s answers otherwise than before:\n%s", n.ID, diff)
			}
		}
	}
}

// post asks one node over HTTP. A refusal to decide is a *quotaerr.Error; other errors are failures of the
// transport.
func post(n devNode, principal, class, id string) (d decision, err error) {
	body, err := json.Marshal(map[string]string{"principal": principal, "api_class": class, "decision_id": id})
	if err != nil {
		return d, err
	}
	resp, err := web.Post("http://"+n.HTTP+"/v1/check", "application/json", bytes.NewReader(body))
	if err != nil {
		return d, err
	}
	text, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return d, err
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return d, fmt.Errorf("%s: %q: %w", resp.Status, text, err)
	}
	reason := quotaerr.Reason(d.Reason)
	if row := errtable.Lookup(reason); row.HTTP != resp.StatusCode || row.Reason != reason {
		return d, fmt.Errorf("%s with reason %q", resp.Status, reason)
	}
	if !reason.IsDecision() {
		return d, quotaerr.New(reason, "%s", text)
	}
	return d, nil
}

// honest reports whether err is a refusal that callers are told to expect while a leader fails.
func honest(err error) (reason quotaerr.Reason, ok bool) {
	var e *quotaerr.Error
	if !errors.As(err, &e) {
		return "", false
	}
	switch e.Reason {
	case quotaerr.NotLeader, quotaerr.NoQuorum, quotaerr.OutcomeUnknown, quotaerr.Overloaded:
		return e.Reason, true
	default:
		return e.Reason, false
	}
}
