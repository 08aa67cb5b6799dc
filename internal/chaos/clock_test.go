//go:build chaos && linux

package chaos

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/clock"
)

const second = int64(time.Second)

// Shows what each disturbance makes of the clocks, that one which ends leaves them where they are but for the offset,
// and that only the wall clock has the wall clock's.
func TestDisturbances(t *testing.T) {
	source := &clock.Fake{}
	source.Advance(100 * second)
	d := newDisturbed(source)
	suspended := int64(0)
	want := func(what string, mono, wall int64) {
		t.Helper()
		if diff := cmp.Diff(clock.Reading{Mono: mono, Raw: mono, Boot: mono + suspended}, d.Read()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", what, diff)
		}
		if got := d.Wall().Nanos; got != wall {
			t.Errorf("%s: the wall clock is at %d, want %d", what, got, wall)
		}
	}
	want("undisturbed", 100*second, 100*second)

	d.disturb(Disturbance{RatePPM: 1000})
	source.Advance(10 * second)
	want("fast", 110*second+second/100, 110*second)

	d.disturb(Disturbance{Freeze: true, WallOffsetNanos: -3 * second})
	source.Advance(10 * second)
	suspended = 10 * second
	want("frozen", 110*second+second/100, 117*second)

	d.disturb(Disturbance{MonoOffsetNanos: 5 * second})
	source.Advance(second)
	want("put forward", 116*second+second/100, 121*second)

	d.disturb(Disturbance{RatePPM: -1_000_000})
	source.Advance(second)
	want("standing", 111*second+second/100, 122*second)

	d.disturb(Disturbance{})
	source.Suspend(second)
	source.Advance(second)
	read, at := d.Read(), 112*second+second/100
	if diff := cmp.Diff(clock.Reading{Mono: at, Raw: at, Boot: at + suspended + second}, read); diff != "" {
		t.Errorf("after a suspension: (-want +got)\n%s", diff)
	}
}

// Shows that the clock goes by what its file holds, also when that comes, changes and goes, and that a long span at a
// high rate does not overflow.
func TestClockFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clock.json")
	source := &clock.Fake{}
	d := newDisturbed(source)
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
		d.look(file)
	}
	d.look(file)
	put(`{"mono_offset_ns": 7}`)
	if got := d.Read().Mono; got != 7 {
		t.Errorf("the clock shows %d, want 7", got)
	}
	put(`{"rate_ppm": 1000000}`)
	source.Advance(1000 * 24 * 3600 * second)
	if got, want := d.Read().Raw, 2000*24*3600*second; got != want {
		t.Errorf("the clock shows %d, want %d", got, want)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	d.look(file)
	if d.now != (Disturbance{}) {
		t.Errorf("without the file %+v is in effect", d.now)
	}
	defer func() {
		if recover() == nil {
			t.Error("a file with a name that is not known was taken")
		}
	}()
	put(`{"mono_ofset_ns": 7}`)
}
