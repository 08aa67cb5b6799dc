package gossip

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/memberlist"
)

// heard is what memberlist tells of a node.
func heard(t *testing.T, id string) *memberlist.Node {
	t.Helper()
	m := configFor(id).Self
	encoded, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return &memberlist.Node{Name: id, Addr: net.IPv4(127, 0, 0, 1), Port: 1, Meta: encoded}
}

// Shows that no more nodes are known than the bound, that one more is refused while all are up or went only now,
// and that it takes the place of the one that has been gone longest.
func TestTableIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newTable("self", slog.New(slog.DiscardHandler))
		for n := range maxNodes {
			table.NotifyJoin(heard(t, fmt.Sprint("n", n)))
		}
		more := heard(t, "more")
		if err := table.NotifyAlive(more); !errors.Is(err, errFull) {
			t.Errorf("with all up: %v", err)
		}
		if err := table.NotifyAlive(heard(t, "n7")); err != nil {
			t.Errorf("one that is known: %v", err)
		}
		table.NotifyLeave(heard(t, "n7"))
		<-time.After(time.Second)
		table.NotifyLeave(heard(t, "n9"))
		if err := table.NotifyAlive(more); !errors.Is(err, errFull) {
			t.Errorf("with one just gone: %v", err)
		}
		<-time.After(forgetAfter)
		if err := table.NotifyAlive(more); err != nil {
			t.Errorf("with one long gone: %v", err)
		}
		table.NotifyJoin(more)
		known := map[string]bool{}
		for _, s := range table.nodes() {
			known[s.ID] = true
		}
		if len(known) != maxNodes || known["n7"] || !known["n9"] || !known["more"] {
			t.Errorf("%d are known, n7 %v, n9 %v, more %v", len(known), known["n7"], known["n9"], known["more"])
		}
	})
}

// Shows that a node at an address that cannot be one, or with a description that is not sound, is refused.
func TestTableRefuses(t *testing.T) {
	table := newTable("self", slog.New(slog.DiscardHandler))
	for name, change := range map[string]func(*memberlist.Node){
		"no address":   func(n *memberlist.Node) { n.Addr = nil },
		"odd address":  func(n *memberlist.Node) { n.Addr = make([]byte, 7) },
		"everywhere":   func(n *memberlist.Node) { n.Addr = net.IPv4zero },
		"multicast":    func(n *memberlist.Node) { n.Addr = net.IPv4allsys },
		"no port":      func(n *memberlist.Node) { n.Port = 0 },
		"no meta":      func(n *memberlist.Node) { n.Meta = nil },
		"a bad name":   func(n *memberlist.Node) { n.Name = "a b" },
		"another size": func(n *memberlist.Node) { n.Meta = make([]byte, maxMetaBytes+1) },
	} {
		n := heard(t, "b")
		change(n)
		if err := table.NotifyAlive(n); err == nil {
			t.Errorf("%s: accepted", name)
		}
		table.NotifyJoin(n)
	}
	if len(table.nodes()) != 0 {
		t.Errorf("known are %v", table.nodes())
	}
}

// Shows that since is when a node came or went, not when it was last heard of, and that a conflict is logged again
// only after a while.
func TestTableTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b book
		table := newTable("self", b.logger())
		begin := time.Now()
		table.NotifyJoin(heard(t, "b"))
		<-time.After(time.Minute)
		update := heard(t, "b")
		table.NotifyUpdate(update)
		if s := table.nodes()[0]; !s.Alive || !s.Since.Equal(begin) {
			t.Errorf("after an update: %+v", s)
		}
		table.NotifyLeave(update)
		if s := table.nodes()[0]; s.Alive || s.Since.Sub(begin) != time.Minute {
			t.Errorf("after it left: %+v", s)
		}
		_, gone := table.where()
		if diff := cmp.Diff([]string{"127.0.0.1:1"}, gone); diff != "" {
			t.Error(diff)
		}
		<-time.After(soughtFor)
		if _, gone := table.where(); len(gone) != 0 {
			t.Errorf("looked for after an hour: %v", gone)
		}
		other := heard(t, "b")
		other.Port = 2
		for range 10 {
			table.NotifyConflict(update, other)
		}
		<-time.After(conflictLogInterval)
		table.NotifyConflict(update, other)
		if n := b.count("two nodes have the same id"); n != 2 {
			t.Errorf("logged %d times", n)
		}
	})
}

// Shows that memberlist's lines keep their level, none as an error, are cut and counted when they are too many, and
// that refusals are logged as counts.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b book
		out := &lines{to: b.logger()}
		to := log.New(out, "", 0)
		to.Print("[DEBUG] memberlist: not this")
		to.Print("[ERR] memberlist: Conflicting address for b")
		to.Print("[ERR] memberlist: Push/Pull with b failed")
		to.Print("[INFO] memberlist: Suspect b has failed")
		to.Print("[WARN] memberlist: Refuting a suspect message (from: b)")
		to.Print("Err: without a level ", strings.Repeat("é", maxLineBytes))
		for range maxLines {
			to.Print("[WARN] memberlist: again")
		}
		<-time.After(2 * linesInterval)
		to.Print("[WARN] memberlist: later")
		out.end()
		to.Print("[WARN] memberlist: not this either")
		for text, want := range map[string]int{
			"level=ERROR": 0, "not this": 0, "either": 0, "Conflicting": 0, "memberlist:": 0,
			`level=WARN msg="Push/Pull with b failed"`: 1, `level=INFO msg="Suspect b has failed"`: 1,
			"level=INFO msg=\"Refuting": 1, "…": 1, "msg=again": maxLines - 4, "msg=later left_out=4": 1,
		} {
			if n := b.count(text); n != want {
				t.Errorf("%q is logged %d times, not %d", text, n, want)
			}
		}
		r := refusals{to: b.logger()}
		from := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9}
		for range 100 {
			r.note("packet", from, errKey)
		}
		<-time.After(refusalLogInterval)
		r.note("stream", from, errForeign)
		if b.count("count=1 last=packet") != 1 || b.count("count=100 last=stream") != 1 || b.count("refused what") != 2 {
			t.Errorf("refusals: %s", b.text.String())
		}
	})
}
