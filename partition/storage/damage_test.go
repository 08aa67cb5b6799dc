package storage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
)

// tree is the content of all files below a folder, by path.
type tree map[string][]byte

func readTree(t testing.TB, dir string) tree {
	t.Helper()
	files := tree{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		files[rel], err = os.ReadFile(path)
		return err
	}))
	return files
}

func (f tree) write(t testing.TB, dir string) {
	t.Helper()
	for name, data := range f {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must(t, os.WriteFile(path, data, 0o600))
	}
}

func (f tree) names() []string { return slices.Sorted(maps.Keys(f)) }

// past is a data directory and what was acknowledged from it.
type past struct {
	backend  Backend
	files    tree
	older    []tree // as it was before
	entries  map[uint64]raft.Log
	first    uint64
	last     Position
	tail     chainHash
	ballot   ballot
	snapshot raft.SnapshotMeta
	state    string
}

const damagedGroup = "p7"

func groupFiles(dir, group string, b Backend) *Files {
	f := NewFiles(filepath.Join(dir, "groups", group), b, nil)
	f.segmentBytes = 16 << 10
	return f
}

var members = raft.Configuration{Servers: []raft.Server{
	{ID: "n1@a", Address: "10.0.0.1:7000"}, {ID: "n2@b", Address: "10.0.0.2:7000", Suffrage: raft.Nonvoter},
}}

// mustLive makes a history: several segments, two snapshots, truncations at both ends, terms and votes.
func mustLive(t testing.TB, id Identity, group string, b Backend, closed bool, random *rand.Rand) *past {
	t.Helper()
	dir := t.TempDir()
	p := &past{backend: b, entries: map[uint64]raft.Log{}}
	claim, err := Claim(dir, id)
	must(t, err)
	s := mustMake(t, Config{Disk: groupFiles(dir, group, b), Partition: group})
	p.older = append(p.older, readTree(t, dir))
	must(t, claim.Record(group))
	store := func(from, to, term uint64) {
		var batch []*raft.Log
		for i := from; i <= to; i++ {
			l := raft.Log{Index: i, Term: term, Type: raft.LogType(i % 5 / 4), Data: make([]byte, 1+random.IntN(600))}
			for j := range l.Data {
				l.Data[j] = byte(random.Uint32())
			}
			if i%7 == 0 {
				l.Extensions = []byte("extension")
			}
			p.entries[i] = l
			batch = append(batch, &l)
			if len(batch) == 3 || i == to {
				must(t, s.Log.StoreLogs(batch))
				batch = nil
			}
		}
		p.last = Position{Term: term, Index: to}
	}
	vote := func(term uint64, candidate string) {
		must(t, s.Stable.SetUint64(keyTerm, term))
		must(t, s.Stable.SetUint64(keyVoteTerm, term))
		must(t, s.Stable.Set(keyVoteCandidate, []byte(candidate)))
		p.ballot = ballot{term, term, candidate}
	}
	snapshot := func(index, trailing uint64) {
		p.state = strings.Repeat(fmt.Sprintf("state %d of %s; ", index, group), 400)
		k := mustSink(t, s, index, p.entries[index].Term)
		_, err := io.WriteString(k, p.state)
		must(t, err)
		must(t, k.Close())
		p.first = index - trailing + 1
		must(t, s.Log.DeleteRange(1, index-trailing))
	}
	vote(1, "n1@a")
	store(1, 40, 1)
	snapshot(20, 10)
	p.older = append(p.older, readTree(t, dir))
	vote(3, "n2@b")
	store(41, 90, 3)
	must(t, s.Log.DeleteRange(86, 90))
	vote(4, "n1@a")
	store(86, 110, 4)
	snapshot(60, 20)
	store(111, 130, 4)
	p.older = append(p.older, readTree(t, dir))
	store(131, 140, 4)
	p.tail = s.log.tail
	metas, err := s.Snapshots.List()
	must(t, err)
	p.snapshot = *metas[0]
	if closed {
		must(t, s.Close())
	}
	p.files = readTree(t, dir)
	must(t, s.Close())
	must(t, claim.Release())
	return p
}

