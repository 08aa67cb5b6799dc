package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/partition/group"
)

// replicaOf is an answer of a node that has opened the group, which has the given members, each written
// node@instance.
func replicaOf(node string, r replicaAnswer, members ...string) *answer {
	for _, m := range members {
		id, instance, _ := strings.Cut(m, "@")
		r.Members = append(r.Members, memberAnswer{Node: id, Instance: instance})
	}
	return &answer{Node: node, Instance: "i-" + node, Has: true, Replica: &r}
}

func blankNode(node string) *answer { return &answer{Node: node, Instance: "i-" + node} }

// Shows what the answers of n0 and n1 mean for n2 with a new directory: a group forms only when both say
// that they have none; whoever leads, else whoever is further, says whether n2 is a member, a lost one, or
// to be added.
func TestJudge(t *testing.T) {
	others := []Peer{{ID: "n0"}, {ID: "n1"}}
	starting := &answer{Node: "n1", Instance: "i-n1", Has: true}
	for name, tt := range map[string]struct {
		answers map[string]*answer
		want    verdict
		by      string
	}{
		"nobody answers":  {nil, undecided, ""},
		"one answers":     {map[string]*answer{"n0": blankNode("n0")}, undecided, ""},
		"nobody has it":   {map[string]*answer{"n0": blankNode("n0"), "n1": blankNode("n1")}, found, ""},
		"one is starting": {map[string]*answer{"n0": blankNode("n0"), "n1": starting}, undecided, ""},
		"listed":          {map[string]*answer{"n0": replicaOf("n0", replicaAnswer{}, "n0@a", "n2@new")}, join, "n0"},
		"not listed":      {map[string]*answer{"n0": replicaOf("n0", replicaAnswer{}, "n0@a", "n1@b")}, join, "n0"},
		"lost":            {map[string]*answer{"n0": replicaOf("n0", replicaAnswer{}, "n0@a", "n2@old")}, refuse, "n0"},
		"waits itself":    {map[string]*answer{"n0": blankNode("n0"), "n1": replicaOf("n1", replicaAnswer{})}, undecided, ""},
		"leader over longer": {map[string]*answer{
			"n0": replicaOf("n0", replicaAnswer{Leads: true, Term: 4, Last: 8}, "n0@a", "n1@b"),
			"n1": replicaOf("n1", replicaAnswer{Term: 4, Last: 9}, "n0@a", "n1@b", "n2@old"),
		}, join, "n0"},
		"later term": {map[string]*answer{
			"n0": replicaOf("n0", replicaAnswer{Term: 3, Last: 99}, "n0@a", "n1@b"),
			"n1": replicaOf("n1", replicaAnswer{Term: 4, Last: 9}, "n0@a", "n1@b", "n2@old"),
		}, refuse, "n1"},
		"later deposed leader": {map[string]*answer{
			"n0": replicaOf("n0", replicaAnswer{Leads: true, Term: 5, Last: 9}, "n0@a", "n1@b", "n2@old"),
			"n1": replicaOf("n1", replicaAnswer{Leads: true, Term: 4, Last: 9}, "n0@a", "n1@b", "n2@new"),
		}, refuse, "n0"},
	} {
		j := judge("n2", "new", others, tt.answers)
		if j.verdict != tt.want || j.by != tt.by {
			t.Errorf("%s: %+v, want verdict %d by %q", name, j, tt.want, tt.by)
		}
	}
	if j := judge("n0", "x", nil, nil); j.verdict != found {
		t.Errorf("alone: %+v", j)
	}
}

// Shows that no cluster forms of nodes that are not configured alike: two might each take itself for the
// first.
func TestNodesMustBeConfiguredAlike(t *testing.T) {
	own := []string{"n0", "n1", "n2"}
	for name, tt := range map[string]struct {
		other []string
		alike bool
	}{"alike": {own, true}, "other order": {[]string{"n1", "n0", "n2"}, false}, "fewer": {own[:2], false}} {
		why := disagreement(own, map[string]*answer{"n1": {Node: "n1", Nodes: own}, "n2": {Node: "n2", Nodes: tt.other}})
		if (why == "") != tt.alike || !tt.alike && !strings.Contains(why, "node n2 ") {
			t.Errorf("%s: %q", name, why)
		}
	}
}

