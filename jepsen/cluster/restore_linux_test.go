package cluster

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/jepsen/check"
	"github.com/quorate/quorate/jepsen/history"
	"github.com/quorate/quorate/jepsen/process"
)

// spell is the longest window, but for the ledger's, of restorePolicy.
const spell = 10 * time.Second

// restorePolicy has windows that a restore outlasts, and one that it does not.
func restorePolicy() history.Policy {
	p := movePolicy()
	p.Classes["spell"] = history.Class{Limits: []history.Limit{{Name: "burst", Max: 2, Window: history.Window(time.Second)}, {Name: "spell", Max: 6, Window: history.Window(spell)}}}
	return p
}

// TestRestore shows what a restored cluster knows. A backup is saved under load, more is admitted, and all nodes lose
// their data. Restored with the loss acknowledged, every principal has used at least what he had when the backup was
// begun. Restored without, everybody is denied until his longest window has passed since, so that all that was ever
// admitted keeps within the caps. Checks under an epoch of before are refused, a node that comes back with the data of
// before decides nothing, and the audit tells who gave up what.
func TestRestore(t *testing.T) {
	load := moveLoad()
	load.Principals, load.Echo, load.Classes = 12, 0, []string{"strict", "wide", "misc", "ledger", "spell", "spell"}
	w := mustWorld(t, Options{Nodes: 3, First: 3, Partitions: 3, Policy: restorePolicy(), Moves: true}, load)
	w.mustControlVoters(3)
	w.mustDecide(500)

	first := w.mustSave("first")
	w.mustDecide(300)
	accepted := w.mustRestore(first, "--accept-loss", "--comment", "the fire")
	must(t, w.load.AskEach(within(t, time.Minute), "ledger", w.rand, true))
	w.mustAudit("--accept-loss", "the fire")
	w.mustDecide(300)

	second := w.mustSave("second")
	w.mustDecide(300)
	denied := w.mustRestore(second)
	at, err := w.load.AwaitAnswers(within(t, time.Minute), denied.ended, 1, "an allow of spell", allowsSpell)
	must(t, err)
	w.say("the first allow within %v is %v after the restore was begun", spell, at-denied.began)
	w.mustDecide(300)
	w.mustRefuseLost(w.Nodes[0])
	w.examined = true
	h := w.load.Stop(w.policies.revisions)
	w.mustBeDenied(h, denied)

	// What the first backup lacks is given up. All that came after counts together, whatever the second one lacks.
	h = h.Without(first.began, first.ended, accepted.began)
	r := check.Examine(h.Until(denied.began))
	w.say("of what the first backup had, and after: %v", r)
	must(t, r.Err())
	if r.Exact < 20 {
		t.Errorf("too few sums could be compared exactly to be worth anything: %v", r)
	}
	r = check.Examine(h.Bare())
	w.say("of all that was not given up: %v", r)
	must(t, r.Err())
}

// mustRefuseLost starts a node with the directory that it had before the first restore: the others decide, and it does not.
func (w *world) mustRefuseLost(n *Node) {
	w.t.Helper()
	must(w.t, n.Kill())
	must(w.t, n.LoseData())
	must(w.t, n.PutBack())
	must(w.t, n.Start())
	back := w.load.Now()
	w.say("%s is back with what it had before all was lost", n.ID)
	for _, other := range w.Nodes {
		if other != n {
			w.mustDecideAt(other, back)
		}
	}
	must(w.t, w.load.AwaitUndecided(within(w.t, time.Minute), w.load.Now(), 20, n))
	for _, a := range w.load.Since(back) {
		if a.Node == n.ID && a.Sent >= back && a.Answer.Decided() {
			w.t.Fatalf("decided by a node of before the restore: %+v", a)
		}
	}
	for _, other := range w.Nodes {
		if other != n && other.Ended() {
			w.t.Fatalf("node %s has ended by itself; its log ends:\n%s", other.ID, other.Tail())
		}
	}
	w.say("%s has decided nothing", n.ID)
}

// allowsSpell reports whether an answer is an allow of the class spell.
func allowsSpell(a *history.Answer) bool {
	return a.Allowed && slices.ContainsFunc(a.Limits, func(l history.LimitAnswer) bool { return l.Name == "spell" })
}

// span is from before something began to after it had ended.
type span struct {
	began, ended time.Duration
	file         string
}

