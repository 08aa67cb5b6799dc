package node

import (
	"testing"
)

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
