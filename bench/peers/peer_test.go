package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/quorate/quorate/bench"
)

// Shows that the log that is kept in etcd is exact: as many as the limit are admitted within the window, the next
// one not a nanosecond before the first is the window old, and then exactly one.
func TestLogInEtcd(t *testing.T) {
	start := time.Unix(1000, 0)
	var log []byte
	for i := range limit {
		next, room := admit(log, start.Add(time.Duration(i)))
		if !room {
			t.Fatalf("admission %d was refused", i)
		}
		log = next
	}
	if _, room := admit(log, start.Add(window-1)); room {
		t.Error("admitted a nanosecond early")
	}
	log, room := admit(log, start.Add(window))
	if !room || len(log) != 8*limit {
		t.Fatalf("room %v, %d bytes", room, len(log))
	}
	if _, room := admit(log, start.Add(window)); room {
		t.Error("one expired, and two were admitted")
	}
}

// always allows.
type always struct{}

func (always) Do(context.Context, int, string) (bench.Outcome, error) { return bench.Allowed, nil }

// Shows that a peer that enforces nothing is not measured.
func TestEnforces(t *testing.T) {
	if err := enforces(t.Context(), always{}); err == nil {
		t.Error("what always allows passed")
	}
}

// mustPort finds room for a peer's ports.
func mustPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// Shows with a real server, if there is one, that the script in Redis enforces the limit, that it does so while each
// write is synced too, and that the server ends when it is told to.
func TestRedisEnforces(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed")
	}
	for _, sync := range []bool{false, true} {
		t.Run(fmt.Sprint("sync=", sync), func(t *testing.T) {
			s, err := startRedis(sync)(t.Context(), place{t.TempDir(), mustPort(t)})
			if err != nil {
				t.Fatal(err)
			}
			if err := enforces(t.Context(), s.Target); err != nil {
				t.Error(err)
			}
			if o, err := s.Do(t.Context(), 0, "another"); o != bench.Allowed || err != nil {
				t.Errorf("another principal: %d %v", o, err)
			}
			if err := s.close(); err != nil || !s.processes[0].ended() {
				t.Error(err)
			}
		})
	}
}
