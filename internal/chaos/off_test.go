//go:build !chaos || !linux

package chaos

import (
	"testing"
	"unsafe"

	"github.com/quorate/quorate/clock"
)

// Shows that the product has nothing of it: the tap takes no room, its calls no memory, and the clock is the one that
// was given, whatever the environment says.
func TestProductHasNone(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"QUORATE_TAP", "QUORATE_CLOCK", "QUORATE_SLOW_SYNC"} {
		t.Setenv(name, dir)
	}
	tap := NewTap("n0", "p0")
	if size := unsafe.Sizeof(tap); size != 0 {
		t.Errorf("a tap has %d bytes", size)
	}
	allocated := testing.AllocsPerRun(10, func() {
		tap.Applied(1, 1, nil, nil, nil, nil)
		tap.Restored(1, nil)
		tap.Flush()
		SlowSync()
	})
	if allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
	source := &clock.Fake{}
	if Clock(source) != clock.Source(source) {
		t.Error("the clock is not the one that was given")
	}
}