func mustSink(t testing.TB, s *Store, index, term uint64) raft.SnapshotSink {
	t.Helper()
	_, transport := raft.NewInmemTransport("a") // only encodes addresses here
	defer func() { must(t, transport.Close()) }()
	k, err := s.Snapshots.Create(1, index, term, members, 1, transport)
	must(t, err)
	return k
}

// outcomes of a trial
const (
	refused  = "refused"
	harmless = "harmless"
	silent   = "silent"
)

// try starts a node on a directory with these files and says how that went, and why.
func (p *past) try(t *testing.T, files tree, id Identity) (outcome, why string) {
	t.Helper()
	dir := t.TempDir()
	files.write(t, dir)
	claim, err := Claim(dir, id)
	if err != nil {
		return refusal(t, dir, files, err)
	}
	defer func() { must(t, claim.Release()) }()
	fatal := error(nil)
	s, err := Open(Config{
		Disk: groupFiles(dir, damagedGroup, p.backend), Partition: damagedGroup, First: !claim.Has(damagedGroup),
		Fatal: func(err error) { fatal = err },
	})
	if err != nil {
		return refusal(t, dir, files, err)
	}
	defer func() { must(t, s.Close()) }()
	if diff := p.compare(s); diff != "" {
		return silent, diff
	}
	next := &raft.Log{Index: p.last.Index + 1, Term: p.last.Term, Data: []byte("next")}
	if err := s.Log.StoreLog(next); err != nil || fatal != nil {
		return silent, fmt.Sprintf("it cannot go on: %v, %v", err, fatal)
	}
	return harmless, ""
}

func refusal(t *testing.T, dir string, files tree, err error) (outcome, why string) {
	t.Helper()
	after := readTree(t, dir)
	delete(after, lockFile) // what the last process left there is nobody's
	before := maps.Clone(files)
	delete(before, lockFile)
	switch {
	case !maps.EqualFunc(before, after, bytes.Equal):
		return silent, fmt.Sprintf("the refused directory was changed: %v", after.names())
	case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrForeign) && !errors.Is(err, ErrVersion):
		return silent, fmt.Sprintf("the refusal does not say why: %v", err)
	case strings.Contains(err.Error(), "\n"):
		return silent, fmt.Sprintf("the refusal has several lines: %v", err)
	}
	return refused, err.Error()
}

// compare is how an open store differs from what was acknowledged.
func (p *past) compare(s *Store) string {
	first, last := s.log.ledger.bounds()
	if at, err := s.Last(); err != nil || at != p.last || last != p.last.Index {
		return fmt.Sprintf("it ends at %v (%v), want %v", at, err, p.last)
	}
	if first > p.first && first > p.snapshot.Index+1 {
		return fmt.Sprintf("it begins at %d, want %d", first, p.first)
	}
	for i := first; i <= last; i++ {
		var got raft.Log
		if err := s.Log.GetLog(i, &got); err != nil {
			return fmt.Sprintf("entry %d: %v", i, err)
		}
		if diff := cmp.Diff(p.entries[i], got); diff != "" {
			return diff
		}
	}
	if s.log.tail != p.tail {
		return "the chain ends otherwise"
	}
	b, err := readBallot(s.stable.table, "")
	if err != nil || b != p.ballot {
		return fmt.Sprintf("the vote is %v (%v), want %v", b, err, p.ballot)
	}
	metas, err := s.Snapshots.List()
	if err != nil || len(metas) == 0 {
		return fmt.Sprintf("snapshots %v: %v", metas, err)
	}
	meta, r, err := s.Snapshots.Open(metas[0].ID)
	if err != nil {
		return fmt.Sprintf("the snapshot: %v", err)
	}
	defer func() { _ = r.Close() }() // only read
	state, err := io.ReadAll(r)
	if err != nil || string(state) != p.state {
		return fmt.Sprintf("the snapshot's state is another: %v", err)
	}
	meta.Peers = p.snapshot.Peers // not used
	return cmp.Diff(&p.snapshot, meta)
}

