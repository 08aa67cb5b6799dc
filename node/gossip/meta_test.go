package gossip

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var full = Meta{
	ID: "n0", Instance: "9b2f0d1e-58c1-4b57-8f2e-0d9d5a3c7e11", Zone: "a",
	GRPC: "quorate-0.internal.example:7070", HTTP: "quorate-0.internal.example:7071",
	Raft: "quorate-0.internal.example:7072", Gossip: "quorate-0.internal.example:7073",
}

// Shows that what is encoded is decoded, for any values that are accepted, and fits where it is to fit.
func TestMetaRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.OneOf(rapid.Just(""), rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("%s:%d", rapid.StringMatching(`[a-zä.-]{1,80}`).Draw(t, "host"),
				rapid.IntRange(1, 65535).Draw(t, "port"))
		}))
		m := Meta{
			ID:       rapid.StringMatching(`[a-zA-Z0-9._-]{1,63}`).Draw(t, "id"),
			Instance: rapid.StringMatching(`[a-zé0-9-]{0,40}`).Draw(t, "instance"),
			GRPC:     addr.Draw(t, "grpc"), HTTP: addr.Draw(t, "http"),
			Raft: addr.Draw(t, "raft"), Gossip: addr.Draw(t, "gossip"),
			Zone: rapid.StringMatching(`[a-zé0-9-]{0,20}`).Draw(t, "zone"),
		}
		encoded, err := m.encode()
		if err != nil {
			if strings.Contains(err.Error(), "use shorter host names") {
				t.Skip("too long")
			}
			t.Fatal(err)
		}
		got, err := decodeMeta(m.ID, encoded)
		if err != nil || got != m {
			t.Fatalf("%v\n%s", err, cmp.Diff(m, got))
		}
	})
}

// Shows that four addresses of one long host name take little more room than one, and that four different ones,
// which no packet has room for, are refused with what to do.
func TestMetaBound(t *testing.T) {
	host := strings.Repeat("long-name.", 25)
	m := full
	m.GRPC, m.HTTP, m.Raft, m.Gossip = host+":1", host+":2", host+":3", host+":4"
	encoded, err := m.encode()
	if err != nil || len(encoded) > 320 {
		t.Errorf("one host: %d bytes, %v", len(encoded), err)
	}
	m.GRPC, m.HTTP, m.Raft, m.Gossip = "a"+host+":1", "b"+host+":2", "c"+host+":3", "d"+host+":4"
	if _, err := m.encode(); err == nil || !strings.Contains(err.Error(), "use shorter host names") {
		t.Errorf("four hosts: %v", err)
	}
}

// Shows that a field which a newer node appends does not keep this one from reading those that it knows, and that
// another version is refused by saying so.
func TestMetaOfNewerNodes(t *testing.T) {
	encoded, err := full.encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeMeta(full.ID, append(encoded, 0, 3, 'n', 'e', 'w')); err != nil || got != full {
		t.Errorf("%v\n%s", err, cmp.Diff(full, got))
	}
	encoded[0] = 2
	if _, err := decodeMeta(full.ID, encoded); err == nil || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("version 2: %v", err)
	}
}

// Shows that values which would garble a log or a table, or which nobody can dial, are refused on both sides.
func TestMetaRefused(t *testing.T) {
	for name, change := range map[string]func(*Meta){
		"no id":           func(m *Meta) { m.ID = "" },
		"long id":         func(m *Meta) { m.ID = strings.Repeat("n", 64) },
		"id with a space": func(m *Meta) { m.ID = "n 0" },
		"escape":          func(m *Meta) { m.Zone = "\x1b[2J" },
		"invalid UTF-8":   func(m *Meta) { m.Instance = "a\xff" },
		"no port":         func(m *Meta) { m.GRPC = "host" },
		"port 0":          func(m *Meta) { m.Raft = "host:0" },
		"port too large":  func(m *Meta) { m.Raft = "host:65536" },
		"no host":         func(m *Meta) { m.HTTP = ":80" },
		"host with a tab": func(m *Meta) { m.Gossip = "a\tb:80" },
	} {
		m := full
		change(&m)
		if _, err := m.encode(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	encoded, err := full.encode()
	if err != nil {
		t.Fatal(err)
	}
	broken := []byte(strings.Replace(string(encoded), "quorate-0.", "quorate\n0.", 1))
	if _, err := decodeMeta(full.ID, broken); err == nil {
		t.Error("a line break came through the decoder")
	}
	for n := range len(encoded) {
		if _, err := decodeMeta(full.ID, encoded[:n]); err == nil {
			t.Errorf("the first %d of %d bytes were accepted", n, len(encoded))
		}
	}
}

// Shows that no bytes break the decoder, and that what it accepts is what encode would write of it.
func FuzzDecodeMeta(f *testing.F) {
	encoded, err := full.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(encoded)
	f.Add([]byte{metaVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMeta("n0", b)
		if err != nil {
			return
		}
		again, err := m.encode()
		if err != nil {
			t.Skip("longer than what its sender wrote is no matter of the decoder")
		}
		if got, err := decodeMeta("n0", again); err != nil || got != m {
			t.Errorf("%v\n%s", err, cmp.Diff(m, got))
		}
	})
}
