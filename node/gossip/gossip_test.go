package gossip

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func mustAddr(t *testing.T, addr string) netip.AddrPort {
	t.Helper()
	at, err := resolve(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	return at[0]
}

// Shows that nodes which know one seed see one another, with everything that each says about itself, and that none
// sees itself.
func TestNodesFindEachOther(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	b := mustOpen(t, configFor("b", a.Addr()))
	c := mustOpen(t, configFor("c", a.Addr()))
	awaitAll(t, a, b, c)
	want := configFor("c").Self
	want.Gossip = c.Addr()
	got, _ := find(a, "c")
	if diff := cmp.Diff(want, got.Meta); diff != "" {
		t.Error(diff)
	}
	if age := time.Since(got.Since); age < 0 || age > 2*patience {
		t.Errorf("seen since %v ago", age)
	}
	for _, g := range []*Gossip{a, b, c} {
		if n := len(g.Nodes()); n != 2 {
			t.Errorf("%s sees %d nodes: %+v", g.node, n, g.Nodes())
		}
	}
}

// Shows that without a key nodes on loopback find each other too, and that a node with a key does not see them.
func TestWithoutKey(t *testing.T) {
	plain := func(node string, seeds ...string) Config {
		c := configFor(node, seeds...)
		c.Key = nil
		return c
	}
	a := mustOpen(t, plain("a"))
	keyed := mustOpen(t, configFor("k", a.Addr()))
	b := mustOpen(t, plain("b", a.Addr(), keyed.Addr()))
	awaitAll(t, a, b)
	awaitRefusals(t, a, keyed)
	if len(a.Nodes()) != 1 || len(b.Nodes()) != 1 || len(keyed.Nodes()) != 0 {
		t.Errorf("a sees %v, b %v, the one with a key %v", a.Nodes(), b.Nodes(), keyed.Nodes())
	}
}

// awaitRefusals waits until each has refused several requests.
func awaitRefusals(t *testing.T, all ...*Gossip) {
	t.Helper()
	for _, g := range all {
		await(t, g.node+" refuses", func() bool { return g.Refused() >= 5 })
	}
}

// Shows that nodes of another cluster, or with another key, ask in vain, and that they are told in the log.
func TestForeignNodesAreNotSeen(t *testing.T) {
	var log book
	c := configFor("a")
	c.Logger = log.logger()
	a := mustOpen(t, c)
	b := mustOpen(t, configFor("b", a.Addr()))
	otherCluster := configFor("c", a.Addr(), b.Addr())
	otherCluster.Cluster = "another"
	otherKey := configFor("k", a.Addr(), b.Addr())
	otherKey.Key = key(2)
	foreign := []*Gossip{mustOpen(t, otherCluster), mustOpen(t, otherKey)}
	awaitAll(t, a, b)
	awaitRefusals(t, a, b)
	for _, g := range foreign {
		if len(g.Nodes()) != 0 {
			t.Errorf("%s sees %v", g.node, g.Nodes())
		}
	}
	for _, g := range []*Gossip{a, b} {
		if len(g.Nodes()) != 1 {
			t.Errorf("%s sees %v", g.node, g.Nodes())
		}
	}
	if log.count("refused what came to the gossip port") == 0 {
		t.Error("nothing about it is logged")
	}
}

// Shows that what a node says about itself anew reaches the others, also those that ask later, and that nonsense
// is refused and does not.
func TestUpdate(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	b := mustOpen(t, configFor("b", a.Addr()))
	awaitAll(t, a, b)
	before, _ := find(a, "b")
	moved := configFor("b").Self
	moved.GRPC, moved.Instance = "127.0.0.9:1", "b-2"
	if err := b.Update(moved); err != nil {
		t.Fatal(err)
	}
	now := func(g *Gossip) bool {
		s, ok := find(g, "b")
		return ok && s.GRPC == "127.0.0.9:1" && s.Instance == "b-2" && s.Gossip == b.Addr()
	}
	await(t, "a learns where b is now", func() bool { return now(a) })
	if after, _ := find(a, "b"); !after.Since.Equal(before.Since) {
		t.Errorf("since %v before, %v now", before.Since, after.Since)
	}
	for _, nonsense := range []Meta{{ID: "a"}, {}, {ID: "b", GRPC: "nowhere"}} {
		if err := b.Update(nonsense); err == nil {
			t.Errorf("%+v: accepted", nonsense)
		}
	}
	c := mustOpen(t, configFor("c", a.Addr()))
	await(t, "c learns where b is now", func() bool { return now(c) })
}

// Shows that a node which vanishes is taken for gone after a while, since then, and that Changed yields for it.
func TestGone(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	b := mustOpen(t, configFor("b", a.Addr()))
	awaitAll(t, a, b)
	before := time.Now()
	drain(a)
	if err := b.transport.Shutdown(); err != nil { // as if its machine had stopped
		t.Fatal(err)
	}
	await(t, "a misses b", func() bool { return sees(a, "b", false) })
	if s, _ := find(a, "b"); s.Since.Before(before) || s.Since.After(time.Now()) {
		t.Errorf("gone since %v, before that was %v", s.Since, before)
	}
	if !drain(a) {
		t.Error("nothing has changed, says a")
	}
}

// Shows that a node which closes says so: one that never probes learns it.
func TestLeave(t *testing.T) {
	unhurried := hurried
	unhurried.probe = time.Hour
	a, err := open(configFor("a"), unhurried)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustClose(t, a) })
	b := mustOpen(t, configFor("b", a.Addr()))
	awaitAll(t, a, b)
	mustClose(t, b)
	await(t, "a knows that b left", func() bool { return sees(a, "b", false) })
}

