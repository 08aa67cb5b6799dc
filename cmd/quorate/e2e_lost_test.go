package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func (p *processes) config(id string) string { return filepath.Join(p.dir, id+".yaml") }

// mustRefuseData checks that a node does not start: exit status 1, one line with each of wants, and its data
// directory as it was.
func (p *processes) mustRefuseData(t *testing.T, what, id string, wants ...string) {
	t.Helper()
	dir := p.node(id).DataDir
	before := dataOf(t, dir)
	r := command(t, "server", "--config", p.config(id))
	if r.status != exitError || r.stdout != "" || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("%s: %s starts: %+v", what, id, r)
	}
	for _, want := range wants {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %q does not name %q", what, r.stderr, want)
		}
	}
	if diff := cmp.Diff(before, dataOf(t, dir)); diff != "" {
		t.Errorf("%s: files of %s changed:\n%s", what, id, diff)
	}
}

// launch starts a node with `server --config`, and does not wait for it.
func (p *processes) launch(t *testing.T, id string) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(p.dir, id+".log"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(mustBinary(t), "server", "--config", p.config(id))
	cmd.Stderr = log
	mustSpawn(t, cmd)
	p.own[id] = cmd
}

// replica is how a node's replica stands, as the cluster's status has it.
func (p *processes) replica(t *testing.T, id string) (r replicaView) {
	t.Helper()
	if v, ok := p.status(t); ok {
		for _, s := range v.Partitions[0].ReplicaStates {
			if s.Node == id {
				r = s
			}
		}
	}
	return r
}

func (p *processes) untilVoter(t *testing.T, id string) {
	t.Helper()
	until(t, id+" has a vote", func() bool {
		r := p.replica(t, id)
		return r.Reachable && !r.Learner && (r.Role == "follower" || r.Role == "leader")
	})
}

