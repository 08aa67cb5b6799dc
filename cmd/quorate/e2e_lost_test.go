package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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
	p.mustRefusePart(t, what, id, p.node(id).DataDir, wants...)
}

// mustRefusePart checks the same, with a part of the data directory as it was: what is wrong with one group is
// found when those before it are open.
func (p *processes) mustRefusePart(t *testing.T, what, id, part string, wants ...string) {
	t.Helper()
	tree := func() map[string]string {
		data := dataOf(t, p.node(id).DataDir)
		maps.DeleteFunc(data, func(path, _ string) bool { return !strings.HasPrefix(path, part) })
		return data
	}
	before := tree()
	r := command(t, "server", "--config", p.config(id))
	last := trailing(r.stderr)
	if r.status != exitError || r.stdout != "" || !strings.HasPrefix(last, "quorate: ") {
		t.Errorf("%s: %s starts: %+v", what, id, r)
	}
	if whole := part == p.node(id).DataDir; whole && last+"\n" != r.stderr {
		t.Errorf("%s: %s says more than one line: %s", what, id, r.stderr)
	}
	for _, want := range wants {
		if !strings.Contains(last, want) {
			t.Errorf("%s: %q does not name %q", what, last, want)
		}
	}
	if diff := cmp.Diff(before, tree()); diff != "" {
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

// untilVoter waits until a node has its votes, in every partition and in the control group.
func (p *processes) untilVoter(t *testing.T, id string) {
	t.Helper()
	until(t, id+" has its votes", func() bool {
		v, ok := p.status(t)
		return ok && v.Control != nil && !slices.ContainsFunc(v.groups(), func(g partitionView) bool {
			return !slices.ContainsFunc(g.ReplicaStates, func(r replicaView) bool {
				return r.Node == id && r.Reachable && !r.Learner && (r.Role == "follower" || r.Role == "leader")
			})
		})
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
	partition := p.partitionOf(t, "u1")
	lost := p.leader(t, partition)
	replace := func() result { return p.ask(t, "node", "replace", lost) }
	if r := replace(); r.status != exitError || !strings.Contains(r.stderr, "up and well") {
		t.Errorf("replace of a leader that is up: %+v", r)
	}
	if r := p.ask(t, "node", "replace", "n7"); r.status != exitError || !strings.Contains(r.stderr, "is not known") {
		t.Errorf("replace of a node that does not exist: %+v", r)
	}
	was := p.replica(t, partition, lost).Instance
	p.kill(t, lost)
	mustEmpty(t, p.node(lost).DataDir)
	p.leader(t, controlGroup)
	p.mustRefuseData(t, "emptied", lost, "is empty", "quorate node replace "+lost)
	if err := os.RemoveAll(p.node(lost).DataDir); err != nil {
		t.Fatal(err)
	}
	mustRefuse(t, "deleted", "quorate node replace "+lost, "server", "--config", p.config(lost))
	if r := p.replica(t, partition, lost); r.Role != "unreachable" || r.Instance != was {
		t.Errorf("the lost replica is shown as %+v", r)
	}
	fourth := p.check(t, p.addrs(), "u1", "convert", "fourth")
	if fourth.Allowed {
		t.Errorf("without %s: %+v", lost, fourth)
	}
	other := p.others(lost)[0]
	if other.ID == p.leader(t, partition) {
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
	for _, step := range []string{`step="add learner"`, "step=promote"} {
		if !p.logged(t, step, "member="+lost+" ") {
			t.Errorf("no log says of %s: %s", lost, step)
		}
	}
	if r := p.replica(t, partition, lost); r.Instance == was || r.Instance == "" {
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
func remembers(t *testing.T, n devNode, partition, id, instance string, index uint64) bool {
	t.Helper()
	var m struct {
		Had map[string]struct {
			Index uint64 `json:"index"`
		} `json:"had"`
	}
	b, err := os.ReadFile(filepath.Join(n.DataDir, "peers", partition+".json"))
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
	partition := p.partitionOf(t, "u1")
	leader := p.leader(t, partition)
	follower := p.others(leader)[0].ID
	index := p.replica(t, partition, leader).AppliedIndex
	led, followed := p.replica(t, partition, leader).Instance, p.replica(t, partition, follower).Instance
	until(t, "the others have written down how far "+leader+" was", func() bool {
		a, b := p.others(leader)[0], p.others(leader)[1]
		return remembers(t, a, partition, leader, led, index) && remembers(t, b, partition, leader, led, index)
	})
	until(t, leader+" has written down how far "+follower+" was", func() bool {
		return remembers(t, p.node(leader), partition, follower, followed, index)
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
	p.leader(t, controlGroup)
	if r := p.ask(t, "node", "replace", follower); r.status != exitDone {
		t.Fatalf("replace: %+v", r)
	}
	p.mustRefuseData(t, "removed", follower, "empty data directory")
}

// mustBeUnavailable checks that a node answers a check with no_quorum, saying why.
func mustBeUnavailable(t *testing.T, n devNode, why string) {
	t.Helper()
	r := command(t, "check", "u9", "convert", "--addr", n.GRPC, "--timeout", "1s")
	if r.status != exitUnavailable || !strings.Contains(r.stderr, "no_quorum") || !strings.Contains(r.stderr, why) {
		t.Errorf("%s: %+v, want no_quorum and %q", n.ID, r, why)
	}
}

// saysWaiting reports whether a node is not ready, and says that it waits for something.
func saysWaiting(n devNode, what string) bool {
	r, err := web.Get("http://" + n.HTTP + "/readyz?verbose")
	if err != nil {
		return false
	}
	text, err := io.ReadAll(r.Body)
	return errors.Join(err, r.Body.Close()) == nil && r.StatusCode == http.StatusServiceUnavailable &&
		strings.Contains(string(text), what)
}

// Shows that two of three lost directories do not make a new cluster, neither with the third node nor without it,
// whoever asks for one, and that nothing is allowed meanwhile; and that all goes on when one directory is back, and
// the node with the other one is told what to do.
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
	stillNothing := func(waiting string, status int, refusal string) {
		t.Helper()
		for _, n := range p.others(kept.ID) {
			until(t, n.ID+" waits: "+waiting, func() bool { return saysWaiting(n, waiting) })
			mustBeUnavailable(t, n, "this node has no part in the cluster yet")
			r := command(t, "cluster", "init", "--addr", n.GRPC, "--timeout", "5s")
			if r.status != status || r.stdout != "" || !strings.Contains(r.stderr, refusal) {
				t.Errorf("cluster init on %s: %+v, want %q", n.ID, r, refusal)
			}
		}
	}
	for _, n := range p.others(kept.ID) {
		mustEmpty(t, n.DataDir)
		p.launch(t, n.ID)
	}
	stillNothing("no answer from "+kept.Raft, exitUnavailable, "no answer from "+kept.Raft)
	p.launch(t, kept.ID)
	until(t, kept.ID+" is up", func() bool { return saysWaiting(kept, "control group") })
	stillNothing("control group", exitError, "is part of the cluster already")
	mustBeUnavailable(t, kept, "no_quorum")
	if r := p.ask(t, "node", "replace", "n1", "--timeout", "2s"); r.status != exitUnavailable {
		t.Errorf("replace without a leader: %+v", r)
	}

	p.kill(t, "n1")
	if err := os.RemoveAll(p.nodes[1].DataDir); err != nil {
		t.Fatal(err)
	}
	mustCopy(t, aside, p.nodes[1].DataDir)
	waits := p.own["n2"]
	delete(p.own, "n2")
	p.restart(t, "n1")
	if err := waits.Wait(); waits.ProcessState.ExitCode() != exitError {
		t.Errorf("n2, when there is a leader: %v", err)
	}
	if last := lastLine(filepath.Join(p.dir, "n2.log")); !strings.Contains(last, "quorate node replace n2") {
		t.Errorf("n2 ended with %s", last)
	}
	p.mustRefuseData(t, "a lost directory", "n2", "data was lost", "quorate node replace n2")
	mustSame(t, p.nodes[:2], "u1", "convert", made)
	if d := p.check(t, kept.GRPC, "u1", "convert", "fourth"); d.Allowed {
		t.Errorf("after all: %+v", d)
	}
}

// Shows that a node that waits to be taken in again goes on waiting when it is killed and started again, and is
// taken in as soon as there is a leader; and that dev, whose node has lost its directory, ends with that node's
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
	p.leader(t, controlGroup)
	if r := p.ask(t, "node", "replace", "n2"); r.status != exitDone {
		t.Fatalf("replace: %+v", r)
	}
	p.kill(t, "n1") // two voters are left, so nobody leads
	for range 2 {
		p.launch(t, "n2")
		until(t, "n2 says what it waits for", func() bool {
			// The one that is left may not know yet that the lost directory was given up.
			return saysWaiting(p.node("n2"), "looking for the node that leads the control group") ||
				saysWaiting(p.node("n2"), "looking for a leader of the control group that confirms this")
		})
		mustBeUnavailable(t, p.node("n2"), "no_quorum")
		p.kill(t, "n2")
	}
	p.launch(t, "n2")
	p.restart(t, "n1")
	p.untilVoter(t, "n2")
	p.mustAgree(t)
	mustSame(t, p.nodes, "u1", "convert", made)
}

// Shows that a node that comes back at another address is found there, by the others and in the status, and takes
// part again.
func TestMovedNode(t *testing.T) {
	t.Parallel()
	p := mustCluster(t)
	p.mustAgree(t)
	made := []decision{p.check(t, p.addrs(), "u1", "convert", "a0")}
	id := p.others(p.leaderOf(t, "u1"))[0].ID
	p.kill(t, id)
	was := p.node(id).Raft
	now := was[:len(was)-1] + "4" // the ports of a node end in 0 to 3
	for range 3 {                 // where it is reached, whom it asks, and where it listens
		p.setConfig(t, id, " "+was+"\n", " "+now+"\n")
	}
	p.restart(t, id)
	p.untilVoter(t, id)
	until(t, "the status has the new address", func() bool {
		v, _ := p.status(t)
		return slices.ContainsFunc(v.Nodes, func(n nodeView) bool { return n.ID == id && n.Raft == now })
	})
	p.mustAgree(t)
	mustSame(t, p.nodes, "u1", "convert", made)
}
