package main

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// Shows that killing the leader between any two checks changes nothing but a pause: three allows and no
// more, and each decision id has the same answer from every node before the kill, after it, and when the
// killed node is back.
func TestKilledLeader(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	for killAt := range 4 {
		principal := fmt.Sprint("k", killAt)
		var made []decision
		dead := ""
		for i := range 4 {
			if i == killAt {
				mustSame(t, p.nodes, principal, "convert", made)
				dead = p.leaderOf(t, principal)
				p.kill(t, dead)
			}
			d := p.check(t, p.addrs(), principal, "convert", fmt.Sprint("d", i))
			if d.Allowed != (i < 3) || d.Replayed {
				t.Fatalf("leader killed before check %d: check %d is %+v", killAt, i, d)
			}
			made = append(made, d)
			if i == killAt {
				mustSame(t, p.others(dead), principal, "convert", made)
			}
		}
		p.restart(t, dead)
		mustSame(t, p.nodes, principal, "convert", made)
		for _, n := range p.nodes {
			if d := p.check(t, n.GRPC, principal, "convert", "new-"+n.ID); d.Allowed {
				t.Errorf("leader killed before check %d: node %s allows a fourth: %+v", killAt, n.ID, d)
			}
		}
		p.mustUsed(t, principal, "convert", 3)
	}
	p.mustAgree(t)
}

// Shows that usage and recorded answers, allows and denials, survive kill -9 of all nodes at once and a
// start on the same directory, and that the cap counts what was admitted before.
func TestAllKilled(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	c := mustClient(t, p.rotated(0)...)
	var full, partly []decision
	for i := range 4 {
		full = append(full, mustDecide(t, c, "full", "convert", fmt.Sprint("f", i)))
	}
	for i := range 2 {
		partly = append(partly, mustDecide(t, c, "partly", "convert", fmt.Sprint("p", i)))
	}
	for _, n := range p.nodes {
		if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	p.stop(t, syscall.SIGTERM)

	again := mustStart(t, p.dir, p.base)
	again.mustUsed(t, "full", "convert", 3)
	again.mustUsed(t, "partly", "convert", 2)
	mustSame(t, again.nodes, "full", "convert", full)
	mustSame(t, again.nodes, "partly", "convert", partly)
	c = mustClient(t, again.rotated(0)...)
	for i, want := range []bool{true, false, false} {
		d := mustDecide(t, c, "partly", "convert", fmt.Sprint("later", i))
		if d.Allowed != want {
			t.Errorf("partly, later check %d: %+v", i, d)
		}
		if d := mustDecide(t, c, "full", "convert", fmt.Sprint("later", i)); d.Allowed {
			t.Errorf("full, later check %d: %+v", i, d)
		}
	}
	again.mustAgree(t)
}

// Shows that a leader that is stopped for longer than an election, and woken when another leads, answers
// no check by what it knew: neither those that waited at its door, nor later ones; and that no rolling
// window gets more than its cap while checks go on all the time.
func TestStoppedLeader(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	c := mustClient(t, p.rotated(0)...)
	one := mustDecide(t, c, "u1", "convert", "a0")
	partition := p.partitionOf(t, "u1")
	s := startStream(t, p, p.principalIn(t, partition, "stream"))
	s.mustAllow(t, quickLimit)
	leader := p.leader(t, partition)
	stopped, pid := p.node(leader), p.pid(leader)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // it has ended if all went well
	began := time.Now()
	woken := time.After(3 * time.Second)

	// These wait at the door of the stopped leader, which knew of room for two.
	const waiting = 20
	// A door gives a request's head so long: a stop that lasts longer ends connections that it has not read.
	const requestHead = 5 * time.Second
	type answer struct {
		decision decision
		err      error
	}
	waited := make(chan answer, waiting)
	for i := range waiting {
		go func() {
			d, err := post(stopped, "u1", "convert", fmt.Sprint("waited", i))
			waited <- answer{d, err}
		}()
	}
	live := mustClient(t, p.others(leader)[0].GRPC, p.others(leader)[1].GRPC)
	made := []decision{one}
	for i := range 2 {
		made = append(made, mustDecide(t, live, "u1", "convert", fmt.Sprint("b", i)))
	}
	s.mustAllow(t, quickLimit)
	<-woken
	stood := time.Since(began)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range waiting {
		w := <-waited
		if errors.Is(w.err, syscall.ECONNRESET) && stood >= requestHead {
			continue // its head was not read in time, so it was never asked; what was used shows below
		}
		if _, ok := honest(w.err); w.decision.Allowed || w.err != nil && !ok {
			t.Errorf("one that waited at the stopped leader got %+v %v", w.decision, w.err)
		}
	}
	for _, d := range made {
		if !d.Allowed {
			t.Errorf("one of the first three: %+v", d)
		}
	}
	until(t, "the woken node is ready", func() bool { return ready(stopped) })
	mustSame(t, p.nodes, "u1", "convert", made)
	for i := range 20 {
		if d := p.check(t, stopped.GRPC, "u1", "convert", fmt.Sprint("c", i)); d.Allowed {
			t.Fatalf("the woken leader allows a fourth: %+v", d)
		}
	}
	s.mustAllow(t, quickLimit)
	s.end(t)
	p.mustUsed(t, "u1", "convert", 3)
	p.mustAgree(t)
}

// Shows that no rolling window gets more than its cap while the leader is killed and started again, and
// again, with checks going on all the time through all nodes.
func TestWindowsAcrossKills(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	s := startStream(t, p, "stream")
	for range 2 {
		s.mustAllow(t, quickLimit)
		leader := p.leaderOf(t, s.principal)
		p.kill(t, leader)
		s.mustAllow(t, 1)
		p.restart(t, leader)
	}
	s.end(t)
	p.mustAgree(t)
}