// drain empties Changed, and reports whether it had something.
func drain(g *Gossip) bool {
	select {
	case <-g.Changed():
		return true
	default:
		return false
	}
}

// Shows that Changed yields once for many changes that nobody waited for.
func TestChangedIsCoalesced(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	var others []*Gossip
	for _, node := range []string{"b", "c", "d"} {
		others = append(others, mustOpen(t, configFor(node, a.Addr())))
	}
	awaitAll(t, append(others, a)...)
	if !drain(a) || drain(a) {
		t.Error("three nodes came: Changed does not yield exactly once")
	}
}

// Shows that two nodes which a partition has parted, and which have taken each other for gone and forgotten each
// other's state, are together again after it, though only one of them knows the other as a seed.
func TestPartitionHeals(t *testing.T) {
	toA, toB := mustRelay(t), mustRelay(t)
	behind := func(node string, r *relay, seeds ...string) *Gossip {
		c := configFor(node, seeds...)
		c.Advertise = r.addr()
		g := mustOpen(t, c)
		r.lead(g.transport.tcp.Addr().String())
		return g
	}
	a := behind("a", toA)
	b := behind("b", toB, toA.addr())
	awaitAll(t, a, b)
	atA, atB := toA.target(), toB.target()
	toA.lead("")
	toB.lead("")
	await(t, "both are alone", func() bool { return sees(a, "b", false) && sees(b, "a", false) })
	alone, _ := find(a, "b")
	toA.lead(atA)
	toB.lead(atB)
	awaitAll(t, a, b)
	if again, _ := find(a, "b"); !again.Since.After(alone.Since) {
		t.Errorf("alive since %v, it was gone since %v", again.Since, alone.Since)
	}
}

// Shows that a second node with the name of another is not taken in while the first is up, that both sides log it,
// and that it is taken in once the first has gone.
func TestTwoOfOneName(t *testing.T) {
	var logA, logTwin book
	c := configFor("a")
	c.Logger = logA.logger()
	a := mustOpen(t, c)
	first := mustOpen(t, configFor("b", a.Addr()))
	awaitAll(t, a, first)
	c = configFor("b", a.Addr())
	c.Self.Instance, c.Logger = "twin", logTwin.logger()
	twin := mustOpen(t, c)
	const told = "two nodes have the same id"
	await(t, "both log it", func() bool { return logA.count(told) > 0 && logTwin.count(told) > 0 })
	if s, _ := find(a, "b"); s.Instance != "b-1" || !s.Alive {
		t.Errorf("a sees %+v", s)
	}
	if logA.count("Conflicting address") > 0 {
		t.Error("memberlist logs it too")
	}
	mustClose(t, first)
	await(t, "the twin takes the name over", func() bool {
		s, _ := find(a, "b")
		return s.Instance == "twin" && s.Alive && sees(twin, "a", true)
	})
}