func mustCopy(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func mustEmpty(t *testing.T, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
}

// logged reports whether any node's log has a line with the text and the attribute.
func (p *processes) logged(t *testing.T, text, attribute string) bool {
	t.Helper()
	for _, n := range p.nodes {
		b, err := os.ReadFile(filepath.Join(p.dir, n.ID+".log"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, text) && strings.Contains(line, attribute) {
				return true
			}
		}
	}
	return false
}

// Shows the way of a lost data directory: the node does not start on an empty one, and says what to do,
// while the others serve on; it is not replaced while it is up; after `node replace` it comes back as a
// learner under another instance, gets its vote, and holds the same state; and through all of it no fourth
// check is allowed in the window and each answer stays what it was.
func TestLostDirectory(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	c := mustClient(t, p.rotated(0)...)
	var made []decision
	for i := range 3 {
		made = append(made, mustDecide(t, c, "u1", "convert", fmt.Sprint("a", i)))
	}
	lost := p.leader(t)
	replace := func() result { return p.ask(t, "node", "replace", lost) }
	if r := replace(); r.status != exitError || !strings.Contains(r.stderr, "up and well: stop it first") {
		t.Errorf("replace of a leader that is up: %+v", r)
	}
	if r := p.ask(t, "node", "replace", "n7"); r.status != exitError || !strings.Contains(r.stderr, "not configured") {
		t.Errorf("replace of a node that does not exist: %+v", r)
	}
	was := p.replica(t, lost).Instance
	p.kill(t, lost)
	mustEmpty(t, p.node(lost).DataDir)
	p.leader(t)
	p.mustRefuseData(t, "emptied", lost, "quorate node replace "+lost, "--addr", "partition p0")
	if err := os.RemoveAll(p.node(lost).DataDir); err != nil {
		t.Fatal(err)
	}
	mustRefuse(t, "deleted", "quorate node replace "+lost, "server", "--config", p.config(lost))
	if r := p.replica(t, lost); r.Role != "unreachable" || r.Instance != was {
		t.Errorf("the lost replica is shown as %+v", r)
	}
	fourth := p.check(t, p.addrs(), "u1", "convert", "fourth")
	if fourth.Allowed {
		t.Errorf("without %s: %+v", lost, fourth)
	}
	other := p.others(lost)[0]
	if other.ID == p.leader(t) {
		other = p.others(lost)[1]
	}
	if r := p.ask(t, "node", "replace", other.ID); r.status != exitError || !strings.Contains(r.stderr, "stop it first") {
		t.Errorf("replace of a follower that is up: %+v", r)
	}
	for _, want := range []string{"removed: the replica of " + lost, "nothing to remove"} {
		if r := replace(); r.status != exitDone || !strings.Contains(r.stdout, want) {
			t.Errorf("replace: %+v, want %q", r, want)
		}
	}
	p.restart(t, lost)
	p.untilVoter(t, lost)
	for _, text := range []string{"as a learner", "its vote"} {
		if !p.logged(t, text, "="+lost+" ") {
			t.Errorf("no log says of %s: %s", lost, text)
		}
	}
	if r := p.replica(t, lost); r.Instance == was || r.Instance == "" {
		t.Errorf("the new replica is shown as %+v", r)
	}
	p.mustAgree(t)
	mustSame(t, p.nodes, "u1", "convert", made)

	// Once more at once: what the second directory's process said moments ago counts for nothing.
	p.kill(t, lost)
	mustEmpty(t, p.node(lost).DataDir)
	if r := replace(); r.status != exitDone || !strings.Contains(r.stdout, "removed: the replica of "+lost) {
		t.Errorf("second replace: %+v", r)
	}
	p.restart(t, lost)
	p.untilVoter(t, lost)
	p.mustAgree(t)

	// Its vote counts: the group goes on without another one.
	p.kill(t, other.ID)
	if d := p.check(t, p.node(lost).GRPC, "u1", "convert", "fifth"); d.Allowed {
		t.Errorf("after the replacement: %+v", d)
	}
	if d := p.check(t, p.node(lost).GRPC, "u2", "convert", "b0"); !d.Allowed {
		t.Errorf("another principal, after the replacement: %+v", d)
	}
}

// remembers reports whether a node has written down that a replica's log had an entry.
func remembers(t *testing.T, n devNode, id, instance string, index uint64) bool {
	t.Helper()
	var m struct {
		Had map[string]struct {
			Index uint64 `json:"index"`
		} `json:"had"`
	}
	b, err := os.ReadFile(filepath.Join(n.DataDir, "peers.json"))
	return err == nil && json.Unmarshal(b, &m) == nil && m.Had[id+"@"+instance].Index >= index
}

// Shows that an older copy of a data directory is refused, the leader's as well as a follower's, also when
// the nodes that know better were all killed since; and that a removed replica's directory is refused.
func TestOlderDirectory(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	c := mustClient(t, p.rotated(0)...)
	mustDecide(t, c, "u1", "convert", "a0")
	p.stop(t, syscall.SIGTERM)
	aside := t.TempDir()
	for _, n := range p.nodes {
		mustCopy(t, n.DataDir, filepath.Join(aside, n.ID))
	}

	p = mustStart(t, p.dir, p.base)
	c = mustClient(t, p.rotated(0)...)
	made := []decision{mustDecide(t, c, "u1", "convert", "a1"), mustDecide(t, c, "u1", "convert", "a2")}
	p.mustAgree(t)
	leader := p.leader(t)
	follower := p.others(leader)[0].ID
	index := p.replica(t, leader).AppliedIndex
	led, followed := p.replica(t, leader).Instance, p.replica(t, follower).Instance
	until(t, "the others have written down how far "+leader+" was", func() bool {
		a, b := p.others(leader)[0], p.others(leader)[1]
		return remembers(t, a, leader, led, index) && remembers(t, b, leader, led, index)
	})
	until(t, leader+" has written down how far "+follower+" was", func() bool {
		return remembers(t, p.node(leader), follower, followed, index)
	})
	whole := t.TempDir()
	for _, id := range []string{leader, follower} {
		for _, n := range p.nodes { // all that is known is what was written down
			p.kill(t, n.ID)
		}
		mustCopy(t, p.node(id).DataDir, filepath.Join(whole, id))
		for _, n := range p.others(id) {
			p.launch(t, n.ID)
		}
		if err := os.RemoveAll(p.node(id).DataDir); err != nil {
			t.Fatal(err)
		}
		mustCopy(t, filepath.Join(aside, id), p.node(id).DataDir)
		p.mustRefuseData(t, "older copy", id, "older copy", "quorate node replace "+id)
		if err := os.RemoveAll(p.node(id).DataDir); err != nil {
			t.Fatal(err)
		}
		mustCopy(t, filepath.Join(whole, id), p.node(id).DataDir)
		p.restart(t, id)
		mustSame(t, p.nodes, "u1", "convert", made)
	}

	p.kill(t, follower)
	p.leader(t)
	if r := p.ask(t, "node", "replace", follower); r.status != exitDone {
		t.Fatalf("replace: %+v", r)
	}
	p.mustRefuseData(t, "removed", follower, "taken out of partition p0", "empty data directory")
}

// mustBeUnavailable checks that a node answers a check with no_quorum, saying why.
func mustBeUnavailable(t *testing.T, n devNode, why string) {
	t.Helper()
	r := command(t, "check", "u9", "convert", "--addr", n.GRPC, "--timeout", "1s")
	if r.status != exitUnavailable || !strings.Contains(r.stderr, "no_quorum") || !strings.Contains(r.stderr, why) {
		t.Errorf("%s: %+v, want no_quorum and %q", n.ID, r, why)
	}
}

// Shows that two of three lost directories do not make a new partition, neither with the third node nor
// without it, and that nothing is allowed meanwhile; and that all goes on when one directory is back.
func TestLostMajority(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	c := mustClient(t, p.rotated(0)...)
	var made []decision
	for i := range 3 {
		made = append(made, mustDecide(t, c, "u1", "convert", fmt.Sprint("a", i)))
	}
	p.mustAgree(t)
	for _, n := range p.nodes {
		p.kill(t, n.ID)
	}
	kept := p.nodes[0]
	aside := filepath.Join(t.TempDir(), "n1")
	mustCopy(t, p.nodes[1].DataDir, aside)
	for _, n := range p.others(kept.ID) {
		mustEmpty(t, n.DataDir)
		p.launch(t, n.ID)
	}
	for _, n := range p.others(kept.ID) {
		until(t, n.ID+" says whom it waits for", func() bool {
			r, err := web.Get("http://" + n.HTTP + "/readyz?verbose")
			if err != nil {
				return false
			}
			text, err := io.ReadAll(r.Body)
			return errors.Join(err, r.Body.Close()) == nil && r.StatusCode == http.StatusServiceUnavailable &&
				strings.Contains(string(text), "waiting for an answer of n0")
		})
		mustBeUnavailable(t, n, "waiting for an answer of n0")
	}
	waiting := map[string]*exec.Cmd{}
	for _, n := range p.others(kept.ID) {
		waiting[n.ID] = p.own[n.ID]
		delete(p.own, n.ID)
	}
	p.launch(t, kept.ID)
	for id, cmd := range waiting {
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitError {
			t.Errorf("%s, when n0 is back: %v", id, err)
		}
		if last := lastLine(filepath.Join(p.dir, id+".log")); !strings.Contains(last, "quorate node replace "+id) {
			t.Errorf("%s ended with %s", id, last)
		}
		p.mustRefuseData(t, "a lost majority", id, "data was lost", "quorate node replace "+id)
	}
	mustBeUnavailable(t, kept, "no_quorum")
	if r := p.ask(t, "node", "replace", "n1", "--timeout", "2s"); r.status != exitUnavailable {
		t.Errorf("replace without a leader: %+v", r)
	}

	if err := os.RemoveAll(p.nodes[1].DataDir); err != nil {
		t.Fatal(err)
	}
	mustCopy(t, aside, p.nodes[1].DataDir)
	p.restart(t, "n1")
	mustSame(t, p.nodes[:2], "u1", "convert", made)
	if d := p.check(t, kept.GRPC, "u1", "convert", "fourth"); d.Allowed {
		t.Errorf("after all: %+v", d)
	}
}

// Shows that a replica that waits to be added goes on waiting when it is killed and started again, and is
// added as soon as there is a leader; and that dev, whose node has lost its directory, ends with that node's
// reason in one line.
func TestWaitingReplica(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	made := []decision{p.check(t, p.addrs(), "u1", "convert", "a0")}
	p.mustAgree(t)
	p.stop(t, syscall.SIGTERM)
	mustEmpty(t, p.node("n2").DataDir)
	for _, how := range [][]string{{}, {"--processes"}} {
		args := []string{"dev", "--base-port", fmt.Sprint(p.base), "--data-dir", p.dir}
		mustRefuse(t, "dev", "quorate node replace n2", append(args, how...)...)
	}

	p.launch(t, "n0")
	p.restart(t, "n1")
	p.leader(t)
	if r := p.ask(t, "node", "replace", "n2"); r.status != exitDone {
		t.Fatalf("replace: %+v", r)
	}
	p.kill(t, "n1") // two voters are left, so nobody leads
	waits := func() bool {
		v, _ := p.status(t)
		return slices.ContainsFunc(v.Nodes, func(n nodeView) bool { return n.ID == "n2" && n.Reachable && n.Waiting == "" })
	}
	for range 2 {
		p.launch(t, "n2")
		until(t, "n2 has opened its replica", waits)
		mustBeUnavailable(t, p.node("n2"), "no_quorum")
		p.kill(t, "n2")
	}
	p.launch(t, "n2")
	p.restart(t, "n1")
	p.untilVoter(t, "n2")
	p.mustAgree(t)
	mustSame(t, p.nodes, "u1", "convert", made)
}

// Shows that a node whose configuration contradicts the members that its own log names, by an address, does
// not start and changes nothing; put right, it takes part again.
func TestContradictingNodes(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	p.mustAgree(t)
	id := p.others(p.leader(t))[0].ID
	p.kill(t, id)
	own, other := "raft: "+p.node(id).Raft, "raft: "+p.node(id).Gossip // where nobody listens
	p.setConfig(t, id, own, other)
	p.mustRefuseData(t, "another address", id, "the raft address of node "+id, p.node(id).Raft, "set it back")
	p.setConfig(t, id, other, own)
	p.restart(t, id)
	p.mustAgree(t)
}