// mustSave saves a backup under load.
func (w *world) mustSave(name string) span {
	w.t.Helper()
	s := span{began: w.load.Now(), file: w.file(name + ".backup")}
	_, err := w.Command(within(w.t, time.Minute), "snapshot", "save", s.file)
	must(w.t, err)
	s.ended = w.load.Now()
	info, err := os.Stat(s.file)
	must(w.t, err)
	w.say("snapshot save took %v: %d KiB", (s.ended - s.began).Round(time.Millisecond), info.Size()>>10)
	out, err := process.Run(within(w.t, 20*time.Second), w.options.Binary, "snapshot", "inspect", s.file)
	must(w.t, err)
	w.say("snapshot inspect: %s", out)
	return s
}

// mustRestore has all nodes lose their data, and makes a cluster of a backup on them, while nobody asks for anything.
func (w *world) mustRestore(backup span, flags ...string) span {
	w.t.Helper()
	before, err := w.Slots(within(w.t, 30*time.Second))
	must(w.t, err)
	var s span
	must(w.t, w.load.Quiet(func() error {
		for _, n := range w.Nodes {
			must(w.t, n.Kill())
			if n == w.Nodes[0] && len(flags) > 0 { // it is found again in the end
				must(w.t, n.SetAside())
			} else {
				must(w.t, n.LoseData())
			}
			must(w.t, n.Start())
		}
		s.began = w.load.Now()
		args := append([]string{"snapshot", "restore", backup.file}, flags...)
		var last error
		must(w.t, process.Await(within(w.t, 2*time.Minute), "the backup is restored", func() bool {
			_, last = w.commandAt(w.t.Context(), []string{w.Nodes[0].GRPC}, args...)
			return last == nil || !strings.Contains(last.Error(), "no_quorum") // it does not take connections yet
		}))
		s.ended = w.load.Now()
		return last
	}))
	w.say("snapshot restore %v took %v", flags, (s.ended - s.began).Round(time.Millisecond))
	must(w.t, w.AwaitWhole(within(w.t, 60*time.Second), 3))
	after, err := w.Slots(within(w.t, 30*time.Second))
	must(w.t, err)
	for _, r := range before {
		if now := after.of(r.First); now.Epoch>>32 <= r.Epoch>>32 {
			w.t.Errorf("slot %d was in %v, and is in %v after the restore", r.First, r, now)
		}
		w.mustRefuseEpoch(r.Epoch)
	}
	return s
}

// mustRefuseEpoch asks every node for a decision under an ownership epoch that has ended.
func (w *world) mustRefuseEpoch(epoch uint64) {
	w.t.Helper()
	body, err := json.Marshal(map[string]any{
		"principal": "p0", "api_class": "misc", "decision_id": "old", "route_epoch": epoch,
	})
	must(w.t, err)
	for _, n := range w.Nodes {
		resp, err := w.load.http.Post("https://"+n.HTTP+"/v1/check", "application/json", bytes.NewReader(body))
		must(w.t, err)
		text, err := io.ReadAll(resp.Body)
		must(w.t, err)
		must(w.t, resp.Body.Close())
		var a history.Answer
		must(w.t, json.Unmarshal(text, &a))
		if resp.StatusCode != http.StatusServiceUnavailable || a.Reason != "wrong_epoch" {
			w.t.Errorf("%s was asked under epoch %d, which has ended, and answers %d: %s", n.ID, epoch, resp.StatusCode, text)
		}
	}
}

// mustBeDenied shows that nothing was allowed before its longest window had passed since a loss, which was not before
// its began.
func (w *world) mustBeDenied(h *history.History, loss span) {
	w.t.Helper()
	denied := 0
	for _, c := range h.Checks {
		longest := time.Duration(0)
		for _, l := range w.options.Policy.Rule(c.Class) {
			longest = max(longest, time.Duration(l.Window))
		}
		for i := range c.Attempts {
			a := &c.Attempts[i]
			if a.Sent < loss.began || a.Received > loss.began+longest || !a.Answer.Decided() {
				continue
			}
			if denied++; a.Answer.Allowed {
				w.t.Errorf("%s of class %s was allowed %v after the loss: %+v",
					c.ID, c.Class, a.Received-loss.began, a)
			}
		}
	}
	if denied < 50 {
		w.t.Errorf("only %d checks were decided before the longest windows had passed", denied)
	}
}

// mustAudit shows that the audit trail has words.
func (w *world) mustAudit(words ...string) {
	w.t.Helper()
	out, err := w.Command(within(w.t, 20*time.Second), "audit", "-o", "json")
	must(w.t, err)
	for _, word := range words {
		if !strings.Contains(string(out), word) {
			w.t.Errorf("the audit trail does not have %q: %s", word, out)
		}
	}
}