// damage is a way to change a directory; it returns what it did, "" nothing could be done.
type damage struct {
	kind string
	do   func(p, other *past, files tree, random *rand.Rand) string
}

// pick is one of the files that satisfy a condition, "" none does.
func pick(files tree, random *rand.Rand, condition func(name string) bool) string {
	var names []string
	for _, name := range files.names() {
		if len(files[name]) > 0 && condition(name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return names[random.IntN(len(names))]
}

func anyFile(string) bool { return true }

// position is a place in a file, more often one that is in use than chance would have it.
func position(data []byte, random *rand.Rand) int {
	at := random.IntN(len(data))
	for range random.IntN(2) * 50 {
		if data[at] != 0 {
			break
		}
		at = random.IntN(len(data))
	}
	return at
}

func flip(files tree, name string, random *rand.Rand) string {
	data := bytes.Clone(files[name])
	at, bit := position(data, random), random.IntN(8)
	data[at] ^= 1 << bit
	files[name] = data
	return fmt.Sprintf("bit %d of byte %d of %s flipped", bit, at, name)
}

func cut(files tree, name string, random *rand.Rand) string {
	n := position(files[name], random)
	files[name] = files[name][:n:n]
	return fmt.Sprintf("%s cut to %d bytes", name, n)
}

func zero(files tree, name string, random *rand.Rand) string {
	data := bytes.Clone(files[name])
	at := position(data, random) / 4096 * 4096
	clear(data[at:min(at+4096, len(data))])
	files[name] = data
	return fmt.Sprintf("page at %d of %s zeroed", at, name)
}

func remove(files tree, name string, _ *rand.Rand) string {
	delete(files, name)
	return name + " deleted"
}

// newest are the files of the newest snapshot.
func newest(p *past, file string) func(string) bool {
	return func(name string) bool {
		return strings.Contains(name, p.snapshot.ID) && strings.HasSuffix(name, file)
	}
}

var damages = []damage{
	{"bit flip", func(_, _ *past, f tree, r *rand.Rand) string { return flip(f, pick(f, r, anyFile), r) }},
	{"cut tail", func(_, _ *past, f tree, r *rand.Rand) string { return cut(f, pick(f, r, anyFile), r) }},
	{"zeroed page", func(_, _ *past, f tree, r *rand.Rand) string { return zero(f, pick(f, r, anyFile), r) }},
	{"deleted file", func(_, _ *past, f tree, r *rand.Rand) string { return remove(f, pick(f, r, anyFile), r) }},
	{"older file", func(p, _ *past, f tree, r *rand.Rand) string {
		n := r.IntN(len(p.older))
		old := p.older[n]
		name := pick(old, r, func(name string) bool { return !bytes.Equal(old[name], f[name]) })
		f[name] = old[name]
		return fmt.Sprintf("%s as it was at time %d", name, n)
	}},
	{"file of its kind", func(_, _ *past, f tree, r *rand.Rand) string {
		name := pick(f, r, anyFile)
		from := pick(f, r, func(other string) bool { return filepath.Ext(other) == filepath.Ext(name) && other != name })
		if from == "" {
			return ""
		}
		f[name] = f[from]
		return fmt.Sprintf("%s in place of %s", from, name)
	}},
	{"another group's", func(_, other *past, f tree, r *rand.Rand) string {
		name := pick(f, r, func(name string) bool { return len(other.files[name]) > 0 && strings.HasPrefix(name, "groups") })
		f[name] = other.files[name]
		return name + " of another group"
	}},
	{"snapshot state", func(p, _ *past, f tree, r *rand.Rand) string {
		do := []func(tree, string, *rand.Rand) string{flip, cut, zero, remove}[r.IntN(4)]
		return do(f, pick(f, r, newest(p, "state.bin")), r)
	}},
	{"snapshot meta", func(p, _ *past, f tree, r *rand.Rand) string {
		do := []func(tree, string, *rand.Rand) string{flip, flip, cut, zero, remove}[r.IntN(5)]
		return do(f, pick(f, r, newest(p, "meta.json")), r)
	}},
}

// damageRounds is how often each kind is tried on each of four directories.
func damageRounds(t *testing.T) int {
	n, err := strconv.Atoi(orDefault(os.Getenv("QUORATE_DAMAGE_ROUNDS"), "6"))
	must(t, err)
	return n
}

func orDefault(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// A directory that was damaged in any of many ways is refused, in one line and without a change to it, or
// nothing that was acknowledged is missing or different. QUORATE_DAMAGE_ROUNDS and QUORATE_DAMAGE_SEED
// set how often each way is tried, and where.
func TestDamage(t *testing.T) {
	rounds := damageRounds(t)
	seed, err := strconv.ParseUint(orDefault(os.Getenv("QUORATE_DAMAGE_SEED"), "1"), 10, 64)
	must(t, err)
	count := map[string]map[string]int{}
	note := func(kind, outcome string) {
		if count[kind] == nil {
			count[kind] = map[string]int{}
		}
		count[kind][outcome]++
	}
	for i, backend := range []Backend{WAL, BoltDB} {
		for j, closed := range []bool{true, false} {
			random := rand.New(rand.NewPCG(seed, uint64(2*i+j)))
			p := mustLive(t, n1, damagedGroup, backend, closed, random)
			other := mustLive(t, n1, damagedGroup, backend, closed, random) // the same names
			where := fmt.Sprintf("%s, closed %v", backend, closed)
			if outcome, why := p.try(t, maps.Clone(p.files), n1); outcome != harmless {
				t.Fatalf("%s: without damage: %s", where, why)
			}
			for _, d := range damages {
				for range rounds {
					files := maps.Clone(p.files)
					what := d.do(p, other, files, random)
					if what == "" {
						continue
					}
					outcome, why := p.try(t, files, n1)
					note(d.kind, outcome)
					if outcome == silent {
						t.Errorf("%s, seed %d: %s: %s", where, seed, what, why)
					} else if testing.Verbose() {
						t.Logf("%s: %s: %s %s", where, what, outcome, why)
					}
				}
			}
			for kind, outcome := range p.swapped(t, closed, random) {
				note(kind, outcome)
				if outcome != refused {
					t.Errorf("%s: %s: %s", where, kind, outcome)
				}
			}
		}
	}
	t.Logf("seed %d\n%s", seed, damageTable(count))
}

// swapped are the outcomes of whole directories in the wrong place.
func (p *past) swapped(t *testing.T, closed bool, random *rand.Rand) map[string]string {
	t.Helper()
	got := map[string]string{}
	got["another node's"], _ = p.try(t, p.files, Identity{Cluster: n1.Cluster, Node: "n2"})
	got["another cluster's"], _ = p.try(t, p.files, Identity{Cluster: "c2", Node: n1.Node})
	files := maps.Clone(p.files)
	group := filepath.Join("groups", damagedGroup)
	for name, data := range mustLive(t, n1, "p8", p.backend, closed, random).files {
		if rest, ok := strings.CutPrefix(name, filepath.Join("groups", "p8")); ok {
			files[group+rest] = data
		}
	}
	for name := range p.files {
		if strings.Contains(name, filepath.Join(group, snapshotFolder)) {
			delete(files, name)
		}
	}
	got["group's folder swapped"], _ = p.try(t, files, n1)
	maps.DeleteFunc(files, func(name string, _ []byte) bool { return strings.HasPrefix(name, group) })
	got["group's folder gone"], _ = p.try(t, files, n1)
	return got
}

func damageTable(count map[string]map[string]int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-24s | %8s | %8s | %8s\n", "kind", refused, harmless, silent)
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		c := count[kind]
		fmt.Fprintf(&b, "%-24s | %8d | %8d | %8d\n", kind, c[refused], c[harmless], c[silent])
	}
	return b.String()
}