func mustMemory(t *testing.T, dir string) *memory {
	t.Helper()
	m, err := loadMemory(dir, "p0")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Shows that the furthest position of each replica is remembered through a restart, by term first, apart
// for each data directory; that removed replicas are forgotten; and that a damaged file, or one of another
// partition, is refused.
func TestMemory(t *testing.T) {
	dir := t.TempDir()
	m := mustMemory(t, dir)
	old, young := group.Member{ID: "n1", Instance: "old"}, group.Member{ID: "n1", Instance: "young"}
	for _, p := range []group.Position{{Term: 2, Index: 9}, {Term: 3, Index: 5}, {Term: 2, Index: 99}} {
		m.note(old, p)
	}
	m.note(young, group.Position{Term: 1, Index: 1})
	if err := m.save("p0"); err != nil {
		t.Fatal(err)
	}
	m = mustMemory(t, dir)
	if got, want := m.of(old), (group.Position{Term: 3, Index: 5}); got != want {
		t.Errorf("remembered %+v, want %+v", got, want)
	}
	m.keepOnly([]group.Member{young})
	if err := m.save("p0"); err != nil {
		t.Fatal(err)
	}
	m = mustMemory(t, dir)
	if got := (m.of(old)); got != (group.Position{}) || m.of(young).Index != 1 {
		t.Errorf("a removed one: %+v; the present one: %+v", got, m.of(young))
	}
	if _, err := loadMemory(dir, "p1"); err == nil {
		t.Error("another partition's is taken")
	}
	path := dir + "/" + memoryFile
	whole := mustReadFile(t, path)
	for i := range whole {
		whole[i] ^= 1
		mustWriteFile(t, path, whole)
		if _, err := loadMemory(dir, "p0"); err == nil {
			t.Errorf("a flipped bit in byte %d is not seen", i)
		}
		whole[i] ^= 1
	}
	mustWriteFile(t, path, whole[:len(whole)/2])
	if _, err := loadMemory(dir, "p0"); err == nil {
		t.Error("a cut file is taken")
	}
}

// Shows which directories are refused before they take part: a log that ends before what another node saw
// it have, whatever its length; one that the leader no longer counts on; and that one which was cut back
// and went on in a later term is not.
func TestOlderCopy(t *testing.T) {
	n, _ := mustClaimed(t)
	at := func(term, index uint64) group.Position { return group.Position{Term: term, Index: index} }
	self := "n2@" + n.claim.Instance()
	for name, tt := range map[string]struct {
		last, acked group.Position
		replica     *answer
		want        string
	}{
		"whole":                {at(2, 9), at(2, 9), nil, ""},
		"further":              {at(2, 9), at(2, 5), nil, ""},
		"replaced suffix":      {at(3, 8), at(2, 20), nil, ""},
		"short":                {at(2, 8), at(2, 9), nil, "quorate node replace n2"},
		"long but older":       {at(2, 80), at(3, 9), nil, "older copy"},
		"emptied":              {at(0, 0), at(1, 1), nil, "older copy"},
		"member":               {at(2, 9), at(0, 0), replicaOf("n0", replicaAnswer{Leads: true}, self), ""},
		"another is counted":   {at(2, 9), at(0, 0), replicaOf("n0", replicaAnswer{Leads: true}, "n2@x"), "counts on another"},
		"taken out":            {at(2, 9), at(0, 0), replicaOf("n0", replicaAnswer{Leads: true}, "n0@a"), "taken out"},
		"hearsay of a removal": {at(2, 9), at(0, 0), replicaOf("n0", replicaAnswer{}, "n0@a"), ""},
		"waits to be added":    {at(0, 0), at(0, 0), replicaOf("n0", replicaAnswer{Leads: true}, "n0@a"), ""},
	} {
		a := &answer{Node: "n0"}
		if tt.replica != nil {
			a = tt.replica
		}
		a.Acknowledged = positionAnswer(tt.acked)
		err := n.compare(tt.last, a)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// Shows the keeper's steps: who waits is added under the directory that it has, once; who has caught up in
// the leader's own term is promoted, if it is there and whole; nobody else is touched.
func TestKeeperSteps(t *testing.T) {
	n, _ := mustClaimed(t)
	now := time.Now()
	self := group.Member{ID: "n2", Instance: n.claim.Instance()}
	n0, learner := group.Member{ID: "n0", Instance: "i-n0"}, group.Member{ID: "n1", Instance: "i-n1", Learner: true}
	last := group.Position{Term: 5, Index: 100}
	step := func(acked group.Position, members ...group.Member) memberStep {
		return n.nextStep(members, func(group.Member) group.Position { return acked }, last)
	}
	none := func(name string, s memberStep) {
		t.Helper()
		if s.add != nil || s.promote != nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	none("silent nodes", step(last, self, n0, learner))
	n.neighbours.note(map[string]*answer{
		"n0": replicaOf("n0", replicaAnswer{}, "n0@i-n0"), "n1": replicaOf("n1", replicaAnswer{}),
	}, now)
	if s := step(last, self, n0); s.promote != nil || s.add == nil ||
		cmp.Diff(*s.add, group.Member{ID: "n1", Instance: "i-n1", Addr: "127.0.0.1:6"}) != "" {
		t.Errorf("n1 waits: %+v", s)
	}
	none("n1 is there", step(group.Position{}, self, n0, learner))
	none("far behind", step(group.Position{Term: 5, Index: 97}, self, n0, learner))
	none("of an earlier term", step(group.Position{Term: 4, Index: 100}, self, n0, learner))
	if s := step(group.Position{Term: 5, Index: 98}, self, n0, learner); s.promote == nil || s.promote.ID != "n1" {
		t.Errorf("n1 has caught up: %+v", s)
	}
	other := learner
	other.Instance = "another"
	none("another directory", step(last, self, n0, other))
	n.neighbours.note(map[string]*answer{"n1": replicaOf("n1", replicaAnswer{Stopped: "diverged"})}, now)
	none("stopped", step(last, self, n0, learner))
	none("stopped and no member", step(last, self, n0))
	n.neighbours.note(map[string]*answer{"n1": replicaOf("n1", replicaAnswer{})}, now.Add(-time.Minute))
	none("an old answer", step(last, self, n0))
}

// Shows that a removal is refused unless a majority of the voters that remain is up with the data that is
// counted on.
func TestReplacementKeepsMajority(t *testing.T) {
	n, _ := mustClaimed(t)
	members := []group.Member{
		{ID: "n2", Instance: n.claim.Instance()}, {ID: "n0", Instance: "i-n0"}, {ID: "n1", Instance: "i-n1"},
	}
	up, other := replicaOf("n0", replicaAnswer{}), replicaOf("n0", replicaAnswer{})
	other.Instance = "another"
	stopped := replicaOf("n0", replicaAnswer{Stopped: "diverged"})
	for name, tt := range map[string]struct {
		n0 *answer
		ok bool
	}{"up": {up, true}, "down": {nil, false}, "another directory": {other, false}, "stopped": {stopped, false},
		"starting": {blankNode("n0"), false}} {
		if err := n.mustKeepMajority(members, "n1", map[string]*answer{"n0": tt.n0}); (err == nil) != tt.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Shows that a question of another version, with unknown fields, of another partition or kind, or with
// something behind it, is answered with an error that says so, and a proper one by who the node is.
func TestQuestionsAreStrict(t *testing.T) {
	n, _ := mustClaimed(t)
	for body, want := range map[string]string{
		`{"version":1,"kind":"who","group":"p0","instance":"x"}`:                                     "",
		`{"version":2,"kind":"who","group":"p0","instance":"x"}`:                                     "version 2",
		`{"version":1,"kind":"who","group":"p0","instance":"x","more":1}`:                            "",
		`{"version":1,"kind":"who","group":"p0","instance":"x"}{}`:                                   "after top-level value",
		`{"version":1,"kind":"why","group":"p0","instance":"x"}`:                                     "not known",
		`{"version":1,"kind":"who","group":"p9","instance":"x"}`:                                     "p9",
		`{"version":1,"kind":"digest","group":"p0","instance":"x","to":"y","index":1,"digest":"zz"}`: "not a digest",
		`{"version":1,"kind":"digest","group":"p0","instance":"x","to":"y","index":1,"digest":"` +
			strings.Repeat("ab", 16) + `"}`: "another data directory",
		``: "the question",
	} {
		var a answer
		if err := decodeVersion(n.answer("n0", []byte(body)), questionVersion, &a); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(a.Error, want) || want == "" && (a.Error != "" || a.Node != "n2" || a.Has) {
			t.Errorf("%s: %+v, want %q", body, a, want)
		}
	}
}

// Shows that a disk that was low stays so until there is a quarter more room than the bound.
func TestDiskWatermark(t *testing.T) {
	for _, tt := range []struct {
		was  bool
		free uint64
		want bool
	}{{false, 100, false}, {false, 99, true}, {true, 100, true}, {true, 124, true}, {true, 125, false}} {
		if got := diskIsLow(tt.was, tt.free, 100); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

// Shows that the error of a lost directory says so.
func TestLostError(t *testing.T) {
	n, _ := mustClaimed(t)
	if !errors.Is(n.lostError(judgement{lost: memberAnswer{Instance: "a-b"}}), errLost) {
		t.Error("a lost directory's error does not say so")
	}
}

// Shows that stores in which nothing was ever stored are no reason not to form a cluster: their node does
// not say that it has the group.
func TestEmptyStoresAreNone(t *testing.T) {
	n, _ := mustClaimed(t)
	has := func() bool {
		t.Helper()
		var a answer
		body := `{"version":1,"kind":"who","group":"p0","instance":"x"}`
		if err := decodeVersion(n.answer("n0", []byte(body)), questionVersion, &a); err != nil || a.Error != "" {
			t.Fatal(a.Error, err)
		}
		return a.Has
	}
	n.has.Store(true)
	if !has() {
		t.Error("stores with something in them are denied")
	}
	n.empty.Store(true)
	if has() {
		t.Error("empty stores count")
	}
}
