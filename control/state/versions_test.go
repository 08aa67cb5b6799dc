package state_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/control/state"
)

// everyKind is a script with every kind of command. It leaves elements of every kind in the state.
const everyKind = `
init c 3 9
node a a1 a:2
node b b1 b:2
node d d1 d:2
create 4 a,b 0-8191
create 5 b 8192-16383
publish 0 v1 1 0
move 0 to=1 0-99
decide 1 4 4
close 1
move 0 to=1 100-199
abort 2 changed my mind
split 0 new=a,b 200-299
recover 0 new=a from=b accept-loss
takeover c 4 3 1 3 8 2
disable 1 hot
rollback 2 1 0
installed 0 2
replicas 0 1 a,b,d
retire 1
lose d d1
drain b
token t1 kim admin 5 90 id=7
revoke t1
raise 2
sweep 0
attempt policy.publish p1 denied
note usage.forgive acme all classes
confirm
`

// pinned are digests of what everyKind makes.
var pinned = map[string]string{
	"commands, version 3":       "837c69574bea1fb6",
	"audit records, version 1":  "13953286a85fae4e",
	"snapshot, version 3":       "db7ebfca28073f68",
	"kept by backup, version 1": "ceec8307563b2219",
}

func mustSnapshot(t *testing.T, s *state.State) []byte {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Shows that no durable encoding changes under its version: of every kind of command, of audit records, of a snapshot
// with elements of every kind, and of what a backup keeps of it. When it fails, raise the version of what has changed. What the audit trail
// says in words is part of the state too: replicas that word it differently do not agree.
func TestVersionsPinEncodings(t *testing.T) {
	m, commands, records, index := state.New(), sha256.New(), sha256.New(), uint64(0)
	kinds := map[state.Kind]bool{}
	for line := range strings.Lines(strings.TrimSpace(everyKind)) {
		c := mustCommand(t, strings.Fields(line))
		c.Actor = "kim"
		kinds[c.Kind] = true
		commands.Write(state.AppendCommand(nil, c))
		index++
		_, rec := m.Apply(index, c)
		if rec != nil {
			records.Write(state.AppendRecord(nil, rec))
		}
	}
	for k := state.KindConfirm; k <= state.KindNote; k++ {
		if !kinds[k] {
			t.Errorf("no command of kind %d", k)
		}
	}
	snapshot := mustSnapshot(t, m.State())
	tags := map[byte]bool{}
	for rest := snapshot[8:]; len(rest) > 0; rest = rest[8+binary.LittleEndian.Uint32(rest):] {
		tags[rest[8]] = true
	}
	want := map[byte]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true, 8: true, 255: true}
	if diff := cmp.Diff(want, tags); diff != "" {
		t.Errorf("frames of the snapshot: %s", diff)
	}
	got := map[string]string{
		"commands, version 3":       fmt.Sprintf("%.8x", commands.Sum(nil)),
		"audit records, version 1":  fmt.Sprintf("%.8x", records.Sum(nil)),
		"snapshot, version 3":       fmt.Sprintf("%.8x", sha256.Sum256(snapshot)),
		"kept by backup, version 1": fmt.Sprintf("%.8x", sha256.Sum256(state.AppendRestored(nil, m.State().Restored()))),
	}
	if diff := cmp.Diff(pinned, got); diff != "" {
		t.Error(diff)
	}
}

// Shows that what an older version wrote is refused in words, and not taken for damage: a snapshot and a command;
// so is a snapshot with a kind of element that a newer version has put before its end.
func TestOtherVersionsAreRefused(t *testing.T) {
	old := mustSnapshot(t, state.New().State())
	newer := bytes.Clone(old)
	old[7] = 1
	if _, err := state.Restore(bytes.NewReader(old)); err == nil || !strings.Contains(err.Error(), "use the one that wrote it") {
		t.Errorf("a snapshot of version 1: %v", err)
	}
	command := sealed(append([]byte{1}, state.AppendCommand(nil, &state.Command{Kind: state.KindConfirm})[1:]...))
	if _, err := state.DecodeCommand(command); err == nil || !strings.Contains(err.Error(), "command of version 1") {
		t.Errorf("a command of version 1: %v", err)
	}
	head := 8 + 8 + int(binary.LittleEndian.Uint32(newer[8:]))
	frame := []byte{9, 1}
	inserted := binary.LittleEndian.AppendUint32(bytes.Clone(newer[:head]), uint32(len(frame)))
	inserted = binary.LittleEndian.AppendUint32(inserted, crc32.Checksum(frame, crc32.MakeTable(crc32.Castagnoli)))
	inserted = append(append(inserted, frame...), newer[head:]...)
	_, err := state.Restore(bytes.NewReader(inserted))
	if err == nil || !strings.Contains(err.Error(), "frame 9 is unknown: use the program that wrote it") {
		t.Errorf("a snapshot with a newer kind of element: %v", err)
	}
}