// Shows that a node which is started again, on the same address or another and with a new data directory, is seen
// as what it is now, though the others still know the life before.
func TestRestart(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	c := configFor("b", a.Addr())
	b := mustOpen(t, c)
	awaitAll(t, a, b)
	c.Bind = b.transport.tcp.Addr().String()
	for _, instance := range []string{"b-2", "b-3"} {
		mustClose(t, b)
		c.Self.Instance = instance
		b = mustOpen(t, c)
		await(t, "a sees "+instance, func() bool {
			s, _ := find(a, "b")
			return s.Alive && s.Instance == instance && s.Gossip == b.Addr()
		})
		c.Bind = "127.0.0.1:0"
	}
}

// Shows what Open refuses, and that each refusal says what to do.
func TestOpenRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"no cluster":              {func(c *Config) { c.Cluster = "" }, "cluster id"},
		"long cluster":            {func(c *Config) { c.Cluster = strings.Repeat("c", 256) }, "cluster id"},
		"no node":                 {func(c *Config) { c.Node, c.Self.ID = "", "" }, "node id"},
		"other node":              {func(c *Config) { c.Self.ID = "b" }, "node's id"},
		"no bind":                 {func(c *Config) { c.Bind = "" }, "host:port"},
		"bind without port":       {func(c *Config) { c.Bind = "127.0.0.1" }, "missing port"},
		"advertised everything":   {func(c *Config) { c.Bind = "0.0.0.0:0" }, "advertise one"},
		"advertised nothing":      {func(c *Config) { c.Bind = ":0" }, "advertise one"},
		"short key":               {func(c *Config) { c.Key = c.Key[:16] }, "32"},
		"empty key":               {func(c *Config) { c.Key = []byte{} }, "32"},
		"no key, bound elsewhere": {func(c *Config) { c.Key, c.Bind, c.Advertise = nil, "0.0.0.0:0", "127.0.0.1:1" }, "give a gossip key"},
		"no key, dialled there":   {func(c *Config) { c.Key, c.Advertise = nil, "192.0.2.1:1" }, "give a gossip key"},
		"bad address":             {func(c *Config) { c.Self.Raft = "x" }, "host:port"},
	} {
		c := configFor("a")
		test.change(&c)
		g, err := Open(c)
		if err == nil {
			mustClose(t, g)
		}
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Shows that a closed one can be asked and closed again, and says that it is closed.
func TestClosed(t *testing.T) {
	a := mustOpen(t, configFor("a"))
	b := mustOpen(t, configFor("b", a.Addr()))
	awaitAll(t, a, b)
	mustClose(t, a)
	mustClose(t, a)
	if !sees(a, "b", true) {
		t.Errorf("what it has seen is gone: %v", a.Nodes())
	}
	if err := a.Update(configFor("a").Self); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("update: %v", err)
	}
}

// Shows that a name serves as a seed and as an address, and that a seed which is this node itself, or where nobody
// listens, does no harm.
func TestSeeds(t *testing.T) {
	c := configFor("a")
	c.Bind = "localhost:0"
	a := mustOpen(t, c)
	_, port, _ := strings.Cut(a.Addr(), ":")
	b := mustOpen(t, configFor("b", "localhost:"+port, "127.0.0.1:1", "no port", ""))
	awaitAll(t, a, b)
	own := b.Addr()
	g := &Gossip{
		table: b.table, transport: b.transport, bind: b.bind, self: b.self,
		seeds: func() []string { return []string{own, a.Addr(), "127.0.0.1:1", "127.0.0.1:1", ""} },
	}
	if diff := cmp.Diff([]string{"127.0.0.1:1"}, g.missing()); diff != "" {
		t.Errorf("asked are: %s", diff)
	}
	g.seeds = func() []string {
		var many []string
		for p := range 100 {
			many = append(many, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), uint16(p+1)).String())
		}
		return many
	}
	if n := len(g.missing()); n != maxAsked {
		t.Errorf("%d of 100 seeds are asked in a round", n)
	}
}
