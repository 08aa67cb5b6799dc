package router_test

import (
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/router"
)

const goldenFile = "testdata/slots.txt"

// principals are names of every length that a hash treats differently, and awkward ones.
func principals() []string {
	out := []string{"", "acme", "Acme", "a\x00b", "ключ", "user:1", "user:10", strings.Repeat("x", 512)}
	for n := range 40 {
		out = append(out, strings.Repeat("p", n)+fmt.Sprint(n))
	}
	return out
}

func seeds() [][16]byte {
	return [][16]byte{{}, {1, 2, 3}, {0: 0xff, 7: 0x80, 8: 0x01, 15: 0xfe}}
}

func mustGolden(t *testing.T) map[string]uint16 {
	t.Helper()
	data, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]uint16{}
	for line := range strings.Lines(string(data)) {
		var key string
		var slot uint16
		if _, err := fmt.Sscan(line, &key, &slot); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out[key] = slot
	}
	return out
}

// Shows that the slot of a principal is what the recorded values say, and the same as the state machine's,
// which refuses what is routed otherwise.
func TestSlotsAreThoseOfTheStateMachine(t *testing.T) {
	golden := mustGolden(t)
	n := 0
	for _, seed := range seeds() {
		for _, p := range principals() {
			n++
			got := router.SlotOf(seed, p)
			if own := fsm.SlotOf(seed, p); got != uint16(own) {
				t.Errorf("principal %q: slot %d, the state machine has %d", p, got, own)
			}
			key := hex.EncodeToString(seed[:]) + "/" + hex.EncodeToString([]byte(p))
			if want, ok := golden[key]; !ok || want != got {
				t.Errorf("principal %q: slot %d, recorded %d (%t)", p, got, want, ok)
			}
		}
	}
	if n != len(golden) || router.NumSlots != fsm.NumSlots {
		t.Errorf("%d values recorded, %d compared; %d and %d slots", len(golden), n, router.NumSlots, fsm.NumSlots)
	}
}

// Shows that the two hashes agree for any seed and principal.
func FuzzSlotOf(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), "acme")
	f.Add([]byte{}, "")
	f.Fuzz(func(t *testing.T, s []byte, principal string) {
		var seed [16]byte
		copy(seed[:], s)
		if got, want := router.SlotOf(seed, principal), fsm.SlotOf(seed, principal); got != uint16(want) {
			t.Fatalf("slot %d, the state machine has %d", got, want)
		}
	})
}
